/** Convert between LangGraph's values, namespaces and items, and an agent's memories. */
import type { Item, MatchCondition, SearchItem } from "@langchain/langgraph-checkpoint";

import { stringify } from "./json.js";
import { fieldOf, isObject, type Value } from "./langgraph-filters.js";
import type { Memory, SearchResult } from "./types.js";

export type Namespace = readonly string[];

export const USER_ROOT = "memories";
export const OWN_ROOT = "langgraph";
/** Name of the metadata that has the value of an item. */
export const METADATA = "langgraph";
/**
 * Largest number of characters of an item's content: 2,048 tokens of 4 characters each.
 *
 * A longer value is stored completely, but only its beginning is embedded.
 */
export const MAX_CONTENT_CHARS = 8192;
const MAX_TTL_MINUTES = 100 * 366 * 24 * 60;

/** Return whether a namespace has the form `["memories", user, …]`, which determines its user. */
export function hasUser(namespace: Namespace): boolean {
  return namespace.length > 1 && namespace[0] === USER_ROOT;
}

/** Return a namespace without the store's own prefix. */
export function withoutOwnRoot(namespace: Namespace): string[] {
  return namespace.slice(namespace[0] === OWN_ROOT ? 1 : 0);
}

/** Return the parts of a path before its first wildcard. */
export function literalPrefix(path: Namespace): Namespace {
  const place = path.indexOf("*");
  return place < 0 ? path : path.slice(0, place);
}

/** Return whether a namespace begins or ends with the path of a condition, in which `*` matches any label. */
export function matchesCondition({ matchType, path }: MatchCondition, namespace: Namespace): boolean {
  if (path.length > namespace.length) return false;
  const first = matchType === "prefix" ? 0 : namespace.length - path.length;
  return path.every((label, place) => label === "*" || label === namespace[first + place]);
}

// Neither white space, nor a control character, nor one that renders as nothing, for example U+3164.
const VISIBLE =
  /[^\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{13430}-\u{1343f}\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/u;

/** Return whether a text has a visible character. The API refuses texts without one. */
export function isVisible(text: string): boolean {
  return VISIBLE.test(text);
}

/** Return the texts of a value at the paths as one text to embed; undefined if they have no visible character. */
export function textToEmbed(value: Value, paths: readonly string[]): string | undefined {
  // An item has one vector. LangGraph's own stores have one for each text.
  const text = paths.flatMap((path) => [...textsAt(value, stepsOf(path))]).join("\n");
  return isVisible(text) ? text : undefined;
}

/** Yield the texts at a path. An object or a list is its JSON. */
function* textsAt(value: unknown, [step, ...rest]: readonly string[]): Generator<string> {
  if (step === undefined) {
    if (value !== null && value !== undefined) yield typeof value === "object" ? stringify(value) : String(value);
  } else if (step.startsWith("{")) {
    for (const path of step.slice(1, -1).split(",")) yield* textsAt(value, [...stepsOf(path.trim()), ...rest]);
  } else if (step === "*") {
    if (typeof value === "object") for (const part of Object.values(value ?? {})) yield* textsAt(part, rest);
  } else if (Array.isArray(value)) {
    if (/^-?\d+$/.test(step)) yield* textsAt(value.at(Number(step)), rest);
  } else if (isObject(value)) yield* textsAt(fieldOf(value, step), rest);
}

/** Return the steps of a path like `chapters[*].title` or `{title,body}`; none for `$`, the whole value. */
function stepsOf(path: string): string[] {
  return path === "$" ? [] : (path.match(/\{[^}]*\}|[^.[\]{]+/g) ?? []);
}

/** Return the expiry of an item that is stored now. RangeError: the lifetime is not positive, or beyond 100 years. */
export function expiryOf(ttlMinutes: number): string {
  if (!(ttlMinutes > 0 && ttlMinutes <= MAX_TTL_MINUTES)) {
    throw new RangeError(`ttl: ${ttlMinutes} minutes: more than 0, and at most ${MAX_TTL_MINUTES} (a hundred years)`);
  }
  return new Date(Date.now() + ttlMinutes * 60_000).toISOString();
}

/** Return the item of a memory. Without an update, `updatedAt` is when the version began. */
export function itemOf(memory: Memory): Item {
  return {
    namespace: withoutOwnRoot(memory.namespace),
    key: memory.key ?? "",
    value: valueOf(memory),
    createdAt: new Date(memory.created_at),
    updatedAt: new Date(memory.updated_at ?? memory.valid_from ?? memory.created_at),
  };
}

/** Return the item of a memory that a search has found. */
export function foundItem(found: SearchResult["results"][number]): SearchItem {
  return { ...itemOf(found), score: found.score };
}

/** Return the value of an item. For a memory that was stored in another way, it is its content and metadata. */
function valueOf(memory: Memory): Value {
  const entry = memory.metadata[METADATA];
  const value = isObject(entry) ? entry["value"] : undefined;
  if (isObject(value)) return value;
  return { content: memory.content, metadata: memory.metadata };
}
