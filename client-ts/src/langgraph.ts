/**
 * LangGraph.js store that keeps its items in an agent's memory. It needs the package `@langchain/langgraph-checkpoint`.
 *
 *     const store = new AgentMemoryStore(new Client().agent("langgraph-bot"), { userId: "service", fields: ["text"] });
 *
 * An item's metadata contains the value unchanged; only its text is embedded. The store reads items only, no other memories.
 *
 * A namespace `["memories", X, …]` belongs to user X. Any other belongs to the store's own user, and is stored below the
 * first label `langgraph`, which LangGraph reserves.
 */
import {
  BaseStore,
  InvalidNamespaceError,
  type GetOperation,
  type Item,
  type ListNamespacesOperation,
  type Operation,
  type OperationResults,
  type PutOperation,
  type SearchItem,
  type SearchOperation,
} from "@langchain/langgraph-checkpoint";

import type { Agent } from "./agents.js";
import { stringify } from "./json.js";
import { matches, prefilter } from "./langgraph-filters.js";
import {
  MAX_CONTENT_CHARS,
  METADATA,
  OWN_ROOT,
  USER_ROOT,
  expiryOf,
  foundItem,
  hasUser,
  isVisible,
  itemOf,
  literalPrefix,
  matchesCondition,
  textToEmbed,
  withoutOwnRoot,
  type Namespace,
} from "./langgraph-values.js";
import { ApiError } from "./problems.js";
import { REPEATED } from "./retries.js";
import { beginning } from "./texts.js";
import type { NewItem, SearchOptions } from "./types.js";

/** Options of a store. */
export interface StoreOptions {
  /** Owner of the namespaces that do not begin with `memories` and a user. */
  userId: string;
  /**
   * Paths of the value's texts to embed, unless `put` names others. `$`, the default, is the whole value as JSON. An item has
   * one vector, of its texts together.
   */
  fields?: readonly string[];
  /** Least score and similarity of search results; the agent's settings by default. */
  threshold?: number;
  minSimilarity?: number;
}

/** Namespaces below a prefix, and the user that they belong to. */
type Tree = { prefix: Namespace; userId: string };
/** A write of a batch, its place in the batch, and the item to store; no item for a deletion. */
type Write = { place: number; op: PutOperation; item?: NewItem };
type Outcome = { value: unknown } | { error: unknown };
type BatchAnswer = Awaited<ReturnType<Agent["putItems"]>>;
type BatchProblem = ReturnType<typeof problemsIn>[number];

/** Statuses that concern a batch request as a whole: each of its items is then written by a request of its own. */
const BATCH_REJECTED = new Set([404, 405, 413, 422]);
// Limits of one request. A larger one would be slow; the API accepts bodies up to 16 MiB with 500,000 JSON values.
const MAX_PUTS = 250;
const MAX_PUT_CHARS = 2 ** 21;
const MAX_PUT_VALUES = 2 ** 18;
const MAX_TOP_K = 10_000;
const PAGE = 1_000;
// A longer query is truncated.
const MAX_QUERY_CHARS = 65_536;

/**
 * Items of one agent as a LangGraph store.
 *
 * `ttl` counts from the put, by this process's clock, in minutes. `index: false` excludes an item from searches with a query.
 *
 * Each call may throw ApiError and ApiUnreachable, and InvalidNamespaceError if the API refuses a label. If an operation of
 * a batch fails, the rest is still carried out, and then the first error is thrown.
 */
export class AgentMemoryStore extends BaseStore {
  readonly #agent: Agent;
  readonly #userId: string;
  readonly #fields: readonly string[];
  readonly #gates: Pick<SearchOptions, "threshold" | "min_similarity">;

