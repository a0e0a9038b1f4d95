"""Many snapshots at once on a live cluster: no more than the setting says are under way, and all are made."""

import json
import threading
from typing import Any

import pytest

from agentmemory_operator.settings import SNAPSHOTS_AT_ONCE
from tests.support.operator import wait_until
from tests.support.workspace import Workspace, conditions_of

pytestmark = pytest.mark.usefixtures("operator")

AGENTS = SNAPSHOTS_AT_ONCE + 3


class Under:
    """How many snapshots were under way at most, by every event of the watch."""

    def __init__(self, workspace: Workspace) -> None:
        self.now: set[str] = set()
        self.most = 0
        self.made: set[str] = set()
        self._path = f"/apis/agentmemory.dev/v1alpha1/namespaces/{workspace.namespace}/memorysnapshots"
        self._http = workspace.control_plane.http

    def follow(self) -> None:
        query = {"watch": "true", "timeoutSeconds": "60"}
        with self._http.stream("GET", self._path, params=query, timeout=70) as answer:
            for line in answer.iter_lines():
                self._take(json.loads(line)["object"])
                if len(self.made) == AGENTS:
                    return

    def _take(self, document: dict[str, Any]) -> None:
        name = document["metadata"]["name"]
        (self.now.add if (document.get("status") or {}).get("step") else self.now.discard)(name)
        self.most = max(self.most, len(self.now))
        if conditions_of(document).get("Succeeded", "").startswith("True"):
            self.made.add(name)


def test_of_one_connection_no_more_are_under_way_than_the_setting_says(workspace: Workspace) -> None:
    workspace.connect()
    names = [f"m{number}" for number in range(AGENTS)]
    for name in names:
        workspace.create(name, agent=f"{workspace.slug}-{name}")
    for name in names:
        workspace.wait_ready(name, seconds=30)
    seen = Under(workspace)
    follower = threading.Thread(target=seen.follow, daemon=True)
    follower.start()

    for name in names:
        workspace.create_snapshot(f"s-{name}", of=name)

    wait_until(lambda: len(seen.made) == AGENTS, seconds=60, what="the end of all snapshots")
    follower.join(10)
    assert 2 <= seen.most <= SNAPSHOTS_AT_ONCE
