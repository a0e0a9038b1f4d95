import { fetchByPath } from "./dots.js";
import { ApiUnreachable, InvalidToken, passOn } from "./problems.js";
import { Turns } from "./turns.js";

export interface RetryOptions {
  /** Sent as `Authorization: Bearer`; a function is asked for each attempt. */
  token?: string | (() => string | Promise<string>);
  /** Attempts after the first; 3 by default. */
  retries?: number;
  /** How long one attempt waits for its answer to begin; 30,000 by default. */
  timeoutMs?: number;
  /** The longest wait between two attempts, whatever the API asks for; 30,000 by default. */
  waitMaxMs?: number;
  /** Requests that are sent at the same time; further ones wait in the client. 64 by default. */
  inFlight?: number;
}

/** How one request is sent, if not as all others. */
export interface Sending {
  /** How long one attempt waits for its answer to begin. */
  timeoutMs?: number;
  /** Attempts after the first. */
  retries?: number;
  /** True for a stream: it takes none of the `inFlight` turns, because other requests may be needed to read or write it. */
  isTransfer?: boolean;
  /** Returns the body of each attempt, which replaces that of the request. */
  body?: () => ReadableStream<Uint8Array>;
}

// The API did nothing (429, 503), or may have (504), where a write is safe to repeat by its key.
const TOO_MANY = 429;
export const REPEATED = new Set([TOO_MANY, 503, 504]);
const FIRST_WAIT_MS = 500;

/**
 * Return a `fetch` that shows the token, and asks again where the API is busy or away.
 *
 * At most `inFlight` attempts are under way; waiting for one costs no time-out. A request that was refused with 429 keeps
 * its turn: such requests are repeated one after the other, and no other is sent before they are done.
 */
export function repeating(options: RetryOptions): (request: Request, sending?: Sending) => Promise<Response> {
  const { token, waitMaxMs = 30_000, inFlight = 64 } = options;
  if (!(inFlight >= 1)) throw new RangeError(`inFlight: ${inFlight}: at least 1 request must be allowed`);
  if (typeof token === "string") checked(token);
  const turns = new Turns(inFlight);
  const refused = new Turns(1);

  /** One attempt; nothing where no answer came, and this was not the last. */
  async function attempt(
    request: Request,
    headers: Headers,
    { body, timeoutMs = options.timeoutMs ?? 30_000 }: Sending,
    isLast: boolean,
  ): Promise<Response | undefined> {
    const shown = typeof token === "function" ? checked(await (async () => token())().catch(passOn)) : token;
    if (shown) headers.set("Authorization", `Bearer ${shown}`);
    try {
      return await within(timeoutMs, request, headers, body);
    } catch (error) {
      request.signal.throwIfAborted();
      if (isLast) throw new ApiUnreachable(`no answer from ${new URL(request.url).origin}`, { cause: error });
      return undefined;
    }
  }

  return async (request, sending = {}) => {
    const { signal } = request;
    const { retries = options.retries ?? 3, isTransfer = false } = sending;
    const headers = new Headers(request.headers);
    // One key for all attempts, so that they end in one memory, and none of them changes or deletes what others wrote since.
    if (request.method !== "GET" && !headers.has("Idempotency-Key")) headers.set("Idempotency-Key", crypto.randomUUID());
    let made = 0;
    const send = () => attempt(request, headers, sending, made++ >= retries);
    const wait = (answer: Response | undefined) =>
      waitMs(made - 1, answer?.headers.get("Retry-After"), waitMaxMs);
    const sendInTurn = async () => {
      // Who was refused before goes first.
      await refused.during(signal, async () => undefined);
      let answer = await send();
      if (answer?.status !== TOO_MANY || made > retries) return answer;
      const since = Date.now();
      let pause = wait(answer);
      return refused.during(signal, async () => {
        pause -= Date.now() - since;
        while (answer?.status === TOO_MANY && made <= retries) {
          await answer.body?.cancel();
          await sleep(Math.max(pause, 0), signal);
          answer = await send();
          pause = wait(answer);
        }
        return answer;
      });
    };
    for (;;) {
      const answer = await (isTransfer ? send() : turns.during(signal, sendInTurn));
      // What a lost attempt deleted is no error.
      if (made > 1 && request.method === "DELETE" && answer?.status === 404) return new Response(null, { status: 204 });
      if (answer && (made > retries || !REPEATED.has(answer.status))) return answer;
      await answer?.body?.cancel();
      await sleep(wait(answer), signal);
    }
  };
}

/** Return a token that a header can carry; one that has other characters is not shown. */
function checked(token: string): string {
  if (typeof token !== "string" || !/^([!-~]([ -~]*[!-~])?)?$/.test(token)) {
    throw new InvalidToken(
      "token: must be printable ASCII text without white space around it; a token read from a file may end in a line break: trim it",
    );
  }
  return token;
}

async function within(
  timeoutMs: number,
  request: Request,
  headers: Headers,
  body: (() => ReadableStream<Uint8Array>) | undefined,
): Promise<Response> {
  const late = new AbortController();
  const stop = () => late.abort(new Error(`no answer within ${timeoutMs} ms`));
  const timer = Number.isFinite(timeoutMs) ? setTimeout(stop, timeoutMs) : undefined;
  try {
    const signal = AbortSignal.any([request.signal, late.signal]);
    // The token and the body are for this address alone.
    const changed = { headers, signal, redirect: "manual" as const };
    // A stream is sent as it is read: `duplex` is not among the types of `Request`.
    const streamed = body ? { body: body(), duplex: "half" } : {};
    return await fetchByPath(new Request(request.clone(), { ...changed, ...streamed }));
  } finally {
    clearTimeout(timer);
  }
}

function waitMs(attempt: number, retryAfter: string | null | undefined, longest: number): number {
  // Spread, so that many callers do not come back at once.
  const own = FIRST_WAIT_MS * 2 ** attempt * (0.5 + Math.random() / 2);
  return Math.min(/^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) * 1000 : own, longest);
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
