"""What an operator reads when it starts, and in which order it takes it in."""

from typing import Any, cast

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.entrypoints.operator.operating import Standing, fill
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


async def test_what_a_killed_operator_had_begun_is_gone_on_with_before_more_is_begun() -> None:
    """Else more would be under way at once than are to be, and what was begun would come last."""
    taken = Taken()

    await fill(cast(OperatorFeed, taken), cast(KubernetesCluster, Listed()), Standing())

    assert taken == ["c-begun", "a-asked", "b-ended", "d-new"]
