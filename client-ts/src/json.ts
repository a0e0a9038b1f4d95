/*
 * JSON whose integers are exact. A `number` holds integers up to 2^53; the API's have 64 bits. Such an integer is a
 * `bigint` in an answer, and a `bigint` may stand wherever a body takes a number.
 */

const LONG = /\d{16}/;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;

/** Return the value of a text: an integer beyond 2^53 is a `bigint`. */
export function parse(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  const mark = crypto.randomUUID();
  const marked = text.replace(TOKEN, (token) => (isExactly(token) ? token : `"${mark}${token}"`));
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

function isExactly(token: string): boolean {
  return !INTEGER.test(token) || Number.isSafeInteger(Number(token));
}

/** Return the text of a value: a `bigint` is an integer, and a `number` that no integer has is written as a float. */
export function stringify(value: unknown): string {
  const mark = crypto.randomUUID();
  const text = JSON.stringify(value, (_, part: unknown) => {
    if (typeof part === "bigint") return `${mark}${part}`;
    if (typeof part !== "number" || !Number.isInteger(part)) return part;
    if (Object.is(part, -0)) return `${mark}-0.0`;
    return Number.isSafeInteger(part) ? part : `${mark}${part.toExponential()}`;
  });
  return text.replace(new RegExp(`"${mark}([^"]*)"`, "g"), "$1");
}

/** Return an answer whose JSON is read by `parse`. */
export async function exactly(answer: Response): Promise<Response> {
  if (!answer.headers.get("Content-Type")?.startsWith("application/json")) return answer;
  const text = await answer.text();
  const headers = new Headers(answer.headers);
  // openapi-fetch parses an answer of unknown length by itself.
  headers.set("Content-Length", `${new TextEncoder().encode(text).length}`);
  const read = new Response(text, { status: answer.status, statusText: answer.statusText, headers });
  return Object.assign(read, { json: async () => parse(await read.text()) });
}
