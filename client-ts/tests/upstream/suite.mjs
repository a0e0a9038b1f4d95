/**
 * Run the tests of LangGraph.js's own stores against `AgentMemoryStore`, which takes their place.
 *
 *     make client-ts && node client-ts/tests/upstream/suite.mjs CHECKOUT
 *
 * The API is that of AGENTMEMORY_URL, by default of `agentmemory dev`. CHECKOUT is one of langchain-ai/langgraphjs. The run fails if a test fails that `LEFT_OUT` does not name. Tests that need
 * MongoDB's vector search are skipped.
 */
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const CLIENT = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const FILES = {
  "memory/tests/store.test.ts": "checkpoint/src/tests/store.test.ts",
  "memory/tests/vector.test.ts": "checkpoint/src/tests/vector.test.ts",
  "memory/tests/namespace.test.ts": "checkpoint/src/tests/namespace.test.ts",
  "postgres/tests/store.test.ts": "checkpoint-postgres/src/tests/store.int.test.ts",
  "redis/tests/store.test.ts": "checkpoint-redis/src/tests/store.int.test.ts",
  "mongodb/tests/store.test.ts": "checkpoint-mongodb/src/tests/store.int.test.ts",
};

/** Reasons of the tests that fail, by words of their names. */
const LEFT_OUT = {
  "have functions of their own store: of SQL, of Redis, statistics, sweeps, migrations": [
    "FilterBuilder", "Operation Type Guards", "Statistics", "Migration System", "should support TTL configuration and sweep",
    "should initialize with embeddings config",
  ],
  "use options or fields that only their store has": [
    "should throw error when using", "should handle unknown search mode", "should handle database connection errors",
    "RedisStore > Basic Operations > should update an existing item", "should support per-operation field selection",
    "should expire items with TTL", "should create a RedisStore with TTL config", "should support $exists operator",
    "should handle nested object queries",
  ],
  "expect the vectors and scores of embeddings that the test computes; here the agent's model embeds": [
    "should support hybrid mode in unified search", "Vector Search > should support vector", "should use vector search by default",
    "should support both TTL and indexing options", "should support specific fields to index",
    "should respect specific fields to index", "should handle field-specific indexing", "should filter results by similarity threshold",
  ],
  "expect that a batch reads what it writes, or that a put answers null; in LangGraph's own stores it reads first": [
    "should handle batch operations in correct order", "should handle batch with all operation types",
    "should maintain operation order in batch", "should execute mixed operations in one batch",
  ],
  "expects that a query also lists items without an index": ["should handle non-indexed documents"],
  "expects the oldest item first; here the newest is": ["InMemoryStore > should implement search method"],
};

