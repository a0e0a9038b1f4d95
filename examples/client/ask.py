"""Store two memories and ask for them, with the client of this package. See docs/client.md."""

import os

from agentmemory_operator.client import ApiError, MemoryClient

URL = os.environ.get("AGENTMEMORY_URL", "http://127.0.0.1:8080")
AGENT = "support-bot"
USER = os.environ.get("EXAMPLE_USER", "ada")

with MemoryClient(URL, token=os.environ.get("AGENTMEMORY_TOKEN")) as api:
    old = api.remember(AGENT, USER, "Ada pays by credit card", type="preference", tags=["billing"])
    api.remember(AGENT, USER, "Ada pays by invoice, 30 days", type="preference", tags=["billing"], supersedes=old.id)

    answer = api.search(AGENT, USER, "how does she pay?", tags=["billing"], top_k=3)
    for found in answer.results:
        print(f"{found.score:.2f} {found.content}")

    try:
        api.get(AGENT, "somebody-else", old.id)
    except ApiError as problem:
        print(problem.status, problem.title)
