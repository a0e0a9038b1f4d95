/**
 * The client of agentmemory-operator's retrieval API.
 *
 *     new Client("http://127.0.0.1:8080").agent("support-bot").user("ada").search("how does she pay?")
 */
import createClient, { type Client as Http } from "openapi-fetch";

import type { components, paths } from "./generated/api.js";
import { pathOf } from "./dots.js";
import { exactly, stringify } from "./json.js";
import { answerOf } from "./problems.js";
import { repeating, type RetryOptions } from "./retries.js";

export { ApiError, ApiUnreachable, InvalidToken, type Problem } from "./problems.js";
export type { RetryOptions } from "./retries.js";
export type { components, paths };

type Schemas = components["schemas"];
type Listing = paths["/v1/agents/{agent}/memories"]["get"]["parameters"]["query"];

export type AgentDetails = Schemas["AgentDetailOut"];
export type BatchResult = Schemas["BatchOut"];
export type Memory = Schemas["MemoryOut"];
export type SearchResult = Schemas["SearchOut"];
/** A memory, and an answer to a search, of which `fields` or `format: "compact"` left something out. */
export type ShownMemory = Schemas["ShownMemoryOut"];
export type ShownSearchResult = Schemas["ShownSearchOut"];
export type Stored = Schemas["StoredOut"];
export type Receipt = Schemas["ReceiptOut"];
export type UserDetails = Schemas["UserDetailsOut"];

/** What a memory may have besides its user and its content. */
export type MemoryOptions = Omit<Schemas["MemoryIn"], "user_id" | "content">;
/** What narrows a search. */
export type SearchOptions = Omit<Schemas["SearchIn"], "user_id" | "query">;
/** What narrows a list. */
export type ListOptions = Omit<Listing, "user_id">;
/** Which memories to erase: at least one of `filters`, `older_than` and `zone`, and none of them empty. */
export type ForgetOptions = Pick<Partial<Schemas["ForgetIn"]>, "filters" | "older_than" | "zone" | "crypto">;
/** Nothing of a memory is left out of the answer. */
type Whole = { fields?: never; format?: "full" };
/** What may change in place. */
export type ChangeOptions = Schemas["ChangeIn"];

const ERASE_A_USER = "to erase the whole user, call forgetEverything";

/** The API of one address. */
export class Client {
  /** Every request of the API, by its path and with its types. It repeats as the handles do; errors are returned. */
  readonly http: Http<paths>;

  constructor(url = "http://127.0.0.1:8080", options: RetryOptions = {}) {
    const ask = repeating(options);
    this.http = createClient<paths>({
      baseUrl: url,
      bodySerializer: stringify,
      pathSerializer: pathOf,
      fetch: async (request) => exactly(await ask(request)),
    });
  }

  /** Return an agent's handle; nothing is asked yet. */
  agent(name: string): Agent {
    return new Agent(this.http, name);
  }
}

/** An agent's calls. Each throws ApiError or ApiUnreachable. */
export class Agent {
  readonly #path: { agent: string };

  constructor(
    private readonly http: Http<paths>,
    name: string,
  ) {
    this.#path = { agent: name };
  }

