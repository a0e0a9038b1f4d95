/** What the API says when it refuses a request: RFC 9457, under the names of the API. */
export interface Problem {
  type?: string;
  title?: string;
  detail?: string;
  errors?: { field: string; message: string }[];
  request_id?: string;
}

/** The API refused a request. `problem` has the fields that are wrong, and the id of the request. */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super([`${status} ${problem.title ?? "no description"}`, problem.detail].filter(Boolean).join(": "));
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

// The connection broke during an answer, or the answer is not JSON. Other errors are the caller's own: a reason to abort, or
// one of the function that returns the token.
function unread(error: unknown): never {
  const isOfAnswer = (error instanceof TypeError && !(error instanceof InvalidToken)) || error instanceof SyntaxError;
  throw isOfAnswer ? new ApiUnreachable("the answer could not be read", { cause: error }) : error;
}

/** Return the answer of a request; an error of the API is thrown. */
export async function answerOf<T>(asked: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await asked.catch(unread);
  if (response.ok) return data as T;
  // Something in between may answer in another form.
  throw new ApiError(response.status, typeof error === "object" && error !== null ? error : {});
}
