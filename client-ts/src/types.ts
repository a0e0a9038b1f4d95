/** Names for the types of the API that the handles take and return. */
import type { components, paths } from "./generated/api.js";

type Schemas = components["schemas"];
type Query<Path extends keyof paths> = paths[Path] extends { get: { parameters: { query?: infer Parameters } } }
  ? NonNullable<Parameters>
  : never;

export type AgentSummary = Schemas["AgentOut"];
export type AgentDetails = Schemas["AgentDetailOut"];
export type AgentState = Schemas["AgentStateOut"];
export type BatchResult = Schemas["BatchOut"];
export type Change = Schemas["ChangeOut"];
/** Part of the change log, oldest first. `next_cursor` is always set: store it, and continue from it later. */
export type ChangesPage = Schemas["ChangesOut"];
/** A text for a prompt, and the memories in it. */
export type Context = Schemas["ContextOut"];
export type ConversationStored = Schemas["ConversationOut"];
/** Number of memories that the end of a session dropped, by type. */
export type Ended = Schemas["EndedOut"];
export type EntityDetails = Schemas["EntityViewOut"];
export type Imported = Schemas["ImportedOut"];
export type ItemsResult = Schemas["ItemsStoredOut"];
export type ItemStored = Schemas["ItemStoredOut"];
/** A stored working memory, and the one that was `evicted` to make room. */
export type Kept = Schemas["KeptOut"];
export type ListedReceipt = Schemas["ListedReceiptOut"];
export type Memory = Schemas["MemoryOut"];
/** A memory or item with the tag of its version; null with an older API. */
export type TaggedMemory = Memory & { etag: string | null };
export type NamedEntity = Schemas["ListedEntityOut"];
export type NamespaceSize = Schemas["NamespaceOut"];
export type Page = Schemas["PageOut"];
/** Memories that an erasure would erase: counts, up to 100 ids, and the number of further ids. */
export type Preview = Schemas["WouldForgetOut"];
export type Receipt = Schemas["ReceiptOut"];
export type SaidRelation = Schemas["RelationOut"];
export type SearchResult = Schemas["SearchOut"];
/** A memory, a page, and an answer to a search, of which `fields` or `format: "compact"` left something out. */
export type ShownMemory = Schemas["ShownMemoryOut"];
export type ShownPage = Schemas["ShownPageOut"];
export type ShownSearchResult = Schemas["ShownSearchOut"];
export type Stats = Schemas["StatsOut"];
export type Stored = Schemas["StoredOut"];
export type Tree = Schemas["TreeOut"];
export type UserDetails = Schemas["UserDetailsOut"];
export type UserSummary = Schemas["UserOut"];
export type UserToken = Schemas["TokenOut"];

/** A memory of `addMany`, with its user. */
export type NewMemory = Schemas["MemoryIn"];
/** An item of `putItems`, with its namespace. */
export type NewItem = Schemas["PlacedItemIn"];
/** One message of a conversation. */
export type Message = Schemas["TurnIn"];
export type RelationKind = Schemas["RelationIn"]["relation"];
export type Verb = Schemas["TokenIn"]["verbs"][number];

/** What a memory may have besides its user and its content. */
export type MemoryOptions = Omit<NewMemory, "user_id" | "content">;
export type ConversationOptions = Omit<Schemas["ConversationIn"], "user_id" | "messages">;
/** What a context may have besides its user and its query. Without a query it needs `messages`, or `vector`. */
export type ContextFields = Partial<Omit<Schemas["ContextIn"], "user_id" | "query">>;
/** What narrows a search. */
export type SearchOptions = Omit<Schemas["SearchIn"], "user_id" | "query">;
/** What narrows a list. */
export type ListOptions = Omit<Query<"/v1/agents/{agent}/memories">, "user_id">;
export type TreeOptions = Omit<Query<"/v1/agents/{agent}/memories/{id}/tree">, "user_id">;
export type ChangesOptions = Query<"/v1/agents/{agent}/changes">;
export type StatsOptions = Query<"/v1/agents/{agent}/stats">;
export type UserListOptions = Query<"/v1/agents/{agent}/users">;
export type ReceiptOptions = Query<"/v1/agents/{agent}/receipts">;
export type KeepOptions = Omit<Schemas["WorkingIn"], "content">;
/** What an item may have besides its namespace and its content. Without a `key` the API generates one. */
export type ItemOptions = Omit<NewItem, "namespace" | "content">;
/** Owner of an item or of a namespace; needed if the namespace does not contain the user. */
export type OwnerOptions = { user_id?: string };
/** Where an item is, besides its namespace and key. */
export type AddressOptions = Omit<Query<"/v1/agents/{agent}/items">, "namespace" | "key">;
/** Which memories to erase: at least one of `filters`, `older_than` and `zone`, and none of them empty. */
export type ForgetOptions = Pick<Partial<Schemas["ForgetIn"]>, "filters" | "older_than" | "zone" | "crypto">;
/** With `crypto: true` the keys of the user's zones are deleted before the memories. */
export type ForgetEverythingOptions = Pick<ForgetOptions, "crypto">;
/** What may change in place. */
export type ChangeOptions = Schemas["ChangeIn"];
/** A field of a memory that a search or a list may return. */
export type Field = NonNullable<SearchOptions["fields"]>[number];
/** Nothing of a memory is left out of the answer. */
export type Whole = { fields?: never; format?: "full" };