const SHIMS = {
  "store.ts": `
import { randomUUID } from "node:crypto";
import { Client } from "${CLIENT}/.tests/src/index.js";
import { AgentMemoryStore } from "${CLIENT}/.tests/src/langgraph.js";
export const agent = new Client(process.env.AGENTMEMORY_URL).agent(process.env.EXAMPLE_AGENT ?? "assistant");
const users = new Map();
export function userOf(place) {
  if (!users.has(place)) users.set(place, randomUUID());
  return users.get(place);
}
export class SuiteStore extends AgentMemoryStore {
  constructor(place, fields) {
    super(agent, { userId: userOf(place), fields: fields ?? ["$"], threshold: -1, minSimilarity: -1 });
  }
  async setup() {}
  async start() {}
  async stop() {}
  async end() {}
  async close() {}
}`,
  "memory/store/memory.ts": `
import { SuiteStore } from "../../store";
export class InMemoryStore extends SuiteStore { constructor(options) { super({}, options?.index?.fields); } }`,
  "memory/store/base.ts": 'export * from "@langchain/langgraph-checkpoint";',
  "memory/store/batch.ts": 'export * from "@langchain/langgraph-checkpoint";',
  "postgres/store/index.ts": `
import { SuiteStore } from "../../store";
export class PostgresStore extends SuiteStore {
  static fromConnString(url, options) { return new PostgresStore({ connectionOptions: url, ...options }); }
  constructor(options) { super(options.connectionOptions + options.schema, options.index?.fields); }
}`,
  "redis/store.ts": `
import { SuiteStore } from "../store";
export class FilterBuilder {}
export class RedisStore extends SuiteStore {
  static async fromConnString(url, options) { return new RedisStore(url, options); }
  constructor(client, options) { super(client, options?.index?.fields); }
}`,
  "redis/tests/redis-container.ts": `
export async function createRedisContainer() { return { client: {}, url: "redis://" + Math.random(), cleanup: async () => {} }; }`,
  "mongodb/store.ts": `
import { SuiteStore } from "../store";
export class MongoDBStore extends SuiteStore { constructor(options) { super(options.dbName + options.collectionName); } }`,
  "mongo.ts": `
import { agent, userOf } from "./store";
export class MongoClient {
  async connect() {}
  async close() {}
  db(name) { return { collection: (part) => ({ deleteMany: () => agent.user(userOf(name + part)).forgetEverything() }) }; }
}`,
  "pg.ts": "export default { Pool: class { async query() { return { rows: [] }; } async end() {} } };",
  "env.ts": "export const getEnvironmentVariable = (name) => process.env[name];",
  "package.json": '{"private": true, "type": "module"}',
};

function layOut(folder, checkout) {
  for (const [name, source] of Object.entries(FILES)) cpSync(join(checkout, "libs", source), join(folder, name), { recursive: true });
  for (const [name, text] of Object.entries(SHIMS)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  const packages = join(CLIENT, "node_modules/@langchain");
  const alias = {
    "@langchain/langgraph-checkpoint": join(packages, "langgraph-checkpoint/dist/index.js"),
    "@langchain/core/utils/env": join(folder, "env.ts"),
    "@langchain/core": join(packages, "core"),
    pg: join(folder, "pg.ts"),
    mongodb: join(folder, "mongo.ts"),
  };
  const test = { fileParallelism: false, testTimeout: 30_000, hookTimeout: 30_000, env: { TEST_POSTGRES_URL: "postgres://u@h/db" } };
  writeFileSync(join(folder, "vitest.config.mjs"), `export default ${JSON.stringify({ resolve: { alias }, test })};`);
}

function run(folder) {
  const [options, shell] = [["--silent", "--no-save", "--ignore-scripts"], { cwd: folder, stdio: "inherit" }];
  if (spawnSync("npm", ["install", ...options, "vitest@3"], shell).status !== 0) throw new Error("npm install vitest failed");
  spawnSync(join(folder, "node_modules/.bin/vitest"), ["run", "--reporter=json", "--outputFile=report.json"], shell);
  const { testResults } = JSON.parse(readFileSync(join(folder, "report.json"), "utf8"));
  return testResults.flatMap(({ assertionResults }) => assertionResults);
}

const folder = mkdtempSync(join(tmpdir(), "langgraphjs-"));
try {
  layOut(folder, resolve(process.argv[2] ?? "."));
  const results = run(folder);
  const named = (status) => results.filter((one) => one.status === status).map((one) => [...one.ancestorTitles, one.title].join(" > "));
  const [passed, failed] = [named("passed"), named("failed")];
  const words = Object.values(LEFT_OUT).flat();
  const isLeftOut = (name) => words.some((part) => name.includes(part));
  console.log(`${passed.length} passed, ${failed.length} failed`);
  for (const [reason, parts] of Object.entries(LEFT_OUT)) {
    console.log(`${failed.filter((name) => parts.some((part) => name.includes(part))).length} ${reason}`);
  }
  const unexpected = failed.filter((name) => !isLeftOut(name));
  for (const name of unexpected) console.log(`unexpected: ${name}`);
  process.exitCode = unexpected.length > 0 || passed.length === 0 ? 1 : 0;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
