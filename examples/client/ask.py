"""Store two memories and ask for them. See docs/client.md."""

import os

from agentmemory_client import ApiError, Client

URL = os.environ.get("AGENTMEMORY_URL", "http://127.0.0.1:8080")
AGENT = "support-bot"
USER = os.environ.get("EXAMPLE_USER", "ada")

with Client(URL, token=os.environ.get("AGENTMEMORY_TOKEN")) as client:
    memory = client.agent(AGENT).user(USER)
    # With keys of their own they are stored once, however often this runs; without, each call has a new one.
    told = {"type": "preference", "tags": ["billing"]}
    old = memory.add("Ada pays by credit card", **told, idempotency_key=f"example-card-{USER}")
    new = f"example-invoice-{USER}"
    memory.add("Ada pays by invoice, 30 days", **told, supersedes=old.id, idempotency_key=new)

    answer = memory.search("how does she pay?", tags=["billing"], top_k=3)
    for found in answer.results:
        print(f"{found.score:.2f} {found.content}")

    try:
        client.agent(AGENT).user("somebody-else").get(old.id)
    except ApiError as problem:
        print(problem.status, problem.title)
