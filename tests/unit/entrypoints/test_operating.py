"""What an operator reads when it starts, and in which order it takes it in."""

from typing import Any, cast

import pytest

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.entrypoints.operator import operator_tasks
from agentmemory_operator.entrypoints.operator.operator_tasks import Startup, list_all_objects
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.runtime.feed import OperatorFeed

BEGUN = {"startTime": "2026-11-22T03:00:00Z"}
ENDED = BEGUN | {"endTime": "2026-11-22T03:01:00Z"}


class Listed:
    """A cluster that lists snapshots, and nothing else."""

    async def check_served(self) -> None:
        """Find the kinds served."""

    async def list_all(self, kind: str) -> list[dict[str, Any]]:
        if kind != "MemorySnapshot":
            return []
        statuses = {"a-asked": {}, "b-ended": ENDED, "c-begun": BEGUN, "d-new": None}
        return [{"metadata": {"name": name}, "status": status} for name, status in statuses.items()]


class Taken(list[str]):
    """A feed that remembers what it was given."""

    def take(self, event: str, document: dict[str, Any]) -> None:
        self.append(document["metadata"]["name"])


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0


class Refusing:
    """A cluster that lists nothing, and lets time pass as it is asked."""

    def __init__(self, clock: Clock, *troubles: str) -> None:
        self._clock = clock
        self._troubles = list(troubles)

    async def check_served(self) -> None:
        self._clock.now_s += 50
        raise TransientError(self._troubles.pop(0))


async def test_a_start_waits_for_what_is_missing_and_then_ends_with_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tasks, "LIST_RETRY_S", 0.0)
    clock = Clock()
    startup = Startup(120.0, now_s=lambda: clock.now_s)
    assert startup.why_not_ready() == "objects are not listed yet"

    with pytest.raises(AgentMemoryError, match=r"gave up after 150 s: cannot list QdrantConnection: a right"):
        await list_all_objects(
            cast(OperatorFeed, Taken()),
            cast(KubernetesCluster, Refusing(clock, "no CRDs", "no CRDs", "a right is missing")),
            startup,
        )

    assert startup.why_not_ready() == "objects are not listed yet: cannot list QdrantConnection: no CRDs"
    assert [record.getMessage() for record in caplog.records] == [
        "cannot list QdrantConnection: no CRDs; waiting for up to 70 s"
    ]
    startup.ready.set()
    assert startup.why_not_ready() is None


async def test_what_a_killed_operator_had_begun_is_gone_on_with_before_more_is_begun() -> None:
    """Else more would be under way at once than are to be, and what was begun would come last."""
    taken = Taken()

    await list_all_objects(cast(OperatorFeed, taken), cast(KubernetesCluster, Listed()), Startup())

    assert taken == ["c-begun", "a-asked", "b-ended", "d-new"]
