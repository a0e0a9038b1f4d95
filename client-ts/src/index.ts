/**
 * The client of agentmemory-operator's retrieval API.
 *
 *     new Client("http://127.0.0.1:8080").agent("support-bot").user("ada").search("how does she pay?")
 */
import type { Client as Http } from "openapi-fetch";

import { Agent } from "./agents.js";
import { Connection, optionsOf, type CallOptions } from "./connection.js";
import type { components, paths } from "./generated/api.js";
import { answerOf } from "./problems.js";
import type { RetryOptions } from "./retries.js";
import type { AgentSummary } from "./types.js";

export { Agent } from "./agents.js";
export type { CallOptions, ConditionalOptions, WriteOptions } from "./connection.js";
export { estimateTokens, formatContext, type ContextOptions } from "./context.js";
export { ApiError, ApiUnreachable, InvalidToken, PreconditionFailed, type Problem } from "./problems.js";
export type { RetryOptions } from "./retries.js";
export type { ExportedLine, ExportOptions, ImportedLine, ImportedLines, ImportOptions } from "./transfers.js";
export type * from "./types.js";
export { User } from "./users.js";
export type { components, paths };

/** The API of one address. */
export class Client {
  readonly #connection: Connection;

  constructor(url = "http://127.0.0.1:8080", options: RetryOptions = {}) {
    this.#connection = new Connection(url, options);
  }

  /** Every request of the API, by its path and with its types. It repeats as the handles do; errors are returned. */
  get http(): Http<paths> {
    return this.#connection.http;
  }

  /** Version of the API in the latest answer that contains one; undefined before that. */
  get apiVersion(): string | undefined {
    return this.#connection.apiVersion;
  }

  /** Return the agents that the caller may use. */
  async agents(call: CallOptions = {}): Promise<AgentSummary[]> {
    return (await answerOf(this.http.GET("/v1/agents", optionsOf(call)))).results;
  }

  /** Return an agent's handle, without a request. */
  agent(name: string): Agent {
    return new Agent(this.#connection, name);
  }
}
