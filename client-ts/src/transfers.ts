/** Export and import of a user's memories as lines of JSON, and the change log as a stream; see docs/transfer.md. */
import { optionsOf, type CallOptions, type Connection } from "./connection.js";
import type { components } from "./generated/api.js";
import { exactly, parse, stringify } from "./json.js";
import { ApiError, ApiUnreachable, answerOf } from "./problems.js";
import type { Change, ChangesOptions, Imported } from "./types.js";

/** One line of an export: a memory, or the user's name, or the relations between names. */
export type ExportedLine = components["schemas"]["LineIn"] & { [field: string]: unknown };
/** A line to import: as bytes or text, or as `export` yields it. */
export type ImportedLine = Uint8Array | string | { [field: string]: unknown };
export type ImportedLines = Iterable<ImportedLine> | AsyncIterable<ImportedLine>;

export interface ExportOptions {
  /** True to include vectors. */
  vectors?: boolean;
  /** True to export encrypted memories as plain text, which needs the verb `admin`. */
  plain?: boolean;
}

export interface ImportOptions {
  /** True to import memories that `forget` erased here; otherwise the API refuses them (409). */
  include_erased?: boolean;
}

// Pause after a stream without a change, which may have ended at once.
const RECONNECT_MS = 1_000;

/** Yield the lines of an export as they arrive. */
export async function* exportLines(
  connection: Connection,
  agent: string,
  query: ExportOptions & { user_id: string },
  call: CallOptions,
): AsyncGenerator<ExportedLine, void, undefined> {
  const body = await answerOf(
    connection.http.GET("/v1/agents/{agent}/export", {
      params: { path: { agent }, query },
      ...optionsOf(call),
      parseAs: "stream",
      fetch: (request) => connection.send(request, { isTransfer: true }),
    }),
  );
  for await (const line of linesOf(body, call)) {
    const document = documentIn(line);
    const [name, ...others] = Object.keys(document);
    if (others.length === 0 && name === "counts") return;
    if (others.length === 0 && name === "error") throw new ApiError(...problemIn(document["error"]));
    yield document as ExportedLine;
  }
  throw new ApiUnreachable("the export broke off before its end: export again");
}

function documentIn(line: string): Record<string, unknown> {
  try {
    return parse(line) as Record<string, unknown>;
  } catch (error) {
    throw new ApiUnreachable("a line of the answer is not JSON", { cause: error });
  }
}

function problemIn(error: unknown): [number, object] {
  const problem = error as { status?: number };
  return [problem.status ?? 500, problem];
}

/** Import lines, which are sent as they are read. Lines that can be read only once are sent once. */
export async function importLines(
  connection: Connection,
  agent: string,
  query: ImportOptions & { user_id: string },
  lines: ImportedLines,
  call: CallOptions,
): Promise<Imported> {
  const source = typeof lines === "string" || lines instanceof Uint8Array ? [lines as ImportedLine] : lines;
  const failure = new AbortController();
  const signal = call.signal ? AbortSignal.any([call.signal, failure.signal]) : failure.signal;
  const opened: AsyncGenerator<Uint8Array>[] = [];
  const body = () => {
    const bytes = bytesOf(source);
    opened.push(bytes);
    return streamOf(bytes, failure);
  };
  const sending = { isTransfer: true, timeoutMs: Infinity, body };
  const asked = answerOf(
    connection.http.POST("/v1/agents/{agent}/import", {
      params: { path: { agent }, query },
      headers: { "Content-Type": "application/x-ndjson" },
      signal,
      // The lines follow when the request is sent.
      body: {},
      bodySerializer: () => "",
      fetch: async (request) =>
        exactly(await connection.send(request, isReadOnce(source) ? { ...sending, retries: 0 } : sending)),
    }),
  );
  return asked
    .catch((error: unknown) => {
      failure.signal.throwIfAborted();
      throw error;
    })
    .finally(() => {
      // `fetch` goes on reading the body of a request that has failed.
      for (const bytes of opened) bytes.return(undefined).catch(() => undefined);
    });
}

