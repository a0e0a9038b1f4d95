"""Store two memories and search for them with the Python client. See docs/client.md."""

import os

from agentmemory_client import ApiError, Client

URL = os.environ.get("AGENTMEMORY_URL", "http://127.0.0.1:8080")
AGENT = "support-bot"
USER = os.environ.get("EXAMPLE_USER", "ada")

with Client(URL, token=os.environ.get("AGENTMEMORY_TOKEN")) as client:
    memory = client.agent(AGENT).user(USER)
    # A fixed key stores a memory once, however often this runs. By default, each call has a new key.
    fields = {"type": "preference", "tags": ["billing"]}
    old = memory.add("Ada pays by credit card", **fields, idempotency_key=f"example-card-{USER}")
    invoice_key = f"example-invoice-{USER}"
    memory.add("Ada pays by invoice, 30 days", **fields, supersedes=old.id, idempotency_key=invoice_key)

    answer = memory.search("how does she pay?", tags=["billing"], top_k=3)
    for found in answer.results:
        print(f"{found.score:.2f} {found.content}")

    try:
        client.agent(AGENT).user("somebody-else").get(old.id)
    except ApiError as error:
        print(error.status, error.title)
