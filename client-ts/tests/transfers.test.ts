/** Exports, imports and the change log as a stream. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, ApiUnreachable, Client, type ImportedLines } from "../src/index.js";
import { agent, all, breakOff, newUserId, recorded, refuse, send, sendLines, someone } from "./support.js";

const COUNTS = '{"counts":{"total":1,"types":{}}}';
const IMPORTED = { counts: { lines: 1, imported: 1, present: 0, failed: 0 }, errors: [], more_errors: 0 };
const user = (url: string) => new Client(url).agent("a").user("u");

test("an export is imported again, exactly", async () => {
  const [ada, copy] = [someone(), newUserId()];
  await ada.add("An order", { metadata: { id: 2n ** 60n } });
  await ada.add("日本語のメモ");
  const lines = await all(ada.export());
  await ada.forgetEverything();
  const moved = lines.map((line) => ({ ...line, user_id: copy }));
  const imported = await agent.user(copy).importMemories(moved, { include_erased: true });

  assert.equal(lines.length, 2);
  assert.deepEqual(imported.counts, { lines: 2, imported: 2, present: 0, failed: 0 });
  const memories = await all(agent.user(copy).memories());
  assert.deepEqual(new Set(memories.map(({ content }) => content)), new Set(["An order", "日本語のメモ"]));
  assert.ok(memories.some(({ metadata }) => metadata["id"] === 2n ** 60n));
});

test("an export is read line by line, whatever its chunks", async () => {
  const bytes = Buffer.from(`{"content":"Grüße 😀"}\n{"content":"b"}\n${COUNTS}\n`);
  const drip = async (_: unknown, answer: import("node:http").ServerResponse) => {
    answer.writeHead(200, { "Content-Type": "application/x-ndjson" });
    for (const byte of bytes) await new Promise((resolve) => answer.write(Buffer.from([byte]), resolve));
    answer.end();
  };
  await recorded([drip], async (url, seen) => {
    assert.deepEqual(await all(user(url).export({ vectors: true })), [{ content: "Grüße 😀" }, { content: "b" }]);
    assert.equal(seen[0]?.url, "/v1/agents/a/export?vectors=true&user_id=u");
  });
});

for (const [name, handler] of [
  ["its connection breaks", sendLines(['{"content":"a"}'], undefined, true)],
  ["its last line is missing", sendLines(['{"content":"a"}'])],
  ["a line is not JSON", sendLines(['{"content":"a"}', "<html>"])],
] as const) {
  test(`an export is incomplete: ${name}`, async () => {
    await recorded([handler], async (url) => {
      const lines: unknown[] = [];
      const read = async () => {
        for await (const line of user(url).export()) lines.push(line);
      };

      await assert.rejects(read, ApiUnreachable);
      assert.deepEqual(lines, [{ content: "a" }]);
    });
  });
}

test("an export that the API breaks off has its error", async () => {
  const error = '{"error":{"status":503,"title":"Not available","detail":"moved"}}';
  await recorded([sendLines(['{"content":"a"}', error])], async (url) => {
    await assert.rejects(all(user(url).export()), { name: "ApiError", status: 503 });
  });
});

test("an export is asked for again before it begins, and refused with a problem", async () => {
  await recorded([refuse(503), breakOff, sendLines([COUNTS]), refuse(403, { title: "Forbidden" })], async (url) => {
    assert.deepEqual(await all(user(url).export()), []);
    await assert.rejects(all(user(url).export()), (error) => error instanceof ApiError && error.problem.title === "Forbidden");
  });
});

for (const [name, lines] of [
  ["text", '{"id":"a"}\n{"id":"b"}'],
  ["lines of text", ['{"id":"a"}', '{"id":"b"}\n', ""]],
  ["bytes", new TextEncoder().encode('{"id":"a"}\n{"id":"b"}\n')],
  ["objects", [{ id: "a" }, { id: "b" }]],
  ["a set", new Set([{ id: "a" }, { id: "b" }])],
] as [string, ImportedLines][]) {
  test(`an import is sent again with all its lines: ${name}`, async () => {
    await recorded([refuse(503), send(IMPORTED)], async (url, seen) => {
      assert.deepEqual(await user(url).importMemories(lines), IMPORTED);
      assert.deepEqual(seen.map(({ body }) => body), ['{"id":"a"}\n{"id":"b"}\n', '{"id":"a"}\n{"id":"b"}\n']);
      assert.equal(seen[0]?.headers["content-type"], "application/x-ndjson");
    });
  });
}

async function* asynchronous(ids: string[]) {
  for (const id of ids) yield { id };
}

for (const [name, lines] of [
  ["an iterator", () => [{ id: "a" }].values()],
  ["an async iterable", () => asynchronous(["a"])],
] as [string, () => ImportedLines][]) {
  test(`lines that can be read once are sent once: ${name}`, async () => {
    await recorded([refuse(503), send(IMPORTED)], async (url, seen) => {
      await assert.rejects(user(url).importMemories(lines()), { name: "ApiError", status: 503 });
      assert.equal(seen.length, 1);
      assert.deepEqual(await user(url).importMemories(lines()), IMPORTED);
    });
  });
}

test("the error of the source of an import is thrown as it is, and nothing is sent again", async () => {
  const failing = {
    *[Symbol.iterator]() {
      yield { id: "a" };
      throw new TypeError("no such file");
    },
  };
  await recorded([], async (url, seen) => {
    await assert.rejects(user(url).importMemories(failing), { name: "TypeError", message: "no such file" });
    assert.deepEqual(seen, []);
  });
});

test("the source of an import that is cancelled is closed", { timeout: 10_000 }, async (context) => {
  let isOver = false;
  context.after(() => void (isOver = true));
  let close: () => void = () => undefined;
  const closed = new Promise<void>((resolve) => (close = resolve));
  async function* lines() {
    try {
      while (!isOver) {
        yield "{}";
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
    } finally {
      close();
    }
  }
  await recorded([], async (url) => {
    const asked = user(url).importMemories(lines(), {}, { signal: AbortSignal.timeout(50) });
    await assert.rejects(asked, { name: "TimeoutError" });

    await closed;
  });
});

test("an import may read an export of the same client, one request at a time", async () => {
  const [from, to] = [newUserId(), newUserId()];
  await agent.user(from).add("moves");
  const one = new Client(process.env["AGENTMEMORY_URL"], { inFlight: 1 }).agent(process.env["EXAMPLE_AGENT"] ?? "assistant");
  async function* moved() {
    for await (const { id: _, ...line } of one.user(from).export()) {
      await one.user(from).stats();
      yield { ...line, user_id: to };
    }
  }

  assert.equal((await one.user(to).importMemories(moved())).counts.imported, 1);
});

test("changes are followed over streams that end or break, behind the last position", async () => {
  const change = (cursor: string) => [`id: ${cursor}`, "event: stored", `data: {"cursor":"${cursor}","kind":"stored"}`, ""];
  const type = "text/event-stream";
  const streams = [
    sendLines([": alive", "id: p0", "", ...change("p1")], type),
    // Breaks after the position of a change, and before the change.
    sendLines([...change("p2"), "id: lost", "event: stored"], type, true),
    sendLines([": alive", "id: p3", ""], type),
    sendLines(change("p4"), type),
  ];
  await recorded(streams, async (url, seen) => {
    const cursors: string[] = [];
    for await (const { cursor } of new Client(url).agent("a").followChanges({ user_id: "u", cursor: "p" })) {
      cursors.push(cursor);
      if (cursor === "p4") break;
    }

    assert.deepEqual(cursors, ["p1", "p2", "p4"]);
    assert.deepEqual(seen.map(({ headers }) => headers["last-event-id"]), ["p", "p1", "p2", "p3"]);
    assert.deepEqual(new Set(seen.map(({ headers }) => headers.accept)), new Set([type]));
  });
});

test("an answer that is no stream of events is not followed", async () => {
  await recorded([send({ results: [], next_cursor: "c" })], async (url) => {
    await assert.rejects(new Client(url).agent("a").followChanges().next(), ApiUnreachable);
  });
});

test("following ends with the reason of the signal, or with the API's refusal", async () => {
  const stop = new AbortController();
  const abort = () => stop.abort(new RangeError("enough"));
  await recorded([abort, refuse(403)], async (url) => {
    const changes = new Client(url).agent("a").followChanges({}, { signal: stop.signal });
    await assert.rejects(changes.next(), { message: "enough" });
    await assert.rejects(new Client(url).agent("a").followChanges().next(), { name: "ApiError", status: 403 });
  });
});