function isReadOnce(lines: ImportedLines): boolean {
  return !(Symbol.iterator in lines) || (lines[Symbol.iterator]() as unknown) === lines;
}

async function* bytesOf(lines: ImportedLines): AsyncGenerator<Uint8Array, void, undefined> {
  const encoder = new TextEncoder();
  for await (const line of lines) {
    const text = typeof line === "string" || line instanceof Uint8Array ? line : stringify(line);
    const sent = typeof text === "string" ? encoder.encode(text) : text;
    if (sent.length === 0) continue;
    yield sent;
    if (sent.at(-1) !== 10) yield encoder.encode("\n");
  }
}

/** Return bytes as the body of a request. An error of their source aborts `failure`, whose reason it is. */
function streamOf(bytes: AsyncGenerator<Uint8Array>, failure: AbortController): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await bytes.next();
        if (done) controller.close();
        else controller.enqueue(value);
      } catch (error) {
        failure.abort(error);
        throw error;
      }
    },
    async cancel() {
      await bytes.return(undefined);
    },
  });
}

/** Yield changes as they happen; after a lost connection, continue behind the last one. */
export async function* followChanges(
  connection: Connection,
  agent: string,
  options: ChangesOptions,
  call: CallOptions,
): AsyncGenerator<Change, never, undefined> {
  const { cursor, ...query } = options;
  let position = cursor ?? undefined;
  for (;;) {
    let hasChanges = false;
    const { signal } = optionsOf(call);
    const headers = { Accept: "text/event-stream", ...(position === undefined ? {} : { "Last-Event-ID": position }) };
    const body = await answerOf(
      connection.http.GET("/v1/agents/{agent}/changes", {
        params: { path: { agent }, query },
        headers,
        signal,
        parseAs: "stream",
        fetch: (request) => eventsOf(connection, request),
      }),
    );
    try {
      for await (const { id, data } of events(body, call)) {
        position = id ?? position;
        if (data === undefined) continue;
        const change = documentIn(data) as Change;
        hasChanges = true;
        yield change;
      }
    } catch (error) {
      if (!(error instanceof ApiUnreachable)) throw error;
    }
    if (!hasChanges) await pause(RECONNECT_MS, call);
  }
}

async function eventsOf(connection: Connection, request: Request): Promise<Response> {
  const answer = await connection.send(request, { isTransfer: true });
  if (!answer.ok || answer.headers.get("Content-Type")?.startsWith("text/event-stream")) return answer;
  await answer.body?.cancel();
  throw new ApiUnreachable("the answer is not a stream of events");
}

/** Yield the complete events of a stream: one whose last line is missing is left out, and its id does not count. */
async function* events(body: ReadableStream<Uint8Array> | null | undefined, call: CallOptions) {
  let event: { id?: string; data?: string } = {};
  for await (const line of linesOf(body, call)) {
    if (line.startsWith("id: ")) event.id = line.slice(4);
    if (line.startsWith("data: ")) event.data = line.slice(6);
    if (line !== "") continue;
    yield event;
    event = {};
  }
}

function pause(ms: number, { signal }: CallOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Yield the complete lines of a body. ApiUnreachable: the connection broke. */
async function* linesOf(
  body: ReadableStream<Uint8Array> | null | undefined,
  { signal }: CallOptions,
): AsyncGenerator<string, void, undefined> {
  const reader = body?.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const read = await reader?.read();
      if (!read || read.done) return;
      const lines = (rest + decoder.decode(read.value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      yield* lines;
    }
  } catch (error) {
    signal?.throwIfAborted();
    throw new ApiUnreachable("the connection broke", { cause: error });
  } finally {
    await reader?.cancel().catch(() => undefined);
  }
}
