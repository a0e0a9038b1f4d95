import { ApiUnreachable } from "./problems.js";

export interface RetryOptions {
  /** Sent as `Authorization: Bearer`; a function is asked for each attempt. */
  token?: string | (() => string | Promise<string>);
  /** Attempts after the first; 3 by default. */
  retries?: number;
  /** How long one attempt waits for its answer to begin; 30,000 by default. */
  timeoutMs?: number;
  /** The longest wait between two attempts, whatever the API asks for; 30,000 by default. */
  waitMaxMs?: number;
}

// The API did nothing (429, 503), or may have (504), where a write is safe to repeat by its key.
const REPEATED = new Set([429, 503, 504]);
const FIRST_WAIT_MS = 500;

/** Return a `fetch` that shows the token, and asks again where the API is busy or away. */
export function repeating(options: RetryOptions): (request: Request) => Promise<Response> {
  const { token, retries = 3, timeoutMs = 30_000, waitMaxMs = 30_000 } = options;
  return async (request) => {
    const headers = new Headers(request.headers);
    // One key for all attempts, so that they end in one memory.
    if (request.method === "POST" || request.method === "PUT") {
      if (!headers.has("Idempotency-Key")) headers.set("Idempotency-Key", crypto.randomUUID());
    }
    for (let attempt = 0; ; attempt++) {
      const shown = typeof token === "function" ? await token() : token;
      if (shown) headers.set("Authorization", `Bearer ${shown}`);
      const isLast = attempt >= retries;
      let answer: Response | undefined;
      try {
        answer = await within(timeoutMs, request, headers);
      } catch (error) {
        request.signal.throwIfAborted();
        if (isLast) throw new ApiUnreachable(`no answer from ${new URL(request.url).origin}`, { cause: error });
      }
      // What a lost attempt deleted is no error.
      if (attempt > 0 && request.method === "DELETE" && answer?.status === 404) return new Response(null, { status: 204 });
      if (answer && (isLast || !REPEATED.has(answer.status))) return answer;
      await answer?.body?.cancel();
      await sleep(waitMs(attempt, answer?.headers.get("Retry-After"), waitMaxMs), request.signal);
    }
  };
}

async function within(timeoutMs: number, request: Request, headers: Headers): Promise<Response> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
  try {
    const signal = AbortSignal.any([request.signal, late.signal]);
    // The token and the body are for this address alone.
    return await fetch(new Request(request.clone(), { headers, signal, redirect: "manual" }));
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
