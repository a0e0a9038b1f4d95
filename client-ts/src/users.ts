/** The calls about a user of an agent. */
import { entriesOf, optionsOf, type CallOptions, type ConditionalOptions, type Connection, type WriteOptions } from "./connection.js";
import { erase, narrowed, preview } from "./erasures.js";
import { answerOf, taggedAnswerOf } from "./problems.js";
import {
  exportLines,
  importLines,
  type ExportedLine,
  type ExportOptions,
  type ImportedLines,
  type ImportOptions,
} from "./transfers.js";
import type * as api from "./types.js";

// Low enough to leave capacity of the API for other callers.
const CONCURRENT_SEARCHES = 8;

/** The calls about a user. Each throws ApiError or ApiUnreachable. */
export class User {
  readonly #connection: Connection;
  readonly #agent: string;
  readonly #userId: string;

  constructor(connection: Connection, agent: string, userId: string) {
    this.#connection = connection;
    this.#agent = agent;
    this.#userId = userId;
  }

  /** Store a memory, durably. */
  async add(content: string, options: api.MemoryOptions = {}, call: WriteOptions = {}): Promise<api.Stored> {
    const body = { ...options, user_id: this.#userId, content };
    // The body has no `messages`, so that no conversation is stored.
    return (await answerOf(
      this.#http.POST("/v1/agents/{agent}/memories", { params: this.#path(), body, ...optionsOf(call) }),
    )) as api.Stored;
  }

  /** Store the messages of a conversation, durably. If the agent has a model, it distils memories from them later. */
  converse(
    messages: readonly api.Message[],
    options: api.ConversationOptions = {},
    call: WriteOptions = {},
  ): Promise<api.ConversationStored> {
    const body = { ...options, user_id: this.#userId, messages: [...messages] };
    return answerOf(
      this.#http.POST("/v1/agents/{agent}/messages", { params: this.#path(), body, ...optionsOf(call) }),
    );
  }

  /** Return the memories that rank best; for a vector, leave the query out. */
  search(
    query: string | undefined,
    options?: api.SearchOptions & api.Whole,
    call?: CallOptions,
  ): Promise<api.SearchResult>;
  search(query: string | undefined, options: api.SearchOptions, call?: CallOptions): Promise<api.ShownSearchResult>;
  search(
    query: string | undefined,
    options: api.SearchOptions = {},
    call: CallOptions = {},
  ): Promise<api.SearchResult | api.ShownSearchResult> {
    const body = { ...options, ...(query === undefined ? {} : { query }), user_id: this.#userId };
    return answerOf(this.#http.POST("/v1/agents/{agent}/search", { params: this.#path(), body, ...optionsOf(call) }));
  }

  /** Build one text for a prompt: facts about the user, memories that bear on the query, turns of a session. */
  context(query?: string, options: api.ContextFields = {}, call: CallOptions = {}): Promise<api.Context> {
    const body = { ...options, ...(query === undefined ? {} : { query }), user_id: this.#userId };
    return answerOf(this.#http.POST("/v1/agents/{agent}/context", { params: this.#path(), body, ...optionsOf(call) }));
  }

  /** Search, and return of each memory only the fields that are named, and its `score`. */
  searchFields(
    fields: readonly api.Field[],
    query?: string,
    options: api.SearchOptions = {},
    call: CallOptions = {},
  ): Promise<api.ShownSearchResult> {
    return this.search(query, { ...options, fields: [...fields] }, call);
  }

  /**
   * Search for each query, 8 at a time; return the results in the order of the queries.
   *
   * If a search fails, its error is thrown; the others may be sent or not.
   */
  async searchMany(
    queries: readonly string[],
    options: api.SearchOptions & api.Whole = {},
    call: CallOptions = {},
  ): Promise<api.SearchResult[]> {
    const results: api.SearchResult[] = [];
    const remaining = queries.entries();
    let hasFailed = false;
    const searchRemaining = async () => {
      for (const [place, query] of remaining) {
        if (hasFailed) return;
        results[place] = await this.search(query, options, call);
      }
    };
    const workers = Array.from({ length: CONCURRENT_SEARCHES }, searchRemaining);
    await Promise.all(workers).finally(() => (hasFailed = true));
    return results;
  }

  /** Yield every memory, newest first; pages are read as they are needed. */
  memories(
    options?: api.ListOptions & api.Whole,
    call?: CallOptions,
  ): AsyncGenerator<api.Memory, void, undefined>;
  memories(options: api.ListOptions, call?: CallOptions): AsyncGenerator<api.ShownMemory, void, undefined>;
  memories(
    options: api.ListOptions = {},
    call: CallOptions = {},
  ): AsyncGenerator<api.Memory | api.ShownMemory, void, undefined> {
    return entriesOf<api.Memory | api.ShownMemory>(async (cursor) => {
      const page = await this.page(cursor === undefined ? options : { ...options, cursor }, call);
      return [page.results, page.next_cursor];
    });
  }

  /** Return one page of memories, newest first, and the cursor of the next. */
  page(options?: api.ListOptions & api.Whole, call?: CallOptions): Promise<api.Page>;
  page(options: api.ListOptions, call?: CallOptions): Promise<api.ShownPage>;
  page(options: api.ListOptions = {}, call: CallOptions = {}): Promise<api.Page | api.ShownPage> {
    const params = { ...this.#path(), query: { ...options, user_id: this.#userId } };
    return answerOf(this.#http.GET("/v1/agents/{agent}/memories", { params, ...optionsOf(call) }));
  }

  /** Return a memory. ApiError 404: the user has no such memory. */
  async get(id: string, call: CallOptions = {}): Promise<api.TaggedMemory> {
    // The request has no `fields` and no `format`, so that nothing is left out.
    return (await taggedAnswerOf(
      this.#http.GET("/v1/agents/{agent}/memories/{id}", { params: this.#one({ id }), ...optionsOf(call) }),
    )) as api.TaggedMemory;
  }

  /** Change a memory in place; return it as it is now. Without a change it is a TypeError. */
  async change(id: string, changes: api.ChangeOptions, call: ConditionalOptions = {}): Promise<api.TaggedMemory> {
    if (Object.values(changes ?? {}).every((value) => value === undefined)) {
      throw new TypeError("change: nothing to change: give one of importance, tags, metadata, expires_at, pinned, zone");
    }
    const options = { params: this.#one({ id }), body: changes, ...optionsOf(call) };
    return taggedAnswerOf(this.#http.PATCH("/v1/agents/{agent}/memories/{id}", options));
  }

  /** Delete a memory; the one that it replaced is visible again. */
  async delete(id: string, call: ConditionalOptions = {}): Promise<void> {
    const options = { params: this.#one({ id }), ...optionsOf(call) };
    await answerOf(this.#http.DELETE("/v1/agents/{agent}/memories/{id}", options));
  }

  /** Return all versions of a memory, oldest first; `id` may be that of any of them. */
  async history(id: string, call: CallOptions = {}): Promise<api.Memory[]> {
    const options = { params: this.#one({ id }), ...optionsOf(call) };
    return (await answerOf(this.#http.GET("/v1/agents/{agent}/memories/{id}/history", options))).results;
  }

  /** Yield the direct children of a memory, newest first; pages are read as they are needed. */
  children(id: string, call: CallOptions = {}): AsyncGenerator<api.Memory, void, undefined> {
    return entriesOf(async (cursor) => {
      const options = { params: this.#listed({ id }, cursor), ...optionsOf(call) };
      const page = await answerOf(this.#http.GET("/v1/agents/{agent}/memories/{id}/children", options));
      return [page.results, page.next_cursor];
    });
  }

  /** Return a memory with its descendants, up to the limits of the options or, without them, of the API. */
  tree(id: string, options: api.TreeOptions = {}, call: CallOptions = {}): Promise<api.Tree> {
    const { path } = this.#one({ id });
    const sent = { params: { path, query: { ...options, user_id: this.#userId } }, ...optionsOf(call) };
    return answerOf(this.#http.GET("/v1/agents/{agent}/memories/{id}/tree", sent));
  }

  /** Count the user's memories. */
  stats(call: CallOptions = {}): Promise<api.Stats> {
    return answerOf(this.#http.GET("/v1/agents/{agent}/stats", { params: this.#one({}), ...optionsOf(call) }));
  }

  /** Return the working memories of a session, most recently used first. */
  async working(sessionId: string, call: CallOptions = {}): Promise<api.Memory[]> {
    const options = { params: this.#one({ session_id: sessionId }), ...optionsOf(call) };
    return (await answerOf(this.#http.GET("/v1/agents/{agent}/sessions/{session_id}/working", options))).results;
  }

  /** Add a working memory to a session. If the session is full, the least recently used one is evicted. */
  keep(sessionId: string, content: string, options: api.KeepOptions = {}, call: CallOptions = {}): Promise<api.Kept> {
    const sent = { params: this.#one({ session_id: sessionId }), body: { ...options, content }, ...optionsOf(call) };
    return answerOf(this.#http.PUT("/v1/agents/{agent}/sessions/{session_id}/working", sent));
  }

  /** End a session; return the number of dropped memories by type. */
  end(sessionId: string, call: CallOptions = {}): Promise<api.Ended> {
    const options = { params: this.#one({ session_id: sessionId }), ...optionsOf(call) };
    return answerOf(this.#http.POST("/v1/agents/{agent}/sessions/{session_id}/end", options));
  }

  /** Record that one name relates to another. A request that is repeated may be counted twice. */
  relate(
    source: string,
    relation: api.RelationKind,
    target: string,
    call: CallOptions = {},
  ): Promise<api.SaidRelation> {
    const body = { user_id: this.#userId, source, relation, target };
    return answerOf(
      this.#http.PUT("/v1/agents/{agent}/relations", { params: this.#path(), body, ...optionsOf(call) }),
    );
  }

  /** Yield the names in the user's memories, those with the most first; pages are read as they are needed. */
  entities(call: CallOptions = {}): AsyncGenerator<api.NamedEntity, void, undefined> {
    return entriesOf(async (cursor) => {
      const options = { params: this.#listed({}, cursor), ...optionsOf(call) };
      const page = await answerOf(this.#http.GET("/v1/agents/{agent}/entities", options));
      return [page.results, page.next_cursor];
    });
  }

  /** Return one name, given as itself or by any of its aliases. ApiError 404: no memory or relation has it. */
  entity(name: string, call: CallOptions = {}): Promise<api.EntityDetails> {
    const options = { params: this.#one({ name }), ...optionsOf(call) };
    return answerOf(this.#http.GET("/v1/agents/{agent}/entities/{name}", options));
  }

  /** Rename an entity; its former name becomes an alias. If another entity has the new name, use `mergeEntity`. */
  renameEntity(name: string, newName: string, call: CallOptions = {}): Promise<api.EntityDetails> {
    return this.#changeEntity(name, { name: newName }, call);
  }

  /** Merge an entity into another existing one: its name becomes an alias, and its memories and relations move. */
  mergeEntity(name: string, into: string, call: CallOptions = {}): Promise<api.EntityDetails> {
    return this.#changeEntity(name, { merge_into: into }, call);
  }

  /** Return the user's name, and the number of memories with their first and last time. */
  details(call: CallOptions = {}): Promise<api.UserDetails> {
    const options = { params: { path: { agent: this.#agent, user_id: this.#userId } }, ...optionsOf(call) };
    return answerOf(this.#http.GET("/v1/agents/{agent}/users/{user_id}", options));
  }

  /** Name the user; create it if it does not exist. */
  setName(name: string, call: CallOptions = {}): Promise<api.UserDetails> {
    const params = { path: { agent: this.#agent, user_id: this.#userId } };
    return answerOf(
      this.#http.PUT("/v1/agents/{agent}/users/{user_id}", { params, body: { name }, ...optionsOf(call) }),
    );
  }

  /** Erase the memories that meet all conditions; return the receipt. TypeError: no condition, or an empty one. */
  async forget(options: api.ForgetOptions, call: WriteOptions = {}): Promise<api.Receipt> {
    return erase(this.#connection, this.#agent, { ...narrowed(options), user_id: this.#userId }, call);
  }

  /** Erase the user: all memories, and everything else that is stored about the user; return the receipt. */
  forgetEverything(options: api.ForgetEverythingOptions = {}, call: WriteOptions = {}): Promise<api.Receipt> {
    return erase(this.#connection, this.#agent, { ...options, user_id: this.#userId, everything: true }, call);
  }

  /** Return what `forget` would erase now. */
  async wouldForget(options: api.ForgetOptions, call: CallOptions = {}): Promise<api.Preview> {
    return preview(this.#connection, this.#agent, { ...narrowed(options), user_id: this.#userId }, call);
  }

  /** Return what `forgetEverything` would erase now. */
  wouldForgetEverything(options: api.ForgetEverythingOptions = {}, call: CallOptions = {}): Promise<api.Preview> {
    return preview(this.#connection, this.#agent, { ...options, user_id: this.#userId, everything: true }, call);
  }

  /**
   * Yield every memory of the user as one line of an export, as it arrives; see docs/transfer.md.
   *
   * ApiUnreachable: the export ended before its last line. Export again.
   */
  export(options: ExportOptions = {}, call: CallOptions = {}): AsyncGenerator<ExportedLine, void, undefined> {
    return exportLines(this.#connection, this.#agent, { ...options, user_id: this.#userId }, call);
  }

  /**
   * Import the lines of an export; they are sent as they are read. Importing the same lines again is safe.
   *
   * @param lines Lines as bytes or text, or as `export` yields them. An array is sent again after a failure; an iterator
   *   or an async iterable is not.
   */
  importMemories(lines: ImportedLines, options: ImportOptions = {}, call: CallOptions = {}): Promise<api.Imported> {
    return importLines(this.#connection, this.#agent, { ...options, user_id: this.#userId }, lines, call);
  }

  get #http() {
    return this.#connection.http;
  }

  #changeEntity(name: string, body: { name: string } | { merge_into: string }, call: CallOptions) {
    const options = { params: this.#one({ name }), body, ...optionsOf(call) };
    return answerOf(this.#http.PATCH("/v1/agents/{agent}/entities/{name}", options));
  }

  #path() {
    return { path: { agent: this.#agent } };
  }

  /** Return the parameters of a request about something of the user. */
  #one<Path extends object>(path: Path) {
    return { path: { agent: this.#agent, ...path }, query: { user_id: this.#userId } };
  }

  #listed<Path extends object>(path: Path, cursor: string | undefined) {
    const { query, ...params } = this.#one(path);
    return { ...params, query: { ...query, ...(cursor === undefined ? {} : { cursor }) } };
  }
}
