/** What the API says when it refuses a request: RFC 9457, under the names of the API. */
export interface Problem {
  type?: string;
  title?: string;
  detail?: string;
  errors?: { field: string; message: string }[];
  request_id?: string;
  /** Of a failed condition: tag of the stored version; null if nothing is stored. */
  etag?: string | null;
}

/** The API refused a request. `problem` has the fields that are wrong, and the id of the request. */
export class ApiError extends Error {
  override readonly name: string = "ApiError";

  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super([`${status} ${problem.title ?? "no description"}`, problem.detail].filter(Boolean).join(": "));
  }
}

/** The stored version is not the one that the write is restricted to (412). Nothing was written. */
export class PreconditionFailed extends ApiError {
  override readonly name = "PreconditionFailed";

  /** Tag of the stored version; null if nothing is stored. */
  get etag(): string | null {
    return this.problem.etag ?? null;
  }
}

/** No answer came: nobody knows whether a write took effect. */
export class ApiUnreachable extends Error {
  override readonly name = "ApiUnreachable";
}

/** What a client was given as a token is none that a header can carry. */
export class InvalidToken extends TypeError {
  override readonly name = "InvalidToken";
}

const ofCallers = new WeakSet<object>();

/** Throw an error of a function of the caller, which passes through as it is. */
export function passOn(error: unknown): never {
  if (typeof error === "object" && error !== null) ofCallers.add(error);
  throw error;
}

// The connection broke during an answer, or the answer is not JSON. Other errors are the caller's own: a reason to abort, or
// one of the function that returns the token.
function unread(error: unknown): never {
  const isUnread = error instanceof TypeError || error instanceof SyntaxError;
  const isOfAnswer = isUnread && !(error instanceof InvalidToken) && !ofCallers.has(error);
  throw isOfAnswer ? new ApiUnreachable("the answer could not be read", { cause: error }) : error;
}

type Asked<T> = Promise<{ data?: T; error?: unknown; response: Response }>;

/** Return the answer of a request; an error of the API is thrown. */
export async function answerOf<T>(asked: Asked<T>): Promise<T> {
  return (await answered(asked)).answer;
}

/** Return the answer of a request with the tag of its version as `etag`. */
export async function taggedAnswerOf<T>(asked: Asked<T>): Promise<T & { etag: string | null }> {
  const { answer, response } = await answered(asked);
  // A proxy that compresses the answer makes the tag a weak one.
  const etag = response.headers.get("ETag")?.replace(/^(?:W\/)?"|"$/g, "") ?? null;
  return { ...answer, etag };
}

async function answered<T>(asked: Asked<T>): Promise<{ answer: T; response: Response }> {
  const { data, error, response } = await asked.catch(unread);
  if (response.ok) return { answer: data as T, response };
  const Kind = response.status === 412 ? PreconditionFailed : ApiError;
  // Something in between may answer in another form.
  throw new Kind(response.status, typeof error === "object" && error !== null ? error : {});
}
