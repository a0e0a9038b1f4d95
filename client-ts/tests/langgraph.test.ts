/** The store for LangGraph.js against the API. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidNamespaceError } from "@langchain/langgraph-checkpoint";

import { Client } from "../src/index.js";
import { AgentMemoryStore, type StoreOptions } from "../src/langgraph.js";
import { matches, prefilter } from "../src/langgraph-filters.js";
import { textToEmbed } from "../src/langgraph-values.js";
import { agent, newUserId, recorded, refuse, send } from "./support.js";

function newStore(options: Partial<StoreOptions> = {}) {
  return new AgentMemoryStore(agent, { userId: newUserId(), threshold: -1, minSimilarity: -1, ...options });
}

const keysOf = (items: { key: string }[]) => items.map(({ key }) => key);

test("a value comes back unchanged", async () => {
  const store = newStore();
  const value = { text: "Pays by invoice", n: 2n ** 60n, half: 0.5, list: [1, null, { a: true }], empty: {}, long: "é".repeat(9_000) };
  await store.put(["notes", "ada"], "k", value);
  const item = await store.get(["notes", "ada"], "k");

  assert.deepEqual(item?.value, value);
  assert.deepEqual([item?.namespace, item?.key], [["notes", "ada"], "k"]);
  assert.ok(item?.createdAt instanceof Date && item.updatedAt >= item.createdAt);
  assert.equal(await store.get(["notes"], "k"), null);
});

test("a put replaces, and a deletion of nothing is no error", async () => {
  const store = newStore();
  await store.put(["n"], "k", { v: 1 });
  await store.put(["n"], "k", { v: 2 });

  assert.deepEqual((await store.get(["n"], "k"))?.value, { v: 2 });
  assert.equal((await store.search(["n"])).length, 1);
  await store.delete(["n"], "k");
  await store.delete(["n"], "k");
  assert.equal(await store.get(["n"], "k"), null);
});

test("a batch reads before it writes, and the last write of a key counts", async () => {
  const store = newStore();
  await store.put(["n"], "a", { v: 0 });
  const results = await store.batch([
    { namespace: ["n"], key: "a", value: { v: 1 } },
    { namespace: ["n"], key: "a" },
    { namespacePrefix: ["n"], limit: 10, offset: 0 },
    { namespace: ["n"], key: "a", value: { v: 2 } },
    { namespace: ["n"], key: "b", value: { v: 3 } },
    { matchConditions: [{ matchType: "prefix", path: ["n"] }], limit: 10, offset: 0 },
  ]);

  assert.deepEqual((results[1] as unknown as { value: object } | null)?.value, { v: 0 });
  assert.deepEqual(keysOf(results[2] as unknown as { key: string }[]), ["a"]);
  assert.deepEqual(results[5], [["n"]]);
  assert.deepEqual((await store.get(["n"], "a"))?.value, { v: 2 });
  assert.deepEqual((await store.get(["n"], "b"))?.value, { v: 3 });
});

test("an operation that fails keeps out none of the others", async () => {
  const store = newStore();
  const puts = [{ v: 1 }, { v: 2 }].map((value, place) => ({ namespace: ["n"], key: `${place}`, value }));
  const refused = { namespace: ["x".repeat(300)], key: "k", value: { v: 3 } };

  await assert.rejects(store.batch([...puts.slice(0, 1), refused, ...puts.slice(1)]), InvalidNamespaceError);
  assert.deepEqual(keysOf(await store.search(["n"])).sort(), ["0", "1"]);
});

test("items are searched by meaning and by filters of LangGraph", async () => {
  const store = newStore({ fields: ["text"] });
  for (const [key, value] of Object.entries({
    tea: { text: "Drinks tea", stars: 4, tags: ["hot"], at: { place: "home" } },
    mail: { text: "Answers mail at night", stars: 2.5, tags: [] },
    none: { other: 1, stars: "5" },
  })) {
    await store.put(["n"], key, value);
  }
  const found = await store.search(["n"], { query: "Drinks tea", limit: 1 });
  const cases: [object, string[]][] = [
    [{ stars: 4 }, ["tea"]],
    [{ stars: { $gt: 2, $lte: 4 } }, ["mail", "tea"]],
    [{ stars: { $gte: 5 } }, ["none"]],
    [{ stars: { $ne: 4 } }, ["mail", "none"]],
    [{ stars: { $in: [4, "5"] } }, ["none", "tea"]],
    [{ stars: { $nin: [4] } }, ["mail", "none"]],
    [{ tags: ["hot"] }, ["tea"]],
    [{ at: { place: "home" } }, ["tea"]],
    [{ text: null }, ["none"]],
    [{ text: "Drinks tea", stars: 4 }, ["tea"]],
  ];

  assert.deepEqual(keysOf(found), ["tea"]);
  assert.equal(typeof found[0]?.score, "number");
  for (const [filter, keys] of cases) {
    assert.deepEqual(keysOf(await store.search(["n"], { filter })).sort(), keys, JSON.stringify(filter));
    const ranked = keysOf(await store.search(["n"], { filter, query: "tea" })).sort();
    assert.deepEqual(ranked, keys.filter((key) => key !== "none"), `${JSON.stringify(filter)} with a query`);
  }
});

test("items without an index are not found by a query", async () => {
  const store = newStore();
  await store.put(["n"], "hidden", { text: "tea" }, false);
  await store.put(["n"], "named", { text: "tea", other: "coffee" }, ["other"]);

  assert.deepEqual(keysOf(await store.search(["n"], { query: "tea" })), ["named"]);
  assert.deepEqual(keysOf(await store.search(["n"], { query: " " })), ["named", "hidden"]);
});

test("a text without a visible character is stored, and lists as a query", async () => {
  const store = newStore({ fields: ["text"] });
  await store.put(["n"], "k", { text: "\u3164" });

  assert.deepEqual(keysOf(await store.search(["n"], { query: "\u2800" })), ["k"]);
});

test("results are cut by limit and offset, newest first", async () => {
  const store = newStore();
  for (const key of ["a", "b", "c"]) await store.put(["n", key], key, { text: key });

  assert.deepEqual(keysOf(await store.search(["n"], { limit: 2, offset: 1 })), ["b", "a"]);
  assert.deepEqual(await store.search(["n"], { limit: 0 }), []);
  assert.equal((await store.search(["n"], { query: "a", limit: 2, offset: 2 })).length, 1);
});

test("a prefix ends with a label", async () => {
  const store = newStore();
  await store.put(["doc"], "a", { v: 1 });
  await store.put(["docs"], "b", { v: 1 });

  assert.deepEqual(keysOf(await store.search(["doc"])), ["a"]);
});

test("namespaces are listed by prefix, suffix, wildcards and depth", async () => {
  const store = newStore();
  for (const namespace of [["a", "b", "c"], ["a", "d", "c"], ["b", "c"], ["a-b"]]) await store.put(namespace, "k", { v: 1 });

  assert.deepEqual(await store.listNamespaces(), [["a", "b", "c"], ["a", "d", "c"], ["a-b"], ["b", "c"]]);
  assert.deepEqual(await store.listNamespaces({ prefix: ["a"], maxDepth: 1 }), [["a"]]);
  assert.deepEqual(await store.listNamespaces({ prefix: ["*", "d"] }), [["a", "d", "c"]]);
  assert.deepEqual(await store.listNamespaces({ suffix: ["c"], limit: 1, offset: 2 }), [["b", "c"]]);
});

test("a namespace of a user belongs to that user, and no search covers other users", async () => {
  const [store, bob] = [newStore(), newUserId()];
  await store.put(["memories", bob], "k", { text: "of Bob" });
  await store.put(["own"], "k", { text: "of the store" });

  assert.equal((await agent.user(bob).stats()).total, 1);
  assert.deepEqual((await store.search(["memories", bob])).map(({ value }) => value), [{ text: "of Bob" }]);
  for (const prefix of [[], ["memories"]]) {
    const found = await store.search(prefix, { limit: 100 });
    assert.ok(found.every(({ namespace }) => namespace[1] !== bob), JSON.stringify(found));
  }
  assert.deepEqual(keysOf(await store.search([])), ["k"]);
});

test("a lifetime is more than 0 and at most a hundred years", async () => {
  const store = newStore();
  await store.put(["n"], "k", { v: 1 }, undefined, { ttl: 5 });

  assert.deepEqual((await store.get(["n"], "k"))?.value, { v: 1 });
  for (const ttl of [0, -1, Number.NaN, Infinity]) {
    await assert.rejects(store.put(["n"], "k", { v: 2 }, undefined, { ttl }), RangeError);
  }
});

test("an expiry is sent with the put", async () => {
  await recorded([send({ key: "k" })], async (url, seen) => {
    const store = new AgentMemoryStore(new Client(url).agent("a"), { userId: "u" });
    await store.put(["n"], "k", { v: 1 }, undefined, { ttl: 60 });
    const { expires_at } = JSON.parse(seen[0]?.body ?? "") as { expires_at: string };

    const minutes = (Date.parse(expires_at) - Date.now()) / 60_000;
    assert.ok(minutes > 55 && minutes <= 60, expires_at);
  });
});

test("the namespaces that LangGraph refuses are refused before a request", async () => {
  await recorded([], async (url, seen) => {
    const store = new AgentMemoryStore(new Client(url).agent("a"), { userId: "u" });
    for (const namespace of [[], ["a.b"], [""], ["langgraph"], [1 as unknown as string]]) {
      await assert.rejects(store.put(namespace, "k", { v: 1 }), InvalidNamespaceError);
    }
    await assert.rejects(store.batch([{ namespace: [1 as unknown as string], key: "k" }]), InvalidNamespaceError);
    await assert.rejects(store.batch([{ namespace: [], key: "k", value: { v: 1 } }]), InvalidNamespaceError);

    assert.deepEqual(seen, []);
  });
});

test("a batch with a transient error is sent again, once, under its key, and one that is refused item by item", async () => {
  const busy = { error: { status: 503, title: "Busy" } };
  const stored = { key: "k" };
  const answers = [send({ results: [busy, stored] }), send({ results: [stored, busy] }), refuse(422), send(stored), refuse(409)];
  await recorded(answers, async (url, seen) => {
    const store = new AgentMemoryStore(new Client(url, { retries: 0 }).agent("a"), { userId: "u" });
    const ops = ["a", "b"].map((key) => ({ namespace: ["n"], key, value: { v: 1 } }));
    await store.batch(ops);
    await assert.rejects(store.batch(ops), { name: "ApiError", status: 409 });

    assert.deepEqual(seen.map(({ url }) => url.split("?")[0]), [
      "/v1/agents/a/items/batch",
      "/v1/agents/a/items/batch",
      "/v1/agents/a/items/batch",
      "/v1/agents/a/items",
      "/v1/agents/a/items",
    ]);
    const [first, second, third] = seen.map(({ headers, body }) => [headers["idempotency-key"], body]);
    // Under another key, an item that was stored in spite of a 504 would replace what others have put since.
    assert.deepEqual(second, first);
    assert.notEqual(third?.[0], first?.[0]);
  });
});

test("a batch of many puts is split", async () => {
  const answers = [250, 50].map((size) => send({ results: Array.from({ length: size }, () => ({ key: "k" })) }));
  await recorded(answers, async (url, seen) => {
    const store = new AgentMemoryStore(new Client(url).agent("a"), { userId: "u" });
    await store.batch(Array.from({ length: 300 }, (_, key) => ({ namespace: ["n"], key: `${key}`, value: { v: 1 } })));

    const sizes = seen.map(({ body }) => (JSON.parse(body) as { items: unknown[] }).items.length);
    assert.deepEqual(sizes.sort(), [250, 50].sort());
  });
});

test("a search reads more while too few results match the filter", async () => {
  const result = (key: string, v: unknown) => ({
    key, namespace: ["langgraph", "n"], metadata: { langgraph: { value: { v } } }, created_at: "2026-01-01T00:00:00Z", score: 1,
  });
  const first = send({ results: [result("a", "x")] });
  const second = send({ results: [result("a", "x"), result("b", ["y"])] });
  await recorded([first, second], async (url, seen) => {
    const store = new AgentMemoryStore(new Client(url).agent("a"), { userId: "u" });
    const found = await store.search(["n"], { query: "q", filter: { v: ["y"] }, limit: 1 });

    assert.deepEqual(keysOf(found), ["b"]);
    const sent = seen.map(({ body }) => JSON.parse(body) as { top_k: number; include_scopes: string[] });
    assert.deepEqual(sent.map(({ top_k, include_scopes }) => [top_k, include_scopes]), [[1, []], [4, []]]);
  });
});

test("filters name their operators, and compare numbers", () => {
  assert.throws(() => matches({ a: 1 }, { a: { $regex: "x" } }), TypeError);
  assert.throws(() => matches({ a: 1 }, { a: { $gt: "soon" } }), TypeError);
  for (const a of [null, undefined, "", "text", [1], {}]) assert.equal(matches({ a }, { a: { $gte: 0 } }), false);
  assert.equal(matches({ at: "2026-01-01T00:00:00.000Z" }, { at: new Date("2026-01-01") }), true);
  assert.equal(matches({ at: "2027-01-01T00:00:00.000Z" }, { at: new Date("2026-01-01") }), false);
  assert.equal(matches({}, { toString: { $ne: null } }), false);
});

test("conditions of the API hold for whatever matches", () => {
  assert.deepEqual(prefilter({ a: "x", "b.c": "y", d: { $eq: null }, e: true, f: { $in: [1] }, g: " ", h: { k: 1 } }, "p"), [
    { "p.a": "x" },
    { "p.d": null },
  ]);
  assert.deepEqual(prefilter({ a: { $gt: 1 } }, "p"), [
    { "p.a": { ne: null } },
    { OR: [{ "p.a": { gt: 1 } }, { NOT: [{ "p.a": { gte: Number.MIN_SAFE_INTEGER } }] }] },
  ]);
  assert.equal(prefilter(Object.fromEntries(Array.from({ length: 99 }, (_, name) => [`f${name}`, "x"])), "p").length, 64);
});

test("the text at a path is found, and nothing where a value is null or inherited", () => {
  const value = { a: { b: ["x", { c: 7 }] }, n: null, t: " " };
  const cases = { $: JSON.stringify(value), "a.b[0]": "x", "a.b[-1].c": "7", "a.b[1]": '{"c":7}', "n.a": undefined, t: undefined };

  for (const [path, text] of Object.entries(cases)) assert.equal(textToEmbed(value, [path]), text, path);
  assert.equal(textToEmbed(value, ["constructor.name"]), undefined);
  assert.equal(textToEmbed(value, []), undefined);
  const chapters = { title: "T", chapters: [{ text: "one" }, { text: "two" }, null, { other: 1 }], by: { a: "A", b: "B" } };
  const several = { "chapters[*].text": "one\ntwo", "by.*": "A\nB", "{title,by.b}": "T\nB", "by.{a,b}": "A\nB" };
  for (const [path, text] of Object.entries(several)) assert.equal(textToEmbed(chapters, [path]), text, path);
  assert.equal(textToEmbed(chapters, ["title", "missing", "chapters[1].text"]), "T\ntwo");
});
