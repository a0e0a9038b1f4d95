// Store a memory and ask for it, with what Node 18 and newer bring along. See docs/http-api.md.

const base = `${process.env.AGENTMEMORY_URL ?? "http://127.0.0.1:8080"}/v1/agents/support-bot`;
const user = process.env.EXAMPLE_USER ?? "ada";
const token = process.env.AGENTMEMORY_TOKEN;

async function call(path, body, headers = {}) {
  const sent = { "Content-Type": "application/json", ...headers };
  if (token) sent.Authorization = `Bearer ${token}`;
  for (let attempt = 0; ; attempt++) {
    const answer = await fetch(base + path, { method: "POST", headers: sent, body: JSON.stringify(body) });
    if (answer.ok) return answer.json();
    const problem = await answer.json();
    if (attempt === 3 || ![429, 503, 504].includes(answer.status)) throw new Error(`${problem.title}: ${problem.detail}`);
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
  }
}

// One key for all attempts: however often the request is repeated, and this example run, it ends in one memory.
const key = { "Idempotency-Key": `example-js-${user}` };
const content = "Ada pays by invoice, 30 days";
await call("/memories", { user_id: user, content, type: "preference", tags: ["billing"] }, key);

const { results } = await call("/search", { user_id: user, query: "how does she pay?", tags: ["billing"], top_k: 3 });
for (const found of results) console.log(found.score.toFixed(2), found.content);
