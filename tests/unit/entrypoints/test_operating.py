"""Start of an operator: objects that it lists, and their order."""

from typing import Any, cast

import pytest

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.entrypoints.operator import operator_tasks
from agentmemory_operator.entrypoints.operator.operator_tasks import Startup, list_all_objects
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.runtime.feed import OperatorFeed

STARTED = {"startTime": "2026-11-22T03:00:00Z"}
COMPLETED = STARTED | {"endTime": "2026-11-22T03:01:00Z"}


class SnapshotCluster:
    """A cluster that lists only snapshots."""

    async def check_served(self) -> None:
        """Accept: all kinds are served."""

    async def list_all(self, kind: str) -> list[dict[str, Any]]:
        if kind != "MemorySnapshot":
            return []
        statuses = {"a-asked": {}, "b-ended": COMPLETED, "c-begun": STARTED, "d-new": None}
        return [{"metadata": {"name": name}, "status": status} for name, status in statuses.items()]


class RecordingFeed(list[str]):
    """A feed that records the names of objects."""

    def take(self, event: str, document: dict[str, Any]) -> None:
        self.append(document["metadata"]["name"])


class Clock:
    """Clock that a test sets, in seconds."""

    now_s = 0.0


class FailingCluster:
    """A cluster whose every check takes 50 s and fails."""

    def __init__(self, clock: Clock, *errors: str) -> None:
        self._clock = clock
        self._errors = list(errors)

    async def check_served(self) -> None:
        self._clock.now_s += 50
        raise TransientError(self._errors.pop(0))


async def test_start_waits_for_requirements_then_gives_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tasks, "LIST_RETRY_S", 0.0)
    clock = Clock()
    startup = Startup(120.0, now_s=lambda: clock.now_s)
    assert startup.find_obstacle() == "objects are not listed yet"

    with pytest.raises(AgentMemoryError, match=r"gave up after 150 s: cannot list QdrantConnection: a right"):
        await list_all_objects(
            cast(OperatorFeed, RecordingFeed()),
            cast(KubernetesCluster, FailingCluster(clock, "no CRDs", "no CRDs", "a right is missing")),
            startup,
        )

    assert startup.find_obstacle() == "objects are not listed yet: cannot list QdrantConnection: a right is missing"
    assert [record.getMessage() for record in caplog.records] == [
        "cannot list QdrantConnection: no CRDs; waiting for up to 70 s"
    ]
    startup.ready.set()
    assert startup.find_obstacle() is None


async def test_started_work_is_listed_before_new_work() -> None:
    """If new work came first, too much work would run at once, and started work would complete last."""
    feed = RecordingFeed()

    await list_all_objects(cast(OperatorFeed, feed), cast(KubernetesCluster, SnapshotCluster()), Startup())

    assert feed == ["c-begun", "a-asked", "b-ended", "d-new"]
