"""Several snapshots on a live cluster: concurrency and retention."""

import json
import threading
from typing import Any

import pytest

from agentmemory_operator.settings import MAX_CONCURRENT_SNAPSHOTS
from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

AGENTS = MAX_CONCURRENT_SNAPSHOTS + 3


class ConcurrentSnapshots:
    """Maximum number of concurrent snapshots, by the events of the watch."""

    def __init__(self, workspace: Workspace) -> None:
        self.now: set[str] = set()
        self.most = 0
        self.taken: set[str] = set()
        self._path = f"/apis/agentmemory.dev/v1alpha1/namespaces/{workspace.namespace}/memorysnapshots"
        self._http = workspace.control_plane.http

    def follow(self) -> None:
        query = {"watch": "true", "timeoutSeconds": "60"}
        with self._http.stream("GET", self._path, params=query, timeout=70) as answer:
            for line in answer.iter_lines():
                self._take(json.loads(line)["object"])
                if len(self.taken) == AGENTS:
                    return

    def _take(self, document: dict[str, Any]) -> None:
        name = document["metadata"]["name"]
        (self.now.add if (document.get("status") or {}).get("step") else self.now.discard)(name)
        self.most = max(self.most, len(self.now))
        if conditions_of(document).get("Succeeded", "").startswith("True"):
            self.taken.add(name)


def test_concurrent_snapshots_are_limited(workspace: Workspace) -> None:
    workspace.connect()
    names = [f"m{number}" for number in range(AGENTS)]
    for name in names:
        workspace.create(name, agent=f"{workspace.slug}-{name}")
    for name in names:
        workspace.wait_ready(name, seconds=30)
    observed = ConcurrentSnapshots(workspace)
    follower = threading.Thread(target=observed.follow, daemon=True)
    follower.start()

    for name in names:
        workspace.create_snapshot(f"s-{name}", of=name)

    wait_until(lambda: len(observed.taken) == AGENTS, seconds=60, what="the end of all snapshots")
    follower.join(10)
    assert 2 <= observed.most <= MAX_CONCURRENT_SNAPSHOTS


def test_retention_removes_files_and_keeps_pinned(workspace: Workspace) -> None:
    workspace.create_ready(snapshots={"retention": {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}})
    names = ["first", "second", "third", "by-hand"]
    for name in names:
        workspace.create_snapshot(name, verify="None")
        workspace.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of="MemorySnapshot", seconds=30)
    files = {name: workspace.status(name, "MemorySnapshot")["name"] for name in names}
    pin = {"metadata": {"annotations": {"agentmemory.dev/pin": "audit"}}}
    workspace.change("MemorySnapshot", "first", pin)

    for name in names[:3]:
        workspace.change("MemorySnapshot", name, {"metadata": {"labels": {"agentmemory.dev/retention": "Scheduled"}}})

    wait_until(lambda: "second" not in workspace.names("MemorySnapshot"), seconds=20, what="the end of the second")
    remaining = workspace.qdrant.get(f"/collections/{workspace.physical}/snapshots").json()["result"]
    assert workspace.names("MemorySnapshot") == ["by-hand", "first", "third"]
    assert {item["name"] for item in remaining} == {files[name] for name in ("by-hand", "first", "third")}
    assert "second is removed: no rule keeps it" in workspace.events(kind="Normal")["SnapshotRemoved"]
