/** The client against an API whose URL is in AGENTMEMORY_URL, and its agent in EXAMPLE_AGENT. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { test } from "node:test";

import { ApiError, ApiUnreachable, Client, type ForgetOptions, type Memory } from "../src/index.js";
import { agent, all, breakOff, client, recorded, refuse, sayNothing, someone } from "./support.js";

test("what is stored is found, changed, listed and deleted", async () => {
  const ada = someone();

  const stored = await ada.add("Pays by invoice", { importance: "high", tags: ["billing"] });
  const { results } = await ada.search("how does she pay?", { top_k: 3, threshold: -1 });
  const changed = await ada.change(stored.id, { tags: ["billing", "invoice"] });

  assert.equal(stored.event, "ADD");
  assert.deepEqual(results.map((found) => [found.id, found.content]), [[stored.id, "Pays by invoice"]]);
  assert.ok(results[0] && results[0].score > 0);
  assert.deepEqual(changed.tags, ["billing", "invoice"]);
  assert.deepEqual(await ada.get(stored.id), changed);
  await ada.delete(stored.id);
  assert.deepEqual(await all(ada.memories()), []);
});

test("integers of 64 bits are bigints, and every number comes back as it was", async () => {
  const ada = someone();
  const numbers = { id: 1357924680135792468n, least: -(2n ** 63n), safe: 5, half: 0.5, long: -12.070162795213857 };
  const metadata = { ...numbers, text: "1357924680135792468", zero: -0, large: 1e20, list: [2n ** 63n - 1n, 2 ** 53] };

  const stored = await ada.add("An order", { metadata });
  await ada.add("Another order", { metadata: { id: numbers.id + 1n } });
  const { results } = await ada.search("order", { threshold: -1, filters: { "metadata.id": { lte: numbers.id } } });

  assert.deepEqual((await ada.get(stored.id)).metadata, metadata);
  assert.deepEqual(results.map((found) => found.content), ["An order"]);
  await assert.rejects(
    ada.add("Too large", { metadata: { id: 2n ** 63n } }),
    (error) => error instanceof ApiError && error.problem.errors?.[0]?.field === "metadata.id",
  );
});

test("a list is read page by page, newest first", async () => {
  const ada = someone();
  for (const content of ["one", "two", "three"]) await ada.add(content);

  const listed: Memory[] = await all(ada.memories({ limit: 2 }));

  assert.deepEqual(listed.map((memory) => memory.content), ["three", "two", "one"]);
});

test("a batch has a result for each memory", async () => {
  const user_id = `user-${randomUUID()}`;
  const { results } = await agent.addMany([{ user_id, content: "c" }, { user_id, content: " " }]);

  assert.deepEqual(results.map((result) => "error" in result), [false, true]);
});

test("a user is erased only by its own call, a part by a condition", async () => {
  const ada = someone();
  for (const type of ["fact", "note"]) await ada.add(`a ${type}`, { tags: [type] });

  for (const options of [{}, { crypto: true }, { filters: {} }, { filters: undefined }, { older_than: "" }]) {
    await assert.rejects(ada.forget(options as ForgetOptions), /TypeError.*forgetEverything/s);
  }
  await assert.rejects(ada.forget({ filters: { AND: [] } }), (error) => error instanceof ApiError && error.status === 422);
  assert.equal((await all(ada.memories())).length, 2);
  const part = await ada.forget({ filters: { tags: "note" } });
  const rest = await ada.forgetEverything();

  assert.deepEqual([part.counts.total, rest.counts.total], [1, 1]);
  assert.deepEqual(await all(ada.memories()), []);
});

test("a user is named, read, and erased with its name", async () => {
  const ada = someone();
  const named = await ada.setName("Ada Lovelace");
  await ada.add("Pays by invoice");
  const read = await ada.details();

  assert.deepEqual([named.name, named.memories, named.oldest], ["Ada Lovelace", 0, null]);
  assert.deepEqual([read.name, read.memories, read.created_at], ["Ada Lovelace", 1, named.created_at]);
  await ada.forgetEverything();
  await assert.rejects(ada.details(), (error) => error instanceof ApiError && error.status === 404);
});

test("the settings in force are known by type", async () => {
  const info = await agent.info();

  assert.equal(info.ready, true);
  assert.equal(typeof info.embedding.dimensions, "number");
});

test("every other request is there by its path", async () => {
  const user_id = `user-${randomUUID()}`;
  const { data } = await client.http.GET("/v1/agents/{agent}/stats", {
    params: { path: { agent: (await agent.info()).agent }, query: { user_id } },
  });

  assert.equal(data?.total, 0);
});

test("a refusal names the field and the request", async () => {
  await assert.rejects(someone().add(" "), (error) => {
    assert.ok(error instanceof ApiError);
    assert.equal(error.status, 422);
    assert.equal(error.problem.errors?.[0]?.field, "content");
    assert.ok(error.problem.request_id);
    return true;
  });
});

test("names go into the path as they are", async () => {
  await assert.rejects(client.agent("../agents?x=").info(), { name: "ApiError", status: 404 });
});

const store = (_: IncomingMessage, answer: ServerResponse) =>
  void answer
    .writeHead(201, { "Content-Type": "application/json" })
    .end('{"id":"i","event":"ADD","supersedes":null,"recorded":true,"warnings":[],"of_a_newer_api":1}');
test("a write is repeated under one key until it is stored, with a token that is renewed", async () => {
  await recorded([refuse(503), refuse(504), breakOff, store], async (url, seen) => {
    let asked = 0;
    const stored = await new Client(url, { token: () => `t${asked++}` }).agent("a").user("u").add("c");

    assert.equal(stored.id, "i");
    assert.equal("of_a_newer_api" in stored, true);
    assert.equal(new Set(seen.map(({ headers }) => headers["idempotency-key"])).size, 1);
    assert.deepEqual(seen.map(({ headers }) => headers["authorization"]), ["Bearer t0", "Bearer t1", "Bearer t2", "Bearer t3"]);
  });
});

test("two writes have two keys", async () => {
  await recorded([store, store], async (url, seen) => {
    const user = new Client(url).agent("a").user("u");
    await user.add("c");
    await user.add("c");

    assert.equal(new Set(seen.map(({ headers }) => headers["idempotency-key"])).size, 2);
  });
});

test("a deletion whose answer was lost is done when nothing is left", async () => {
  await recorded([breakOff, refuse(404), refuse(404)], async (url) => {
    const user = new Client(url).agent("a").user("u");
    await user.delete("i");

    await assert.rejects(user.delete("never-was"), { name: "ApiError", status: 404 });
  });
});

test("it gives up with the last problem", async () => {
  await recorded([refuse(503), refuse(429)], async (url, seen) => {
    await assert.rejects(new Client(url, { retries: 1 }).agent("a").info(), { name: "ApiError", status: 429 });

    assert.equal(seen.length, 2);
  });
});

for (const status of [400, 401, 404, 409, 422, 500, 502]) {
  test(`what another attempt would not mend is not repeated: ${status}`, async () => {
    await recorded([refuse(status)], async (url, seen) => {
      await assert.rejects(new Client(url).agent("a").info(), { name: "ApiError", status });

      assert.equal(seen.length, 1);
    });
  });
}

test("an error in another form than the API's is an error all the same", async () => {
  const html = (_: IncomingMessage, answer: ServerResponse) => void answer.writeHead(502).end("<html>");
  await recorded([html], async (url) => {
    await assert.rejects(new Client(url).agent("a").info(), { name: "ApiError", status: 502 });
  });
});

test("what leads elsewhere is not followed", async () => {
  await recorded([store], async (elsewhere, reached) => {
    const lead = (_: IncomingMessage, answer: ServerResponse) => void answer.writeHead(307, { Location: elsewhere }).end();
    await recorded([lead], async (url) => {
      const asked = new Client(url, { token: "secret" }).agent("a").user("u").add("c");
      await assert.rejects(asked, { name: "ApiError", status: 307 });

      assert.equal(reached.length, 0);
    });
  });
});

test("an API that never answers is given up", async () => {
  await recorded([sayNothing, sayNothing], async (url, seen) => {
    const hasty = new Client(url, { retries: 1, timeoutMs: 50 });
    await assert.rejects(hasty.agent("a").info(), ApiUnreachable);

    assert.equal(seen.length, 2);
  });
});

test("nobody there is said with the address, and without the token", async () => {
  const away = new Client("http://127.0.0.1:9", { retries: 0, token: "secret" });

  await assert.rejects(away.agent("a").info(), (error) => {
    assert.ok(error instanceof ApiUnreachable);
    assert.match(error.message, /127\.0\.0\.1:9/);
    assert.doesNotMatch(error.message, /secret/);
    return true;
  });
});

test("who gives up waiting is not kept by attempts to come", async () => {
  await recorded([(_, answer) => void answer.writeHead(503, { "Retry-After": "20" }).end()], async (url, seen) => {
    const asked = new Client(url).http.GET("/v1/agents", { signal: AbortSignal.timeout(100) });
    await assert.rejects(asked, { name: "TimeoutError" });

    assert.equal(seen.length, 1);
  });
});

test("as many calls as one begins at a time are stored, 64 at a time, however short the time-out", async () => {
  let underWay = 0;
  let most = 0;
  const answers = Array.from({ length: 600 }, () => (request: IncomingMessage, answer: ServerResponse) => {
    most = Math.max(most, ++underWay);
    setTimeout(() => {
      underWay--;
      store(request, answer);
    }, 20);
  });
  await recorded(answers, async (url, seen) => {
    const user = new Client(url, { timeoutMs: 10_000 }).agent("a").user("u");
    await Promise.all(Array.from({ length: 600 }, (_, place) => user.add(`${place}`)));

    assert.equal(seen.length, 600);
    assert.ok(most > 16 && most <= 64, `${most} at a time`);
  });
});

test("a client comes down to what the API grants", async () => {
  let underWay = 0;
  let refused = 0;
  const answers = Array.from({ length: 2_000 }, () => (request: IncomingMessage, answer: ServerResponse) => {
    if (underWay >= 2) {
      refused++;
      // Without a time at which to come again: after a wait of its own, which the client chooses.
      answer.writeHead(429, { "Content-Type": "application/problem+json" }).end("{}");
      return;
    }
    underWay++;
    setTimeout(() => {
      underWay--;
      store(request, answer);
    }, 5);
  });
  await recorded(answers, async (url) => {
    const user = new Client(url).agent("a").user("u");
    const stored = await Promise.all(Array.from({ length: 150 }, (_, place) => user.add(`${place}`)));

    assert.equal(stored.length, 150);
    assert.ok(refused > 0);
  });
});

test("who stops waiting for a turn leaves it to others", async () => {
  await recorded([sayNothing, store], async (url, seen) => {
    const client = new Client(url, { inFlight: 1, retries: 0 });
    const first = client.http.GET("/v1/agents", { signal: AbortSignal.timeout(300) });
    const second = client.http.GET("/v1/agents", { signal: AbortSignal.timeout(50) });
    await assert.rejects(second, { name: "TimeoutError" });
    await assert.rejects(first, { name: "TimeoutError" });
    await client.agent("a").user("u").add("c");

    assert.equal(seen.length, 2);
  });
  assert.throws(() => new Client("http://a", { inFlight: 0 }), RangeError);
});

for (const token of ["secret\n", "sec\r\nret", "sécret", " secret", "sec\u0000ret", "机密"]) {
  test(`a token that no header carries is refused and not shown: ${JSON.stringify(token)}`, async () => {
    const hidden = (error: unknown) =>
      error instanceof TypeError && error.message.startsWith("token: ") && !error.message.includes(token.trim());

    assert.throws(() => new Client("http://a", { token }), hidden);
    await assert.rejects(new Client("http://127.0.0.1:9", { token: () => token }).agent("a").info(), hidden);
  });
}

test("an error of the function that returns the token is thrown as it is", async () => {
  const failure = new TypeError("fetch failed");
  const failing = () => {
    throw failure;
  };
  for (const token of [failing, async () => failing()]) {
    const user = new Client("http://127.0.0.1:9", { token }).agent("a").user("u");
    await assert.rejects(user.add("c"), (error) => error === failure);
  }
});

for (const [name, sent] of [[".", "%2E"], ["..", "%2E%2E"], ["...", "..."], ["a/..", "a%2F.."]] as const) {
  test(`a name of dots stays a name: ${name}`, async () => {
    const paths: (string | undefined)[] = [];
    const keep = (request: IncomingMessage, answer: ServerResponse) => {
      paths.push(request.url);
      store(request, answer);
    };
    await recorded([keep, keep, keep], async (url) => {
      const api = new Client(url, { token: "t" });
      await api.agent(name).user("u").add("c");
      await api.agent("a").user("u").get(name);
      const path = { agent: "a", session_id: name };
      await api.http.PUT("/v1/agents/{agent}/sessions/{session_id}/working", {
        params: { path, query: { user_id: "u" } },
        body: { content: "c" },
      });
    });

    assert.deepEqual(paths, [
      `/v1/agents/${sent}/memories`,
      `/v1/agents/a/memories/${sent}?user_id=u`,
      `/v1/agents/a/sessions/${sent}/working?user_id=u`,
    ]);
  });
}

test("a change of nothing is refused before it is sent", async () => {
  await recorded([store], async (url, seen) => {
    await assert.rejects(new Client(url).agent("a").user("u").change("i", {}), /change: nothing to change/);

    assert.equal(seen.length, 0);
  });
});
