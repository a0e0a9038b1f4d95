/** What the tests share: the API in AGENTMEMORY_URL with its agent in EXAMPLE_AGENT, and servers with scripted answers. */
import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

import { Client, type User } from "../src/index.js";

export const client = new Client(process.env["AGENTMEMORY_URL"]);
export const agent = client.agent(process.env["EXAMPLE_AGENT"] ?? "assistant");

export type Handler = (request: IncomingMessage, answer: ServerResponse) => void;

export function newUserId(): string {
  return `user-${randomUUID()}`;
}

export function someone(): User {
  return agent.user(newUserId());
}

export async function all<T>(entries: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const entry of entries) found.push(entry);
  return found;
}

/** A request that a scripted server has read. */
export type Seen = { method: string; url: string; headers: IncomingMessage["headers"]; body: string };

/** Serve answers in order, for as long as `use` runs; keeps the requests. */
export async function recorded(answers: Handler[], use: (url: string, seen: Seen[]) => Promise<void>): Promise<void> {
  const seen: Seen[] = [];
  const server = createServer((request, answer) => {
    const chunks: Buffer[] = [];
    const { method = "", url = "", headers } = request;
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      seen.push({ method, url, headers, body: Buffer.concat(chunks).toString() });
      answers.shift()?.(request, answer);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

export const refuse =
  (status: number, problem: object = {}): Handler =>
  (_, answer) =>
    void answer
      .writeHead(status, { "Retry-After": "0", "Content-Type": "application/problem+json" })
      .end(JSON.stringify(problem));
export const breakOff: Handler = (request) => void request.socket.destroy();
export const sayNothing: Handler = () => undefined;
export const send =
  (body: unknown, headers: { [name: string]: string } = {}): Handler =>
  (_, answer) =>
    void answer.writeHead(200, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));
/** Answer with lines; with `breaksOff` the connection breaks after them. */
export const sendLines =
  (lines: string[], type = "application/x-ndjson", breaksOff = false): Handler =>
  (request, answer) => {
    answer.writeHead(200, { "Content-Type": type });
    answer.write(lines.map((line) => `${line}\n`).join(""), () => {
      if (breaksOff) request.socket.destroy();
      else answer.end();
    });
  };
