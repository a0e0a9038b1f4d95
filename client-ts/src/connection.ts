/** What the handles of one client share: the typed HTTP client, the retries and the options of a call. */
import createClient, { type Client as Http } from "openapi-fetch";

import { pathOf } from "./dots.js";
import type { paths } from "./generated/api.js";
import { exactly, stringify } from "./json.js";
import { repeating, type RetryOptions, type Sending } from "./retries.js";

/** Options of every call, besides those that the API has. */
export interface CallOptions {
  /** Cancels the call, also while it waits; the call then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
}

/** Options of a write that the API carries out once for each key. */
export interface WriteOptions extends CallOptions {
  /** Key to repeat the write with, for example after a restart of the program. A random one by default. */
  idempotencyKey?: string | undefined;
}

/** Options of a write that may be restricted to a version. */
export interface ConditionalOptions extends WriteOptions {
  /** Write only if the stored version has this `etag`, or with `*` any; otherwise a PreconditionFailed is thrown. */
  ifMatch?: string | undefined;
}

export class Connection {
  readonly http: Http<paths>;
  /** Version of the API in the latest answer that contains one; undefined before that. */
  apiVersion: string | undefined;
  readonly #send: (request: Request, sending?: Sending) => Promise<Response>;
  readonly #timeoutMs: number;

  constructor(url: string, options: RetryOptions) {
    this.#send = repeating(options);
    this.#timeoutMs = options.timeoutMs ?? 30_000;
    this.http = createClient<paths>({
      baseUrl: url,
      bodySerializer: stringify,
      pathSerializer: pathOf,
      fetch: async (request) => exactly(await this.send(request)),
    });
  }

  /** Send a request with retries; return the answer as it came. */
  async send(request: Request, sending?: Sending): Promise<Response> {
    const answer = await this.#send(request, sending);
    this.apiVersion = answer.headers.get("X-AgentMemory-Version") ?? this.apiVersion;
    return answer;
  }

  /** Return options of a request whose answer may take `timeoutMs` to begin, if the client's own limit is lower. */
  patient(timeoutMs: number): { fetch: (request: Request) => Promise<Response> } {
    const sending = { timeoutMs: Math.max(timeoutMs, this.#timeoutMs) };
    return { fetch: async (request) => exactly(await this.send(request, sending)) };
  }
}

/** Return the options of a request for the options of a call. */
export function optionsOf(call: ConditionalOptions): { signal: AbortSignal | null; headers: Record<string, string> } {
  const { ifMatch } = call;
  const tag = ifMatch?.replace(/^"|"$/g, "");
  // Without a tag the write would not be restricted.
  if (tag === "") throw new TypeError("ifMatch: is empty: read the memory or item first");
  const key = call.idempotencyKey;
  const headers = {
    // A header has bytes; those of other texts than ASCII are UTF-8.
    ...(key === undefined ? {} : { "Idempotency-Key": Buffer.from(key).toString("latin1") }),
    ...(tag === undefined ? {} : { "If-Match": tag === "*" ? tag : `"${tag}"` }),
  };
  return { signal: call.signal ?? null, headers };
}

/**
 * Yield the entries of a list; a page is read when its first entry is needed.
 *
 * @param read Reads the page after a mark: its entries, and the mark of the next page, null on the last.
 */
export async function* entriesOf<Entry>(
  read: (mark: string | undefined) => Promise<readonly [Entry[], string | null | undefined]>,
  mark?: string,
): AsyncGenerator<Entry, void, undefined> {
  let next: string | null | undefined = mark;
  do {
    const [entries, following]: readonly [Entry[], string | null | undefined] = await read(next ?? undefined);
    yield* entries;
    next = following;
  } while (next != null);
}
