"""Cleanups on a live cluster: requested, scheduled, and held for approval."""

import datetime
import json
import time
from typing import Any

import pytest

from tests.support.cluster.operators import run_command
from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

DAY_MS = 86_400_000
FACTS = [{"name": "fact", "halfLifeDays": 30}]


def store(workspace: Workspace, *, old: int, new: int) -> None:
    """Store memories in the format of the API; old ones are a year old."""
    now_ms = int(time.time() * 1000)
    points = [
        point(number, created_at=now_ms - (365 * DAY_MS if number <= old else 0)) for number in range(1, old + new + 1)
    ]
    body = {"points": points}
    workspace.qdrant.put(f"/collections/{workspace.alias}/points?wait=true", json=body).raise_for_status()


def point(number: int, *, created_at: int) -> dict[str, Any]:
    memory_id = f"00000000-0000-4000-8000-{number:012d}"
    payload = {"id": memory_id, "agentId": "a", "userId": "u", "type": "fact", "content": "c", "createdAt": created_at}
    payload |= {"updatedAt": created_at, "rev": 1, "importance": 0.5, "accessCount": 0, "pending": False}
    return {"id": memory_id, "vector": [1.0] * SIZE, "payload": payload}


def alive(workspace: Workspace) -> int:
    """Return the number of memories that are not deleted."""
    body = {"exact": True, "filter": {"must": [{"is_empty": {"key": "deletedAt"}}]}}
    answer = workspace.qdrant.post(f"/collections/{workspace.alias}/points/count", json=body)
    count: int = answer.raise_for_status().json()["result"]["count"]
    return count


def last(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = workspace.status().get("lastCleanup") or {}
    return found


def ask(workspace: Workspace, stamp: str = "now") -> dict[str, Any]:
    """Request a run and return its result."""
    workspace.annotate(cleanup_requested_at=stamp)
    wait_until(lambda: last(workspace).get("requestedAt") == stamp, seconds=15, what="the run that was asked for")
    return last(workspace)


def test_requested_run_removes_decayed_memories(workspace: Workspace) -> None:
    workspace.create_ready(types=FACTS)
    store(workspace, old=5, new=30)

    run = ask(workspace)

    assert (run["removed"], run["reasons"]) == (5, {"decayed": 5})
    assert alive(workspace) == 30
    events = workspace.events(kind="Normal")
    assert "removed 5 memories: 5 decayed" in events["CleanedUp"]
    due = datetime.datetime.fromisoformat(workspace.status()["nextCleanupTime"])
    assert due.hour in (2, 3)


def test_large_removal_waits_for_approval(workspace: Workspace) -> None:
    workspace.create_ready(types=FACTS)
    store(workspace, old=15, new=5)

    held = ask(workspace)["held"]

    assert (held["wouldRemove"], held["memories"], held["reasons"]) == (15, 20, {"decayed": 15})
    assert alive(workspace) == 20
    assert held["digest"] in workspace.events()["CleanupHeld"]

    workspace.annotate(approve_cleanup=held["digest"])

    wait_until(lambda: last(workspace).get("removed") == 15, seconds=15, what="the approved run")
    assert alive(workspace) == 5
    assert "held" not in last(workspace)


def test_missed_runs_are_made_up_for_once(workspace: Workspace) -> None:
    workspace.create_ready(types=FACTS)
    store(workspace, old=3, new=0)

    def is_made_up_for() -> bool:
        if last(workspace).get("removed") == 3:
            return True
        # Repeat: a pass that started earlier may overwrite this status.
        workspace.patch_status({"lastCleanup": {"time": "2026-01-01T03:00:00Z", "removed": 0}})
        workspace.run_pass()
        return False

    wait_until(is_made_up_for, seconds=15, what="the run that was missed")
    made = last(workspace)
    workspace.request_pass()
    wait_until(lambda: workspace.status()["nextCleanupTime"] > made["time"], seconds=10, what="the next time")
    assert last(workspace) == made


def test_command_previews_and_requests_a_run(workspace: Workspace) -> None:
    workspace.create_ready(types=FACTS)
    store(workspace, old=4, new=30)
    named = ("cleanup", "memory", "-n", workspace.namespace)

    status, listed, _ = run_command(workspace.control_plane, *named, "--dry-run", "-o", "json")
    draft = json.loads(listed)

    assert status == 0
    assert (draft["memories"], draft["would_remove"], draft["held"]) == (34, 4, False)
    assert {entry["reason"] for entry in draft["removals"]} == {"decayed"}
    assert alive(workspace) == 34
    shown = run_command(workspace.control_plane, *named, "--dry-run")[1]
    assert "4 of 34 memories would be removed: 4 decayed" in shown

    refused, _, error = run_command(workspace.control_plane, *named)
    assert (refused, "add --yes" in error, last(workspace).get("removed")) == (2, True, None)
    assert run_command(workspace.control_plane, *named, "--yes")[0] == 0
    wait_until(lambda: last(workspace).get("removed") == 4, seconds=15, what="the run")