  /** Return a user's handle; nothing is asked yet. A shared scope, for example `global`, is a user too. */
  user(userId: string): User {
    return new User(this.http, this.#path.agent, userId);
  }

  /** Return the settings in force. */
  info(): Promise<AgentDetails> {
    return answerOf(this.http.GET("/v1/agents/{agent}", { params: { path: this.#path } }));
  }

  /** Store up to 1,000 memories; one result for each, in order, and an error for each that was refused. */
  addMany(memories: Schemas["MemoryIn"][]): Promise<BatchResult> {
    return answerOf(
      this.http.POST("/v1/agents/{agent}/memories/batch", { params: { path: this.#path }, body: { memories } }),
    );
  }
}

/** A user's calls. Each throws ApiError or ApiUnreachable. */
export class User {
  constructor(
    private readonly http: Http<paths>,
    private readonly agent: string,
    private readonly userId: string,
  ) {}

  /** Store a memory, durably. */
  async add(content: string, options: MemoryOptions = {}): Promise<Stored> {
    const body = { ...options, user_id: this.userId, content };
    // What is sent has no `messages`, so that no conversation is stored.
    return (await answerOf(
      this.http.POST("/v1/agents/{agent}/memories", { params: { path: { agent: this.agent } }, body }),
    )) as Stored;
  }

  /** Return the memories that rank best; for a vector, leave the query out. */
  search(query: string | undefined, options?: SearchOptions & Whole): Promise<SearchResult>;
  search(query: string | undefined, options: SearchOptions): Promise<ShownSearchResult>;
  search(query: string | undefined, options: SearchOptions = {}): Promise<SearchResult | ShownSearchResult> {
    const body = { ...options, ...(query === undefined ? {} : { query }), user_id: this.userId };
    return answerOf(this.http.POST("/v1/agents/{agent}/search", { params: { path: { agent: this.agent } }, body }));
  }

  /** Yield every memory, newest first; pages are read as they are needed. */
  memories(options?: ListOptions & Whole): AsyncGenerator<Memory, void, undefined>;
  memories(options: ListOptions): AsyncGenerator<ShownMemory, void, undefined>;
  async *memories(options: ListOptions = {}): AsyncGenerator<Memory | ShownMemory, void, undefined> {
    const query = { ...options, user_id: this.userId };
    for (;;) {
      const params = { path: { agent: this.agent }, query };
      const page = await answerOf(this.http.GET("/v1/agents/{agent}/memories", { params }));
      yield* page.results;
      if (page.next_cursor == null) return;
      query.cursor = page.next_cursor;
    }
  }

  /** Return a memory. */
  async get(id: string): Promise<Memory> {
    // What is sent has no `fields` and no `format`, so that nothing is left out.
    return (await answerOf(
      this.http.GET("/v1/agents/{agent}/memories/{id}", { params: this.#one(id) }),
    )) as Memory;
  }

  /** Change a memory in place; return it as it is now. Without a change it is a TypeError. */
  async change(id: string, changes: ChangeOptions): Promise<Memory> {
    if (Object.values(changes ?? {}).every((value) => value === undefined)) {
      throw new TypeError("change: nothing to change: give one of importance, tags, metadata, expires_at, pinned, zone");
    }
    return answerOf(this.http.PATCH("/v1/agents/{agent}/memories/{id}", { params: this.#one(id), body: changes }));
  }

  /** Delete a memory; the one that it replaced answers again. */
  async delete(id: string): Promise<void> {
    await answerOf(this.http.DELETE("/v1/agents/{agent}/memories/{id}", { params: this.#one(id) }));
  }

  /** Return the user's name, and the number of memories with their first and last time. */
  details(): Promise<UserDetails> {
    return answerOf(this.http.GET("/v1/agents/{agent}/users/{user_id}", { params: this.#self() }));
  }

  /** Name the user; create it if it does not exist. */
  setName(name: string): Promise<UserDetails> {
    return answerOf(this.http.PUT("/v1/agents/{agent}/users/{user_id}", { params: this.#self(), body: { name } }));
  }

  /** Erase the memories that meet all conditions; return the receipt. TypeError: no condition, or an empty one. */
  async forget(options: ForgetOptions): Promise<Receipt> {
    const { filters, older_than, zone } = options;
    const conditions = Object.entries({ filters, older_than, zone }).filter(([name]) => name in options);
    if (conditions.length === 0) throw new TypeError(`filters, older_than or zone is required; ${ERASE_A_USER}`);
    for (const [name, value] of conditions) {
      const isEmpty = !value || (typeof value === "object" && Object.keys(value).length === 0);
      if (isEmpty) throw new TypeError(`${name} is empty: give a condition; ${ERASE_A_USER}`);
    }
    return this.#forget(options);
  }

  /** Erase the user: all memories, and everything else that is stored about the user; return the receipt. */
  forgetEverything(options: Pick<ForgetOptions, "crypto"> = {}): Promise<Receipt> {
    return this.#forget({ ...options, everything: true });
  }

  async #forget(options: Partial<Schemas["ForgetIn"]>): Promise<Receipt> {
    const body = { ...options, user_id: this.userId };
    // What is sent has no `dry_run`, so that the answer is a receipt.
    return (await answerOf(
      this.http.POST("/v1/agents/{agent}/forget", { params: { path: { agent: this.agent } }, body }),
    )) as Receipt;
  }

  #self() {
    return { path: { agent: this.agent, user_id: this.userId } };
  }

  #one(id: string) {
    return { path: { agent: this.agent, id }, query: { user_id: this.userId } };
  }
}
