"""An agent that the API serves, and the calls of its user."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster.tenants import Account, Caller
from tests.support.cluster.workspace import Workspace, confirm_delete
from tests.support.patience import wait_until
from tests.support.web.http_server import check_success

PRINTER, COFFEE = "the printer on the second floor is broken", "she takes her coffee without milk"
QUESTION = "which printer is broken?"
# In a cluster other workloads run, and images may have to be pulled.
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """Agent that is Ready, and an authorized client."""

    workspace: Workspace
    caller: Caller

    def store(self, content: str, **more: Any) -> None:
        """Store a memory; the response must be 201."""
        assert check_success(self.try_store(content, **more)).status_code == 201

    def try_store(self, content: str, **more: Any) -> httpx.Response:
        """Send a memory to store; return the response."""
        body = {"user_id": "u", "content": content} | more
        return self.caller.http.post(f"{self.workspace.slug}/memories", json=body)

    def search(self) -> httpx.Response:
        """Search by the question."""
        return self.caller.http.post(f"{self.workspace.slug}/search", json={"user_id": "u", "query": QUESTION})

    def found(self) -> list[str]:
        """Return the contents of the results, best first."""
        return [result["content"] for result in check_success(self.search()).json()["results"]]


@contextlib.contextmanager
def serve_agent(workspace: Workspace, api_url: str, **spec: Any) -> Iterator[ServedAgent]:
    """Create an agent and its account `bot`; yield it once the API serves it. The end removes their namespace."""
    bot = Account.create(workspace.control_plane, workspace.namespace, "bot")
    head = {"Authorization": f"Bearer {bot.token()}"}
    workspace.create(
        embedding={"provider": "wordllama", "dimensions": 256},
        access={"subjects": [bot.subject("read", "write")]},
        scoring={"scoreThreshold": -1, "minSimilarity": -1},
        deletionPolicy="Delete",
        annotations=confirm_delete(workspace.alias),
        **spec,
    )
    with httpx.Client(base_url=f"{api_url}/v1/agents/", headers=head, timeout=30) as http:
        made = ServedAgent(workspace, Caller(bot, http))
        workspace.wait_ready(seconds=WITHIN_S)
        wait_until(lambda: made.search().status_code == 200, seconds=WITHIN_S, what="the agent in the API")
        yield made
    workspace.clean()
    workspace.control_plane.http.delete(f"/api/v1/namespaces/{workspace.namespace}")
