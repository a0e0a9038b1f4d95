/** The tools for the AI SDK, called by a model that is scripted, against the API. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { generateText, isStepCount } from "ai";
import { MockLanguageModelV4 } from "ai/test";

import { Client } from "../src/index.js";
import { memoryTools } from "../src/ai-sdk.js";
import { agent, newUserId, recorded, refuse, send } from "./support.js";

/** Let a model call a tool, and return what the tool answers and how the model saw the tools. */
async function callTool(userId: string, toolName: string, input: unknown) {
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const call = { type: "tool-call", toolCallId: "c", toolName, input: JSON.stringify(input) };
  const steps = [
    { content: [call], finishReason: { unified: "tool-calls" }, usage, warnings: [] },
    { content: [{ type: "text", text: "done" }], finishReason: { unified: "stop" }, usage, warnings: [] },
  ];
  const model = new MockLanguageModelV4({ doGenerate: steps as never });
  const tools = await memoryTools(agent, userId);
  const { steps: made } = await generateText({ model, tools, stopWhen: isStepCount(2), prompt: "go" });
  const parts = (made[0]?.content ?? []) as { type: string; output?: unknown; error?: unknown }[];
  return { parts, seen: model.doGenerateCalls };
}

test("a model remembers and searches for the user of the program", async () => {
  const [userId, tags] = [newUserId(), ["billing"]];
  const stored = await callTool(userId, "remember", { content: "Ada pays by invoice", importance: "high", tags });
  await agent.user(userId).add("n".repeat(2_500));
  const found = await callTool(userId, "search", { query: "how does she pay?", min_similarity: -1 });

  assert.equal((stored.parts.find(({ type }) => type === "tool-result")?.output as { event: string }).event, "ADD");
  const { note, memories } = found.parts.find(({ type }) => type === "tool-result")?.output as {
    note: string;
    memories: { content: string; tags?: string[]; cut?: boolean }[];
  };
  assert.match(note, /data/);
  const [first] = memories.filter(({ cut }) => !cut);
  assert.deepEqual([first?.content, first?.tags], ["Ada pays by invoice", ["billing"]]);
  assert.deepEqual(memories.filter(({ cut }) => cut).map(({ content }) => content.length), [2_000]);
});

for (const extra of ["user_id", "agent", "include_scopes", "author", "toString", "fields"]) {
  test(`a model cannot name more than the tool has: ${extra}`, async () => {
    const [ada, bob] = [newUserId(), newUserId()];
    await agent.user(bob).add("Bob's secret");
    for (const [name, input] of [["search", { query: "secret" }], ["remember", { content: "planted" }]] as const) {
      const { parts } = await callTool(ada, name, { ...input, [extra]: bob });

      assert.deepEqual(parts.filter(({ type }) => type === "tool-result"), [], JSON.stringify(parts));
      assert.match(JSON.stringify(parts.map(({ error }) => String(error))), /no such argument/);
    }
    assert.equal((await agent.user(ada).stats()).total, 0);
    assert.equal((await agent.user(bob).stats()).total, 1);
  });
}

for (const input of [{}, null, "text", 5, ["text"], { query: 5 }, { content: 5 }, { query: null }, { content: null }]) {
  test(`an input of another form stores and finds nothing: ${JSON.stringify(input)}`, async () => {
    const userId = newUserId();
    for (const name of ["search", "remember"]) {
      const { parts } = await callTool(userId, name, input);

      assert.deepEqual(parts.filter(({ type }) => type === "tool-result"), [], JSON.stringify(parts));
    }
    assert.equal((await agent.user(userId).stats()).total, 0);
  });
}

test("a model sees no argument for the user, and the agent's types", async () => {
  const { seen } = await callTool(newUserId(), "search", { query: "q" });
  const text = JSON.stringify(seen[0]?.tools);

  assert.match(text, /"name":"remember"/);
  assert.match(text, /"enum":\[/);
  assert.doesNotMatch(text, /user_id/);
});

test("a refusal of the API is an error of the tool, and many memories are cut short", async () => {
  const definition = (name: string) => ({ name, description: "d", inputSchema: { properties: { query: {} } } });
  const results = Array.from({ length: 40 }, (_, id) => ({ id: `${id}`, content: "x".repeat(1_500) }));
  const tools = send({ tools: [definition("search"), definition("remember")] });
  await recorded([tools, refuse(403, { title: "Forbidden" }), send({ results }), send({ tools: [] })], async (url, seen) => {
    const { search } = await memoryTools(new Client(url).agent("a"), "u");
    const call = () => search.execute?.({ query: "q" }, { toolCallId: "c", messages: [] } as never);
    await assert.rejects(Promise.resolve(call()), { name: "ApiError", status: 403 });
    const { memories, left_out } = (await call()) as { memories: unknown[]; left_out: number };

    assert.equal(memories.length + left_out, 40);
    assert.ok(memories.map((memory) => JSON.stringify(memory).length).reduce((sum, size) => sum + size) <= 32_000);
    assert.ok(memories.length > 15);
    assert.equal((JSON.parse(seen[2]?.body ?? "") as { user_id: string }).user_id, "u");
    await assert.rejects(memoryTools(new Client(url).agent("a"), "u"), /no tool search/);
  });
});
