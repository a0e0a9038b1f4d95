"""Steps and checks of a restore into the live collection itself.

| step | action | written to the status before it starts |
|---|---|---|
| Rehearse | the snapshot is restored into a scratch collection; owner and fit are checked | `physical` |
| Close | the closing is announced; the slug's claim gets the next epoch, the metadata a mark | `closedSince` |
| Safeguard | a MemorySnapshot is created and verified; another one if writes followed its start | `safetySnapshot` |
| Recover | the server replaces the collection's contents by the snapshot's | number of writes that Recover undoes |
| Compare | the collection is compared with the snapshot in a scratch collection; erasures are repeated | |
| Open | the API serves again | |

From Close to Open the API answers 503. Before Recover no contents change. After a failure in Recover or Compare the
safety snapshot, which Safeguard created, is restored.
"""

from enum import StrEnum

from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import append_suffix


class InPlaceStep(StrEnum):
    """Step of a restore in place, in order; see the module's table."""

    REHEARSE = "Rehearse"
    CLOSE = "Close"
    SAFEGUARD = "Safeguard"
    RECOVER = "Recover"
    COMPARE = "Compare"
    OPEN = "Open"


UNDO = "Undo"
"""Name of the step that restores the safety snapshot after a failure. It is recorded once that is done."""

EQUAL_SETTINGS = {
    "size": "embedding.dimensions",
    "distance": "index.distance",
    "datatype": "index.vectors.datatype",
    "memory": "index.vectors.memory",
    "has_keyword": "index.keyword.enabled",
    "shard_number": "index.sharding.shardNumber",
}
"""Settings that must be equal to restore into an existing collection, with their path in the spec.

Qdrant compares them too. The first five define the collection's vectors.
"""


def check_replaceable(live: Observation | None) -> None:
    """Raise if the agent has no live collection to restore into.

    Raises:
        SpecInvalid: If `live` is None.
    """
    if live is None:
        raise SpecInvalid(Reason.NO_COLLECTION, "there is no collection to replace: restore with mode Swap")


def check_equal_layout(live: Collection, copy: Collection) -> None:
    """Raise if a snapshot cannot be restored into the live collection itself.

    Args:
        copy: Collection that the snapshot was restored into.

    Raises:
        SpecInvalid: If vectors or shards differ. The message lists the differences.
    """
    differences = [
        f"{path} {getattr(copy, name)} instead of {getattr(live, name)}"
        for name, path in EQUAL_SETTINGS.items()
        if getattr(copy, name) != getattr(live, name)
    ]
    if differences:
        raise SpecInvalid(
            Reason.SNAPSHOT_UNFIT,
            f"the snapshot has {', '.join(differences)}, and cannot be restored into the live collection; nothing was "
            f"changed. Restore with mode Swap, which creates a new collection",
        )


def safety_name(restore: str, attempt: int) -> str:
    """Return the name of the safety MemorySnapshot of a restore; `attempt` counts from 1."""
    return append_suffix(restore, "-before" if attempt == 1 else f"-before-{attempt}")


def rollback_name(restore: str) -> str:
    """Return the name of the MemoryRestore that rolls back the in-place restore named `restore`."""
    return append_suffix(restore, "-rollback")
