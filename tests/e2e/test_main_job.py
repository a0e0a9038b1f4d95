"""From an object to search results, and back from a loss, with the chart and its trial Qdrant."""

from datetime import UTC, datetime, timedelta

from tests.e2e.served_agent import COFFEE, PRINTER, WITHIN_S, ServedAgent
from tests.support.patience import wait_until
from tests.support.web.http_server import check_success


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
