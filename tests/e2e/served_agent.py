"""An agent that the API serves, and the calls of its user."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster.tenants import Caller
from tests.support.cluster.workspace import Workspace
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
        """Store a memory."""
        body = {"user_id": "u", "content": content} | more
        assert check_success(self.caller.http.post(f"{self.workspace.slug}/memories", json=body)).status_code == 201

    def search(self) -> httpx.Response:
        """Search by the question."""
        return self.caller.http.post(f"{self.workspace.slug}/search", json={"user_id": "u", "query": QUESTION})

    def found(self) -> list[str]:
        """Return the contents of the results, best first."""
        return [result["content"] for result in check_success(self.search()).json()["results"]]
