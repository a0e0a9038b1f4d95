/**
 * Names that are `.` or `..` in a path. A URL takes them for steps, percent-encoded or not, so `fetch` asks another endpoint.
 * They go through the URL behind a mark, and Node's own `http` sends the path without it.
 */
// No name has it: `encodeURIComponent` leaves dots and writes hex in capitals.
const MARK = "%00%2e";

/** Return a path with its parameters in place. */
export function pathOf(template: string, parameters: Record<string, unknown>): string {
  return template.replace(/\{([^}]+)\}/g, (_, name: string) => {
    const value = String(parameters[name]);
    return /^\.{1,2}$/.test(value) ? MARK + "%2E".repeat(value.length) : encodeURIComponent(value);
  });
}

/** Send a request as `fetch` does, with a path whose names of dots stay names. */
export async function fetchByPath(request: Request): Promise<Response> {
  const url = new URL(request.url);
  if (!url.pathname.includes(MARK)) return fetch(request);
  const path = url.pathname.replaceAll(MARK, "") + url.search;
  const { request: send } = await (url.protocol === "https:" ? import("node:https") : import("node:http"));
  const body = request.body === null ? undefined : Buffer.from(await request.arrayBuffer());
  const { method, signal, headers } = request;
  return new Promise((resolve, reject) => {
    const port = url.port || undefined;
    const options = { method, signal, path, port, hostname: url.hostname.replace(/^\[|\]$/g, "") };
    const asked = send({ ...options, headers: Object.fromEntries(headers) }, (answer) => {
      const chunks: Buffer[] = [];
      answer.on("data", (chunk: Buffer) => chunks.push(chunk));
      answer.on("error", reject);
      answer.on("end", () => {
        const status = answer.statusCode ?? 0;
        const shown = Object.entries(answer.headers).map(([name, value]) => [name, String(value)] as [string, string]);
        resolve(new Response(status === 204 || status === 304 ? null : Buffer.concat(chunks), { status, headers: shown }));
      });
    });
    asked.on("error", reject);
    asked.end(body);
  });
}
