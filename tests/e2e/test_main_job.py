"""From an object to search results, and back from a loss, with the chart and its trial Qdrant."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.e2e.installed import QDRANT, Installed
from tests.support.cluster.installation import NAMESPACE
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
        """Store a memory."""
        body = {"user_id": "u", "content": content} | more
        assert check_success(self.caller.http.post(f"{self.workspace.slug}/memories", json=body)).status_code == 201

    def search(self) -> httpx.Response:
        """Search by the question."""
        return self.caller.http.post(f"{self.workspace.slug}/search", json={"user_id": "u", "query": QUESTION})

    def found(self) -> list[str]:
        """Return the contents of the results, best first."""
        return [result["content"] for result in check_success(self.search()).json()["results"]]


@pytest.fixture
def agent(installed: Installed) -> Iterator[ServedAgent]:
    """Agent with a namespace of its own, on the chart's Qdrant."""
    cluster = installed.control_plane
    workspace = Workspace(cluster, cluster.create_namespace("e2e-"), installed.qdrant_url)
    workspace.qdrant.headers["api-key"] = installed.qdrant_key
    bot = Account.create(cluster, workspace.namespace, "bot")
    head = {"Authorization": f"Bearer {bot.token()}"}
    workspace.create(
        connectionRef={"name": QDRANT, "namespace": NAMESPACE},
        embedding={"provider": "wordllama", "dimensions": 256},
        access={"subjects": [bot.subject("read", "write")]},
        scoring={"scoreThreshold": -1, "minSimilarity": -1},
        deletionPolicy="Delete",
        annotations=confirm_delete(workspace.alias),
    )
    with httpx.Client(base_url=f"{installed.api_url}/v1/agents/", headers=head, timeout=30) as http:
        made = ServedAgent(workspace, Caller(bot, http))
        workspace.wait_ready(seconds=WITHIN_S)
        wait_until(lambda: made.search().status_code == 200, seconds=WITHIN_S, what="the agent in the API")
        yield made
    workspace.clean()


def test_agent_finds_stored_memories(agent: ServedAgent) -> None:
    agent.store(COFFEE)
    agent.store(PRINTER)

    assert agent.found() == [PRINTER, COFFEE]


def test_new_weights_rerank_results(agent: ServedAgent) -> None:
    agent.store(PRINTER, created_at=(datetime.now(UTC) - timedelta(days=365)).isoformat())
    agent.store(COFFEE)
    agent.workspace.patch(scoring={"weights": {"similarity": 1, "recency": 0, "utility": 0}})
    wait_until(lambda: agent.search().json()["generation"] == 2, seconds=WITHIN_S, what="generation 2")
    by_meaning = agent.found()

    agent.workspace.patch(scoring={"weights": {"similarity": 0, "recency": 1, "utility": 0}})
    wait_until(lambda: agent.search().json()["generation"] == 3, seconds=WITHIN_S, what="generation 3")

    assert by_meaning == [PRINTER, COFFEE]
    assert agent.found() == [COFFEE, PRINTER]


def test_lost_collection_is_restored(agent: ServedAgent) -> None:
    workspace = agent.workspace
    agent.store(PRINTER)
    workspace.create_snapshot("kept")
    workspace.wait_condition("Verified", "True/Verified", name="kept", of="MemorySnapshot", seconds=WITHIN_S)
    check_success(workspace.qdrant.delete(f"/collections/{workspace.physical}"))
    wait_until(lambda: agent.search().status_code != 200, seconds=WITHIN_S, what="the loss")

    workspace.create_restore("back", {"snapshotRef": {"name": "kept"}})
    workspace.wait_condition("Succeeded", "True/Restored", name="back", of="MemoryRestore", seconds=WITHIN_S)
    wait_until(lambda: agent.search().status_code == 200, seconds=WITHIN_S, what="answers")

    assert agent.found() == [PRINTER]


def test_deleted_agent_leaves_nothing(agent: ServedAgent) -> None:
    agent.store(PRINTER)

    agent.workspace.delete()
    agent.workspace.wait_deleted(seconds=WITHIN_S)
    wait_until(lambda: agent.search().status_code == 404, seconds=WITHIN_S, what="404")

    assert agent.workspace.physicals() == []