  constructor(agent: Agent, { userId, fields = ["$"], threshold, minSimilarity }: StoreOptions) {
    super();
    this.#agent = agent;
    this.#userId = userId;
    this.#fields = fields;
    this.#gates = {
      ...(threshold === undefined ? {} : { threshold }),
      ...(minSimilarity === undefined ? {} : { min_similarity: minSimilarity }),
    };
  }

  /** Store an item. `ttl` is its lifetime in minutes. */
  override async put(
    namespace: string[],
    key: string,
    value: Item["value"],
    index?: false | string[],
    { ttl }: { ttl?: number } = {},
  ): Promise<void> {
    const batch = (ops: readonly PutOperation[]) => this.batch(ops.map((op) => (ttl === undefined ? op : { ...op, ttl })));
    // The base class checks the namespace, and has no `ttl`.
    await super.put.call({ batch } as unknown as AgentMemoryStore, namespace, key, value, index);
  }

  /** Carry out operations; return their results in order. Reads do not see the writes of the same batch. */
  async batch<Op extends readonly Operation[]>(operations: Op): Promise<OperationResults<Op>> {
    const outcomes = new Array<Outcome>(operations.length);
    // Of several writes of a key only the last is carried out.
    const writes = new Map<string, Write>();
    const reads: Promise<void>[] = [];
    for (const [place, op] of operations.entries()) {
      if ("value" in op) writes.set(addressOf(op), { place, op });
      else reads.push(settle(() => this.#read(op)).then((outcome) => void (outcomes[place] = outcome)));
    }
    await Promise.all(reads);
    await this.#write([...writes.values()], outcomes);
    const results = operations.map((op, place) => {
      const outcome = outcomes["value" in op ? (writes.get(addressOf(op))?.place ?? place) : place];
      if (outcome && "error" in outcome) throw outcome.error;
      return outcome?.value;
    });
    return results as OperationResults<Op>;
  }

  #read(op: GetOperation | SearchOperation | ListNamespacesOperation): Promise<unknown> {
    if ("namespacePrefix" in op) return inLangGraph(op.namespacePrefix, () => this.#search(op));
    if ("key" in op) return inLangGraph(op.namespace, () => this.#get(op));
    return inLangGraph([], () => this.#listNamespaces(op));
  }

  async #write(writes: readonly Write[], outcomes: Outcome[]): Promise<void> {
    const puts: Required<Write>[] = [];
    const pending: Promise<void>[] = [];
    const record = (place: number) => (outcome: Outcome) => void (outcomes[place] = outcome);
    for (const { place, op } of writes) {
      try {
        if (op.value === null) pending.push(settle(() => this.#delete(op)).then(record(place)));
        else puts.push({ place, op, item: this.#itemOf(op) });
      } catch (error) {
        outcomes[place] = { error };
      }
    }
    for (const part of split(puts)) pending.push(this.#putAll(part, outcomes));
    await Promise.all(pending);
  }

  /** Put items in one request, which is repeated once if an item has a transient error. */
  async #putAll(puts: readonly Required<Write>[], outcomes: Outcome[]): Promise<void> {
    const [first] = puts;
    if (puts.length === 1 && first) {
      outcomes[first.place] = await settle(() => this.#put(first.item));
      return;
    }
    // Repeat the whole request, because its idempotency key covers the positions of the items. Under another key, an item that
    // was stored in spite of its 504 would replace what others have put since.
    const idempotencyKey = crypto.randomUUID();
    const put = () => settle(() => this.#agent.putItems(puts.map(({ item }) => item), { idempotencyKey }));
    const answer = await put();
    if ("error" in answer) {
      const isForEach = answer.error instanceof ApiError && BATCH_REJECTED.has(answer.error.status);
      for (const put of puts) outcomes[put.place] = isForEach ? await settle(() => this.#put(put.item)) : answer;
      return;
    }
    const problems = problemsIn(answer.value as BatchAnswer);
    const isTransient = (problem: BatchProblem) => problem !== undefined && REPEATED.has(problem.status);
    const again = problems.some(isTransient) ? await put() : answer;
    const latest = "error" in again ? problems : problemsIn(again.value as BatchAnswer);
    for (const [number, put] of puts.entries()) {
      const problem = isTransient(problems[number]) ? latest[number] : problems[number];
      outcomes[put.place] = problem ? { error: refusal(new ApiError(problem.status, problem), put.op.namespace) } : { value: undefined };
    }
  }

  async #put({ namespace, content, ...options }: NewItem): Promise<void> {
    await inLangGraph(namespace, () => this.#agent.putItem(namespace, content, options));
  }

  async #delete({ namespace, key }: PutOperation): Promise<void> {
    const { prefix, userId } = this.#place(namespace);
    await orNull(inLangGraph(namespace, () => this.#agent.deleteItem(prefix, key, { user_id: userId })));
  }

  async #get({ namespace, key }: GetOperation): Promise<Item | null> {
    const { prefix, userId } = this.#place(namespace);
    const memory = await orNull(this.#agent.getItem(prefix, key, { user_id: userId }));
    return memory && itemOf(memory);
  }

  #itemOf(op: PutOperation & { ttl?: number }): NewItem {
    // `put` checks this; a batch comes without.
    if (op.namespace.length === 0) throw new InvalidNamespaceError("Namespace cannot be empty.");
    const { prefix, userId } = this.#place(op.namespace);
    const value = op.value ?? {};
    const paths = op.index === undefined ? this.#fields : op.index || [];
    const text = textToEmbed(value, paths);
    return {
      namespace: [...prefix],
      user_id: userId,
      key: op.key,
      content: beginning(text ?? stringify(value), MAX_CONTENT_CHARS),
      metadata: { [METADATA]: { value, index: text !== undefined } },
      ...(op.ttl === undefined ? {} : { expires_at: expiryOf(op.ttl) }),
    };
  }

  async #search(op: SearchOperation): Promise<SearchItem[]> {
    const { offset = 0, limit = 10, query = "" } = op;
    const wanted = offset + limit;
    const hasQuery = isVisible(query);
    const found: SearchItem[] = [];
    for (const tree of this.#trees(op.namespacePrefix)) {
      found.push(...(await (hasQuery ? this.#searchByQuery(op, tree, wanted) : this.#listNewest(op, tree, wanted))));
    }
    if (hasQuery) found.sort((one, other) => (other.score ?? 0) - (one.score ?? 0));
    return found.slice(offset, wanted);
  }

  /** Return the best items. More are read while too few match the part of the filter that the API does not evaluate. */
  async #searchByQuery({ query = "", filter }: SearchOperation, tree: Tree, wanted: number): Promise<SearchItem[]> {
    const conditions = prefilter(filter, `metadata.${METADATA}.value`);
    const own = { key: { ne: null }, [`metadata.${METADATA}.index`]: { ne: false } };
    const filters = conditions.length > 0 ? { ...own, AND: conditions } : own;
    const options = { ...this.#gates, namespace: [...tree.prefix], filters, include_scopes: [] };
    const user = this.#agent.user(tree.userId);
    for (let size = Math.max(wanted, 1); ; size *= 4) {
      const top_k = Math.min(size, MAX_TOP_K);
      const { results } = await user.search(beginning(query, MAX_QUERY_CHARS), { ...options, top_k });
      const found = results.map(foundItem).filter((item) => matches(item.value, filter));
      if (found.length >= wanted || results.length < top_k || top_k === MAX_TOP_K) return found.slice(0, wanted);
    }
  }

  /** Return items without a score, newest first. */
  async #listNewest({ filter }: SearchOperation, tree: Tree, wanted: number): Promise<SearchItem[]> {
    const limit = filter ? PAGE : Math.min(Math.max(wanted, 0) + 1, PAGE);
    const found: SearchItem[] = [];
    const memories = this.#agent.user(tree.userId).memories({ namespace: [...tree.prefix], limit });
    for await (const memory of memories) {
      if (found.length >= wanted) break;
      const item = memory.key == null ? undefined : itemOf(memory);
      if (item && matches(item.value, filter)) found.push(item);
    }
    return found;
  }

  async #listNamespaces(op: ListNamespacesOperation): Promise<string[][]> {
    const { matchConditions = [], maxDepth, limit, offset } = op;
    const prefix = matchConditions.find(({ matchType }) => matchType === "prefix")?.path ?? [];
    const cut = new Map<string, string[]>();
    for (const tree of this.#trees(literalPrefix(prefix))) {
      for (const size of await this.#agent.namespaces(tree.prefix, { user_id: tree.userId })) {
        const namespace = withoutOwnRoot(size.namespace);
        if (!matchConditions.every((condition) => matchesCondition(condition, namespace))) continue;
        const shortened = namespace.slice(0, maxDepth);
        cut.set(JSON.stringify(shortened), shortened);
      }
    }
    return [...cut.values()].sort(byLabels).slice(offset, offset + limit);
  }

  #place(namespace: Namespace): Tree {
    const wrong = namespace.find((label) => typeof label !== "string");
    if (wrong !== undefined) throw new InvalidNamespaceError(`Namespace: ${String(wrong)} is no text`);
    if (hasUser(namespace)) return { prefix: namespace, userId: namespace[1] ?? "" };
    return { prefix: [OWN_ROOT, ...namespace], userId: this.#userId };
  }

  /** Return the trees that a prefix covers. A prefix without a user covers the store's own user only. */
  #trees(prefix: Namespace): Tree[] {
    const isWithoutUser = prefix.length === 0 || (prefix.length === 1 && prefix[0] === USER_ROOT);
    const own = { prefix: [USER_ROOT, this.#userId], userId: this.#userId };
    return isWithoutUser ? [this.#place(prefix), own] : [this.#place(prefix)];
  }
}

function addressOf({ namespace, key }: PutOperation): string {
  return JSON.stringify([namespace, key]);
}

/** Order namespaces label by label. */
function byLabels(one: Namespace, other: Namespace): number {
  const place = one.findIndex((label, at) => label !== other[at]);
  if (place < 0) return one.length - other.length;
  const [label, second] = [one[place] ?? "", other[place]];
  return second === undefined || label > second ? 1 : -1;
}

/** Split puts into parts that fit into one request each. */
function* split(puts: readonly Required<Write>[]): Generator<Required<Write>[]> {
  let part: Required<Write>[] = [];
  let [chars, values] = [0, 0];
  for (const put of puts) {
    const text = stringify(put.item.metadata);
    const size = text.length + put.item.content.length;
    // Every string has two quotes. Escaped quotes within strings count too: the estimate is on the safe side.
    const count = (text.match(/["{[]/g)?.length ?? 0) + 16;
    const isFull = part.length >= MAX_PUTS || chars + size > MAX_PUT_CHARS || values + count > MAX_PUT_VALUES;
    if (part.length > 0 && isFull) {
      yield part;
      [part, chars, values] = [[], 0, 0];
    }
    part.push(put);
    chars += size;
    values += count;
  }
  if (part.length > 0) yield part;
}

/** Return the problem of each item of a batch, undefined if it was stored. */
function problemsIn({ results }: BatchAnswer) {
  return results.map((result) => ("error" in result ? result.error : undefined));
}

async function settle(act: () => Promise<unknown>): Promise<Outcome> {
  try {
    return { value: await act() };
  } catch (error) {
    return { error };
  }
}

async function orNull<T>(asked: Promise<T>): Promise<T | null> {
  return asked.catch((error: unknown) => {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  });
}

/** Return a result. The API's refusal of a label is LangGraph's error. */
async function inLangGraph<T>(namespace: Namespace, act: () => Promise<T>): Promise<T> {
  try {
    return await act();
  } catch (error) {
    throw error instanceof ApiError ? refusal(error, namespace) : error;
  }
}

function refusal(error: ApiError, namespace: Namespace): Error {
  const messageOf = (name: string) =>
    error.problem.errors?.find(({ field }) => field.split("[")[0] === name)?.message;
  const message = messageOf("namespace") ?? (hasUser(namespace) ? messageOf("user_id") : undefined);
  if (error.status !== 422 || message === undefined) return error;
  return Object.assign(
    new InvalidNamespaceError(`Namespace ${JSON.stringify(namespace)} has a label that the API refuses: ${message}`),
    { cause: error },
  );
}
