"""Qdrant's disk is full: writes fail with the cause, searches succeed, and writes succeed again once space is freed."""

import httpx

from tests.e2e.installed import Installed
from tests.e2e.pods import NEEDS_PODS, QdrantPod
from tests.e2e.served_agent import COFFEE, PRINTER, WITHIN_S, serve_agent
from tests.support.cluster.workspace import CONNECTION
from tests.support.patience import wait_until

pytestmark = [*NEEDS_PODS]

OUTCOME = 'outcome="disk_full"'


def test_full_disk_refuses_writes_until_space_is_freed(installed: Installed, small_qdrant: QdrantPod) -> None:
    workspace = small_qdrant.workspace
    with serve_agent(workspace, installed.api_url, connectionRef={"name": CONNECTION}) as agent:
        agent.store(PRINTER)
        small_qdrant.fill()

        refused = agent.try_store(COFFEE)
        found = agent.found()
        metrics = httpx.get(f"{installed.api_url}/metrics").text
        workspace.run_pass(seconds=WITHIN_S)
        conditions = {item["type"]: item["status"] for item in workspace.status()["conditions"]}
        small_qdrant.free()
        # Qdrant checks the disk every 2 s, unless the disk is nearly full.
        stored = wait_until(lambda: agent.try_store(COFFEE).is_success, seconds=WITHIN_S, what="a write")

        assert (refused.status_code, refused.json()["type"]) == (504, "/problems/outcome-unknown")
        assert refused.json()["detail"] == "Qdrant failed (500): its disk is full"
        assert found == [PRINTER]
        assert OUTCOME in metrics
        assert conditions["Ready"] == "True"
        assert stored
        assert agent.found() == [PRINTER, COFFEE]
        assert small_qdrant.restarts() == 0
