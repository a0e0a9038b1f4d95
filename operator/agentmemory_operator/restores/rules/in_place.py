"""A restore into the collection itself: what has to be equal for it, and in which order it is done.

| step | what it does | in the status before it |
|---|---|---|
| Rehearse | the snapshot is restored into a scratch collection: whose it is, whether it fits | `physical` |
| Close | announced; then closed until the next epoch, in the slug's claim and in the metadata | `closedSince` |
| Safeguard | a MemorySnapshot of the collection is made and verified; with a write since, another | its name |
| Recover | the server puts the snapshot's contents in the place of the collection's | how many writes it undoes |
| Compare | the collection is compared with the snapshot in a scratch collection; erasures are made again | |
| Open | the API serves again | |

Until Recover nothing has changed. After that, whatever fails is undone: the safety snapshot is restored.
"""

from enum import StrEnum

from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.conditions import Reason


class InPlaceStep(StrEnum):
    """Steps of a restore into the collection itself, in order."""

    REHEARSE = "Rehearse"
    CLOSE = "Close"
    SAFEGUARD = "Safeguard"
    RECOVER = "Recover"
    COMPARE = "Compare"
    OPEN = "Open"


UNDO = "Undo"
"""Name of the step that puts the collection back after a failure."""

EQUAL = {
    "size": "embedding.dimensions",
    "distance": "index.distance",
    "datatype": "index.vectors.datatype",
    "memory": "index.vectors.memory",
    "has_keyword": "index.keyword.enabled",
    "shard_number": "index.sharding.shardNumber",
}
"""What a server compares before it restores into a collection that exists; the first five make up its vectors."""


def check_replaceable(live: Observed | None) -> None:
    """Pass where there is a collection to restore into.

    Raises:
        SpecInvalid: there is none.
    """
    if live is None:
        raise SpecInvalid(Reason.NO_COLLECTION, "there is no collection to replace: restore with mode Swap")


def check_same(live: Collection, copy: Collection) -> None:
    """Pass where a snapshot can be restored into the live collection itself.

    Raises:
        SpecInvalid: vectors or shards differ; says which.
    """
    off = [
        f"{path} {getattr(copy, name)} instead of {getattr(live, name)}"
        for name, path in EQUAL.items()
        if getattr(copy, name) != getattr(live, name)
    ]
    if off:
        raise SpecInvalid(
            Reason.SNAPSHOT_UNFIT,
            f"the snapshot has {', '.join(off)}, and cannot be restored into the live collection; nothing was "
            f"changed. Restore with mode Swap, which creates a new collection",
        )


def safety_name(restore: str, attempt: int) -> str:
    """The name of the MemorySnapshot that is made before a restore."""
    return f"{restore}-before" if attempt == 1 else f"{restore}-before-{attempt}"


def rollback_name(restore: str) -> str:
    """The name of the MemoryRestore that takes a restore into the collection itself back."""
    return f"{restore}-rollback"
