/** The calls of the handles, each against the API. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, Client, estimateTokens, formatContext, PreconditionFailed, type ForgetOptions } from "../src/index.js";
import { agent, all, client, newUserId, recorded, refuse, send, someone, type Handler } from "./support.js";

const isMissing = (error: unknown) => error instanceof ApiError && error.status === 404;

test("agents are listed, and the API names its version", async () => {
  const api = new Client(process.env["AGENTMEMORY_URL"]);
  assert.equal(api.apiVersion, undefined);
  const agents = await api.agents();

  assert.ok(agents.some(({ agent, ready }) => agent === process.env["EXAMPLE_AGENT"] && ready));
  assert.match(api.apiVersion ?? "", /^\d+\.\d+/);
});

test("a conversation is stored turn by turn", async () => {
  const ada = someone();
  const stored = await ada.converse([{ role: "user", content: "I moved to Bern" }], { session_id: "s" });

  assert.equal(stored.turns.length, 1);
  assert.equal((await ada.get(stored.turns[0] ?? "")).content, "I moved to Bern");
});

test("versions are listed by any of their ids", async () => {
  const ada = someone();
  const old = await ada.add("Lives in Bern");
  const newer = await ada.add("Lives in Oslo", { supersedes: old.id });

  for (const id of [old.id, newer.id]) {
    assert.deepEqual((await ada.history(id)).map(({ content }) => content), ["Lives in Bern", "Lives in Oslo"]);
  }
});

test("children and the tree of a memory are read", async () => {
  const ada = someone();
  const root = await ada.add("A project");
  for (const content of ["one", "two"]) await ada.add(content, { parent_id: root.id });
  const tree = await ada.tree(root.id, { depth: 1 });

  assert.deepEqual((await all(ada.children(root.id))).map(({ content }) => content), ["two", "one"]);
  assert.deepEqual(tree.root.children.map(({ content }) => content), ["one", "two"]);
  assert.equal(tree.truncated, false);
});

test("memories are counted for a user and for the agent", async () => {
  const ada = someone();
  await ada.add("one");

  assert.equal((await ada.stats()).total, 1);
  assert.ok((await agent.stats()).total >= 1);
});

test("a session keeps working memories until its end", async () => {
  const ada = someone();
  const kept = await ada.keep("s", "Looks for a flat", { importance: "high" });

  assert.equal(kept.event, "ADD");
  assert.deepEqual((await ada.working("s")).map(({ content }) => content), ["Looks for a flat"]);
  assert.equal((await ada.end("s")).dropped, 1);
  assert.deepEqual(await ada.working("s"), []);
});

test("names are related, listed, renamed and merged", async () => {
  const entity = send({ name: "Ada", aliases: [] });
  const pages = [send({ results: [{ name: "Ada" }], next_cursor: "c" }), send({ results: [{ name: "Bo" }], next_cursor: null })];
  await recorded([send({ strength: 1 }), entity, entity, entity, ...pages], async (url, seen) => {
    const ada = new Client(url).agent("a").user("u");
    await ada.relate("Ada", "works_on", "Engine");
    await ada.entity("Ada L.");
    await ada.renameEntity("Ada", "Ada Lovelace");
    await ada.mergeEntity("A/L", "Ada");

    assert.deepEqual((await all(ada.entities())).map(({ name }) => name), ["Ada", "Bo"]);
    assert.deepEqual(seen.map(({ method, url, body }) => [method, url, body].join(" ").trim()), [
      'PUT /v1/agents/a/relations {"user_id":"u","source":"Ada","relation":"works_on","target":"Engine"}',
      "GET /v1/agents/a/entities/Ada%20L.?user_id=u",
      'PATCH /v1/agents/a/entities/Ada?user_id=u {"name":"Ada Lovelace"}',
      'PATCH /v1/agents/a/entities/A%2FL?user_id=u {"merge_into":"Ada"}',
      "GET /v1/agents/a/entities?user_id=u",
      "GET /v1/agents/a/entities?user_id=u&cursor=c",
    ]);
  });
});

test("searches of many queries come back in their order", async () => {
  const ada = someone();
  await ada.add("Pays by invoice");
  const queries = Array.from({ length: 20 }, (_, number) => `question ${number}`);
  const results = await ada.searchMany(queries, { threshold: -1 });

  assert.deepEqual(results.map(({ results }) => results.length), queries.map(() => 1));
  assert.deepEqual(await ada.searchMany([]), []);
});

test("searches of many queries are 8 at a time and end with the first error", async () => {
  const release: (() => void)[] = [];
  const held: Handler = (request, answer) => void release.push(() => send({ results: [] })(request, answer));
  const info = send({ agent: "a" });
  const answers = [...Array.from({ length: 7 }, () => held), refuse(400), ...Array.from({ length: 30 }, () => info)];
  await recorded(answers, async (url, seen) => {
    const queries = Array.from({ length: 30 }, (_, number) => `${number}`);
    const one = new Client(url).agent("a");
    await assert.rejects(one.user("u").searchMany(queries), ApiError);
    for (const answer of release) answer();
    await one.info();

    assert.deepEqual(seen.map(({ method }) => method), [...Array.from({ length: 8 }, () => "POST"), "GET"]);
  });
});

test("a context for a prompt has the memories that bear on a query", async () => {
  const ada = someone();
  const stored = await ada.add("Pays by invoice");
  const context = await ada.context("how does she pay?", { budget_tokens: 500 });

  assert.match(context.text, /Pays by invoice/);
  assert.ok(JSON.stringify(context).includes(stored.id));
});

test("a search returns only the named fields", async () => {
  const ada = someone();
  await ada.add("Pays by invoice");
  const { results } = await ada.searchFields(["content"], "how?", { threshold: -1 });

  assert.deepEqual(results.map((found) => Object.keys(found).sort()), [["content", "score"]]);
});

test("a page has the cursor of the next", async () => {
  const ada = someone();
  for (const content of ["one", "two"]) await ada.add(content);
  const first = await ada.page({ limit: 1 });
  const second = await ada.page({ limit: 1, cursor: first.next_cursor });

  assert.deepEqual([...first.results, ...second.results].map(({ content }) => content), ["two", "one"]);
});

test("a list goes on from a cursor", async () => {
  const ada = someone();
  for (const content of ["one", "two"]) await ada.add(content);
  const { next_cursor } = await ada.page({ limit: 1 });

  assert.deepEqual((await all(ada.memories({ cursor: next_cursor }))).map(({ content }) => content), ["one"]);
});

test("an erasure is previewed, carried out and listed", async () => {
  const userId = newUserId();
  const ada = agent.user(userId);
  await ada.add("a note", { tags: ["note"] });

  assert.equal((await ada.wouldForget({ filters: { tags: "note" } })).counts.total, 1);
  assert.equal((await ada.wouldForgetEverything()).counts.total, 1);
  assert.equal((await agent.wouldForget(userId, { filters: { tags: "note" } })).counts.total, 1);
  assert.equal((await agent.wouldForgetEverything(userId)).counts.total, 1);
  const receipt = await agent.forget(userId, { filters: { tags: "note" } });
  assert.equal((await agent.forgetEverything(userId)).counts.total, 0);
  assert.ok((await all(agent.receipts({ user_id: userId, limit: 1 }))).some(({ id }) => id === receipt.id));
  for (const options of [{}, { filters: {} }, { crypto: true }] as ForgetOptions[]) {
    await assert.rejects(ada.wouldForget(options), TypeError);
    await assert.rejects(agent.forget(userId, options), TypeError);
    await assert.rejects(agent.wouldForget(userId, options), TypeError);
  }
});

test("items are put, read, listed and deleted", async () => {
  const user_id = newUserId();
  const place = ["settings", "ui"];
  const stored = await agent.putItem(place, "Prefers dark mode", { key: "theme", user_id, metadata: { id: 2n ** 60n } });
  const batch = await agent.putItems([
    { namespace: place, key: "size", user_id, content: "Large" },
    { namespace: place, key: "none", user_id, content: " " },
  ]);

  assert.equal(stored.key, "theme");
  assert.deepEqual(batch.results.map((result) => "error" in result), [false, true]);
  assert.deepEqual((await agent.getItem(place, "theme", { user_id })).metadata, { id: 2n ** 60n });
  assert.deepEqual((await all(agent.keys(place, { user_id }))).sort(), ["size", "theme"]);
  assert.deepEqual(await agent.namespaces([], { user_id }), [{ namespace: place, items: 2 }]);
  assert.deepEqual(await agent.namespaces(["other"], { user_id }), []);
  assert.ok(Array.isArray(await agent.itemVersions(place, "theme", { user_id })));
  await agent.deleteItem(place, "theme", { user_id });
  await assert.rejects(agent.getItem(place, "theme", { user_id }), isMissing);
});

test("users are listed over pages", async () => {
  const userId = newUserId();
  await agent.user(userId).add("one");

  assert.ok((await all(agent.users())).some(({ user_id, memories }) => user_id === userId && memories === 1));
});

test("the pages of users and receipts are followed", async () => {
  const users = [send({ results: [{ user_id: "a" }], next_cursor: "c" }), send({ results: [{ user_id: "b" }], next_cursor: null })];
  const receipts = [send({ results: [{ id: "r" }], next_before: "t" }), send({ results: [{ id: "s" }], next_before: null })];
  await recorded([...users, ...receipts], async (url, seen) => {
    const one = new Client(url).agent("a");

    assert.deepEqual((await all(one.users({ prefix: "u" }))).map(({ user_id }) => user_id), ["a", "b"]);
    assert.deepEqual((await all(one.receipts({ user_id: "u" }))).map(({ id }) => id), ["r", "s"]);
    assert.deepEqual(seen.map(({ url }) => url), [
      "/v1/agents/a/users?prefix=u",
      "/v1/agents/a/users?prefix=u&cursor=c",
      "/v1/agents/a/receipts?user_id=u",
      "/v1/agents/a/receipts?user_id=u&before=t",
    ]);
  });
});

test("a token is asked for with its verbs", async () => {
  await recorded([send({ token: "amu_x", expires_at: "2027-01-01T00:00:00Z" })], async (url, seen) => {
    const minted = await new Client(url).agent("a").mintToken("ada", ["read"], { ttl_seconds: 60 });

    assert.equal(minted.token, "amu_x");
    assert.deepEqual(JSON.parse(seen[0]?.body ?? ""), { user_id: "ada", verbs: ["read"], ttl_seconds: 60 });
  });
});

test("tools are those of the agent, in either form", async () => {
  const [openai, mcp] = [await agent.tools(), await agent.tools({ format: "mcp" })];

  assert.equal(openai[0]?.["type"], "function");
  assert.ok(mcp.some(({ name }) => name === "search"));
});

test("the change log is read from a cursor", async () => {
  const page = await agent.changes({ user_id: newUserId(), limit: 1 });

  assert.deepEqual(page.results, []);
  assert.deepEqual((await agent.changes({ cursor: page.next_cursor, user_id: "u" })).results, []);
});

for (const [name, signal, reason] of [
  ["AbortError", AbortSignal.abort(), { name: "AbortError" }],
  ["own reason", AbortSignal.abort(new RangeError("enough")), { name: "RangeError", message: "enough" }],
] as const) {
  test(`a call that is cancelled throws the reason: ${name}`, async () => {
    await assert.rejects(agent.info({ signal }), reason);
    await assert.rejects(someone().search("q", {}, { signal }), reason);
    await assert.rejects(all(someone().export({}, { signal })), reason);
  });
}

test("a call is cancelled while it waits for its answer", async () => {
  const stop = new AbortController();
  await recorded([() => stop.abort(new RangeError("enough"))], async (url, seen) => {
    const asked = new Client(url).agent("a").user("u").add("c", {}, { signal: stop.signal });
    await assert.rejects(asked, { name: "RangeError", message: "enough" });

    assert.equal(seen.length, 1);
  });
});

test("an erasure and a batch may take longer than the client's time-out", async () => {
  const late = (body: object): Handler => (request, answer) => void setTimeout(() => send(body)(request, answer), 200);
  await recorded([late({ id: "r" }), late({ results: [] })], async (url, seen) => {
    const one = new Client(url, { timeoutMs: 20, retries: 0 }).agent("a");
    await one.user("u").forgetEverything();
    await one.addMany([]);

    assert.equal(seen.length, 2);
  });
});

test("a write is sent under the key of the caller", async () => {
  await recorded([send({ id: "i" }, {}), send({ results: [] })], async (url, seen) => {
    const one = new Client(url).agent("a");
    await one.user("u").add("c", {}, { idempotencyKey: "order-7" });
    await one.putItems([], { idempotencyKey: "schlüssel" });

    const keys = seen.map(({ headers }) => Buffer.from(`${headers["idempotency-key"]}`, "latin1").toString());
    assert.deepEqual(keys, ["order-7", "schlüssel"]);
  });
});

test("the error of a function that returns the token is thrown as it is", async () => {
  const away = new Client("http://127.0.0.1:9", { token: () => Promise.reject(new RangeError("no file")) });

  await assert.rejects(away.agent("a").info(), { name: "RangeError", message: "no file" });
});

test("a proxy's page in the place of an answer is ApiUnreachable", async () => {
  const page = (_: unknown, answer: import("node:http").ServerResponse) =>
    void answer.writeHead(200, { "Content-Type": "application/json" }).end("<html>");
  await recorded([page], async (url) => {
    await assert.rejects(new Client(url).agent("a").info(), { name: "ApiUnreachable" });
  });
});

test("memories become a section of a prompt", () => {
  const memories = [{ content: "one\nline" }, { content: null }, "  ", "a long one that does not fit", "two"];

  assert.equal(formatContext(memories, { limit: 20 }), "- one\n  line\n- two");
  assert.equal(formatContext(memories, { limit: 0 }), "");
  assert.equal(formatContext(["a\r\nb\rc\u2028d\u0085e"], { limit: 99 }), "- a\n  b\n  c\n  d\n  e");
  assert.equal(formatContext(["日本"], { limit: 4 }), "- 日本");
  assert.equal(formatContext(["1234567"], { limit: 2, measure: estimateTokens }), "");
  assert.equal(estimateTokens("12345"), 2);
});

test("one client serves many handles", () => {
  assert.notEqual(client.agent("a"), client.agent("a"));
});

const isFailed = (error: unknown) => error instanceof PreconditionFailed && error.status === 412;

test("an item is created once, and replaced and deleted only in the version that was read", async () => {
  const namespace = ["memories", newUserId()];
  const created = await agent.putItem(namespace, "a", { key: "k", if_none_match: true });
  await assert.rejects(agent.putItem(namespace, "b", { key: "k", if_none_match: true }), isFailed);
  const read = await agent.getItem(namespace, "k");
  assert.equal(read.etag, created.etag);
  const replaced = await agent.putItem(namespace, "b", { key: "k", if_match: read.etag ?? "" });
  const late = agent.putItem(namespace, "c", { key: "k", if_match: read.etag ?? "" });
  await assert.rejects(late, (error) => isFailed(error) && (error as PreconditionFailed).etag === replaced.etag);
  await assert.rejects(agent.deleteItem(namespace, "k", {}, { ifMatch: read.etag ?? "" }), isFailed);
  await agent.deleteItem(namespace, "k", {}, { ifMatch: replaced.etag ?? "" });

  const results = (await agent.putItems([{ namespace, key: "k", content: "d", if_match: "other" }])).results;
  assert.equal("error" in results[0]! && results[0].error.status, 412);
});

test("a memory is changed and deleted only in the version that was read", async () => {
  const ada = someone();
  const { id } = await ada.add("Drinks tea");
  const ifMatch = (await ada.get(id)).etag ?? "";
  const changed = await ada.change(id, { pinned: true }, { ifMatch });

  assert.notEqual(changed.etag, ifMatch);
  await assert.rejects(ada.change(id, { pinned: false }, { ifMatch }), isFailed);
  await assert.rejects(ada.delete(id, { ifMatch }), isFailed);
  await ada.delete(id, { ifMatch: changed.etag ?? "" });
});

test("a change and a deletion are repeated with their keys, so that they undo nothing that others wrote since", async () => {
  const answers = [refuse(504), send({ id: "m" }), refuse(504), send({})];
  await recorded(answers, async (url, seen) => {
    const agent = new Client(url).agent("a");
    await agent.user("u").change("m", { pinned: true });
    await agent.deleteItem(["n"], "k", { user_id: "u" });

    const keys = seen.map(({ headers }) => headers["idempotency-key"]);
    assert.ok(keys[0] && keys[2]);
    assert.deepEqual(keys, [keys[0], keys[0], keys[2], keys[2]]);
  });
});

test("a restricted write is repeated with its key, and an empty tag sends nothing", async () => {
  await recorded([refuse(504), send({ id: "m" }, { ETag: 'W/"new"' })], async (url, seen) => {
    const ada = new Client(url).agent("a").user("u");
    const changed = await ada.change("m", { pinned: true }, { ifMatch: '"old"' });

    assert.equal(changed.etag, "new");
    assert.deepEqual(seen.map(({ headers }) => headers["if-match"]), ['"old"', '"old"']);
    assert.equal(new Set(seen.map(({ headers }) => headers["idempotency-key"])).size, 1);
    assert.ok(seen[0]?.headers["idempotency-key"]);
    await assert.rejects(ada.change("m", { pinned: true }, { ifMatch: "" }), /ifMatch: is empty/);
    assert.equal(seen.length, 2);
  });
});
