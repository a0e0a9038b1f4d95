/** The calls about an agent. */
import { entriesOf, optionsOf, type CallOptions, type ConditionalOptions, type Connection, type WriteOptions } from "./connection.js";
import { erase, narrowed, preview } from "./erasures.js";
import { answerOf, taggedAnswerOf } from "./problems.js";
import { followChanges } from "./transfers.js";
import type * as api from "./types.js";
import { User } from "./users.js";

// Long enough to embed and store a batch of 1,000.
const BATCH_TIMEOUT_MS = 120_000;

/** The calls about an agent. Each throws ApiError or ApiUnreachable. */
export class Agent {
  readonly #connection: Connection;
  readonly #name: string;
  readonly #path: { agent: string };

  constructor(connection: Connection, name: string) {
    this.#connection = connection;
    this.#name = name;
    this.#path = { agent: name };
  }

  /** Return a user's handle, without a request. A shared scope, for example `global`, is a user too. */
  user(userId: string): User {
    return new User(this.#connection, this.#name, userId);
  }

  /** Return the settings in force. */
  info(call: CallOptions = {}): Promise<api.AgentDetails> {
    return answerOf(this.#http.GET("/v1/agents/{agent}", { params: { path: this.#path }, ...optionsOf(call) }));
  }

  /** Return the status of the agent's object: conditions, plan, rebuild, snapshots, restores. Not for callers of some users. */
  state(call: CallOptions = {}): Promise<api.AgentState> {
    return answerOf(this.#http.GET("/v1/agents/{agent}/state", { params: { path: this.#path }, ...optionsOf(call) }));
  }

  /** Read the changes after a cursor, oldest first. Without a `user_id`, those of all users: that needs `admin`. */
  changes(options: api.ChangesOptions = {}, call: CallOptions = {}): Promise<api.ChangesPage> {
    const params = { path: this.#path, query: options };
    return answerOf(this.#http.GET("/v1/agents/{agent}/changes", { params, ...optionsOf(call) }));
  }

  /**
   * Yield each change as it happens, oldest first, without end: leave the loop, or abort the signal of the call.
   *
   * The `cursor` of a change continues after it. A stream that ends or breaks off is opened again behind the last change.
   */
  followChanges(options: api.ChangesOptions = {}, call: CallOptions = {}): AsyncGenerator<api.Change, never, undefined> {
    return followChanges(this.#connection, this.#name, options, call);
  }

  /** Return the definitions of the tools for a model, with the agent's types: for chat completions, or as in MCP. */
  async tools(
    options: { format?: "openai" | "mcp" } = {},
    call: CallOptions = {},
  ): Promise<{ [field: string]: unknown }[]> {
    const query = { ...options, agent: this.#name };
    return (await answerOf(this.#http.GET("/v1/tools", { params: { query }, ...optionsOf(call) }))).tools;
  }

  /** Store up to 1,000 memories; one result for each, in order, and an error for each that was refused. */
  addMany(memories: readonly api.NewMemory[], call: WriteOptions = {}): Promise<api.BatchResult> {
    return answerOf(
      this.#http.POST("/v1/agents/{agent}/memories/batch", {
        params: { path: this.#path },
        body: { memories: [...memories] },
        ...this.#batch(call),
      }),
    );
  }

  /** Count the memories of a user, or of the whole agent; with `periods` also by day of creation. */
  stats(options: api.StatsOptions = {}, call: CallOptions = {}): Promise<api.Stats> {
    const params = { path: this.#path, query: options };
    return answerOf(this.#http.GET("/v1/agents/{agent}/stats", { params, ...optionsOf(call) }));
  }

  /**
   * Yield the users and scopes that have memories, by user id; with `prefix` those whose id begins with it. Pages are read as they
   * are needed.
   */
  users(options: api.UserListOptions = {}, call: CallOptions = {}): AsyncGenerator<api.UserSummary, void, undefined> {
    return entriesOf(async (cursor) => {
      const params = { path: this.#path, query: { ...options, ...(cursor === undefined ? {} : { cursor }) } };
      const page = await answerOf(this.#http.GET("/v1/agents/{agent}/users", { params, ...optionsOf(call) }));
      return [page.results, page.next_cursor];
    });
  }

  /** Return a token that lets a program act for one user; `ttl_seconds` are at most 3,600, the default. */
  mintToken(
    userId: string,
    verbs: readonly api.Verb[],
    options: { ttl_seconds?: number } = {},
    call: CallOptions = {},
  ): Promise<api.UserToken> {
    const body = { ...options, user_id: userId, verbs: [...verbs] };
    const params = { path: this.#path };
    return answerOf(this.#http.POST("/v1/agents/{agent}/tokens", { params, body, ...optionsOf(call) }));
  }

  /** Yield the receipts of erasures, newest first; pages are read as they are needed. */
  receipts(options: api.ReceiptOptions = {}, call: CallOptions = {}): AsyncGenerator<api.ListedReceipt, void, undefined> {
    return entriesOf(async (before) => {
      const params = { path: this.#path, query: { ...options, ...(before === undefined ? {} : { before }) } };
      const page = await answerOf(this.#http.GET("/v1/agents/{agent}/receipts", { params, ...optionsOf(call) }));
      return [page.results, page.next_before];
    });
  }

  /**
   * Erase the memories of a user that meet all conditions; return the receipt. TypeError: no condition, or an empty one.
   *
   * @param userId Null for the key of an organisation, with `{ zone: "PROFESSIONAL", crypto: true }`.
   */
  async forget(userId: string | null, options: api.ForgetOptions, call: WriteOptions = {}): Promise<api.Receipt> {
    return erase(this.#connection, this.#name, { ...narrowed(options), user_id: userId }, call);
  }

  /** Erase a user: all memories, and everything else that is stored about the user; return the receipt. */
  forgetEverything(
    userId: string,
    options: api.ForgetEverythingOptions = {},
    call: WriteOptions = {},
  ): Promise<api.Receipt> {
    return this.user(userId).forgetEverything(options, call);
  }

  /** Return what `forget` would erase now. */
  async wouldForget(userId: string | null, options: api.ForgetOptions, call: CallOptions = {}): Promise<api.Preview> {
    return preview(this.#connection, this.#name, { ...narrowed(options), user_id: userId }, call);
  }

  /** Return what `forgetEverything` would erase now. */
  wouldForgetEverything(
    userId: string,
    options: api.ForgetEverythingOptions = {},
    call: CallOptions = {},
  ): Promise<api.Preview> {
    return this.user(userId).wouldForgetEverything(options, call);
  }

  /** Store an item, durably. It replaces the item under the same namespace and key, if that meets its condition. */
  async putItem(
    namespace: readonly string[],
    content: string,
    options: api.ItemOptions = {},
    call: WriteOptions = {},
  ): Promise<api.ItemStored> {
    const { key, user_id, zone, if_match, if_none_match, ...fields } = options;
    const given = Object.entries({ key, user_id, zone }).filter(([, value]) => value !== undefined);
    const query = { ...Object.fromEntries(given), namespace: [...namespace] };
    const params = { path: this.#path, query };
    const body = { ...fields, content };
    const { signal, headers } = optionsOf({ ...call, ifMatch: if_match ?? undefined });
    const conditions = if_none_match ? { ...headers, "If-None-Match": "*" } : headers;
    return answerOf(this.#http.PUT("/v1/agents/{agent}/items", { params, body, signal, headers: conditions }));
  }

  /** Store up to 1,000 items; one result for each, in order, and an error for each that was refused. */
  putItems(items: readonly api.NewItem[], call: WriteOptions = {}): Promise<api.ItemsResult> {
    return answerOf(
      this.#http.POST("/v1/agents/{agent}/items/batch", {
        params: { path: this.#path },
        body: { items: [...items] },
        ...this.#batch(call),
      }),
    );
  }

  /** Return the current version of an item. ApiError 404: there is none. */
  getItem(
    namespace: readonly string[],
    key: string,
    options: api.AddressOptions = {},
    call: CallOptions = {},
  ): Promise<api.TaggedMemory> {
    const params = this.#address(namespace, { ...options, key });
    return taggedAnswerOf(this.#http.GET("/v1/agents/{agent}/items", { params, ...optionsOf(call) }));
  }

  /** Return the earlier versions of an item, which later writes replaced, newest first. */
  async itemVersions(
    namespace: readonly string[],
    key: string,
    options: api.AddressOptions = {},
    call: CallOptions = {},
  ): Promise<api.Memory[]> {
    const params = this.#address(namespace, { ...options, key });
    const asked = this.#http.GET("/v1/agents/{agent}/items/versions", { params, ...optionsOf(call) });
    return (await answerOf(asked)).results;
  }

  /** Delete an item. ApiError 404: there is none. */
  async deleteItem(
    namespace: readonly string[],
    key: string,
    options: api.AddressOptions = {},
    call: ConditionalOptions = {},
  ): Promise<void> {
    const params = this.#address(namespace, { ...options, key });
    await answerOf(this.#http.DELETE("/v1/agents/{agent}/items", { params, ...optionsOf(call) }));
  }

  /** Yield the keys of a namespace; pages are read as they are needed. */
  keys(
    namespace: readonly string[],
    options: api.OwnerOptions = {},
    call: CallOptions = {},
  ): AsyncGenerator<string, void, undefined> {
    return entriesOf(async (cursor) => {
      const params = this.#address(namespace, { ...options, ...(cursor === undefined ? {} : { cursor }) });
      const page = await answerOf(this.#http.GET("/v1/agents/{agent}/keys", { params, ...optionsOf(call) }));
      return [page.results, page.next_cursor];
    });
  }

  /** Return a user's namespaces that contain items and begin with a prefix, by name. */
  async namespaces(
    prefix: readonly string[] = [],
    options: api.OwnerOptions = {},
    call: CallOptions = {},
  ): Promise<api.NamespaceSize[]> {
    const params = this.#address(prefix, options);
    const asked = this.#http.GET("/v1/agents/{agent}/namespaces", { params, ...optionsOf(call) });
    return (await answerOf(asked)).results;
  }

  get #http() {
    return this.#connection.http;
  }

  #batch(call: WriteOptions) {
    return { ...optionsOf(call), ...this.#connection.patient(BATCH_TIMEOUT_MS) };
  }

  #address<Options extends object>(namespace: readonly string[], options: Options) {
    return { path: this.#path, query: { ...options, namespace: [...namespace] } };
  }
}
