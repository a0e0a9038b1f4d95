// Give the agents of Mastra the memory of one user, by MCP: npm install @mastra/mcp @mastra/core, then node mastra.mjs
import { MCPClient } from "@mastra/mcp";

const url = new URL("/mcp", process.env.AGENTMEMORY_URL ?? "http://127.0.0.1:8080");
const token = process.env.AGENTMEMORY_TOKEN;
const headers = {
  "X-AgentMemory-Agent": "assistant",
  "X-AgentMemory-User": "ada",
  ...(token ? { Authorization: `Bearer ${token}` } : {}),
};
const mcp = new MCPClient({ servers: { memory: { url, requestInit: { headers } } } });

// For a model: new Agent({ id, name, instructions, model, tools: await mcp.listTools() })
const tools = await mcp.listTools();
await tools.memory_remember.execute({ content: "Ada pays by invoice" });
const { memories } = await tools.memory_search_memories.execute({ query: "how does she pay?", top_k: 1 });
console.log(Object.keys(tools).join(", "));
console.log(memories[0].content);
await mcp.disconnect();
