"""What a pass came to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.changes import ChangeClass, WakeOptimizers, class_of
from agentmemory_operator.collections.rules.collection import Marker, Observed
from agentmemory_operator.collections.rules.drift import Difference
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.collections.rules.replicas import Replication


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What holds after a pass; `plan` is what is still to do, all of it held by `refusal`.

    Attributes:
        taken_from: the owner that lost the collection to this object in this pass.
        corrected: the drift that the pass set right.
        drift: the drift that stays: left as it is, or held.
        is_queued: a Reindex waits for its turn.
        unlisted: memories of each type that the object does not list.
        memories: number of memories; None if the server refuses to count them.
        to_reseal: memories sealed with data keys that are to be replaced; None where none is to be.
        replication: what of the collection's replicas is not as it should be.
    """

    observed: Observed
    plan: Plan
    refusal: Refusal | None
    applied: Plan
    taken_from: Marker | None = None
    corrected: tuple[Difference, ...] = ()
    drift: tuple[Difference, ...] = ()
    is_queued: bool = False
    unlisted: Mapping[str, int] = field(default_factory=dict)
    memories: int | None = None
    to_reseal: int | None = None
    replication: Replication | None = None

    @property
    def has_reindexed(self) -> bool:
        """Whether the pass began a Reindex."""
        return any(class_of(change) is ChangeClass.REINDEX for change in self.applied.changes)

    @property
    def is_woken(self) -> bool:
        """Whether the pass woke a grey collection."""
        return any(isinstance(change, WakeOptimizers) for change in self.applied.changes)
