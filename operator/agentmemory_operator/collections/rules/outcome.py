"""The outcome of a pass over a collection: its state, the changes made, and the changes that are withheld."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.changes import ChangeClass, WakeOptimizers, class_of
from agentmemory_operator.collections.rules.collection import Marker, Observation
from agentmemory_operator.collections.rules.drift import Difference
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.collections.rules.replicas import ReplicationGap


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """State of a collection after a pass.

    Attributes:
        plan: Remaining changes, all withheld by `refusal`.
        refusal: Withheld changes with the reason. None if nothing is withheld.
        applied: Changes that the pass made.
        previous_owner: Marker of the owner from which this pass took the collection over. None without a takeover.
        corrected: Drift that the pass corrected.
        drift: Drift that remains, because the drift policy is Report or the correction is withheld. Empty if it is
            Ignore.
        is_queued: True if a Reindex or a copy of a shard waits for its slot.
        unlisted: Number of memories of each type that the object does not list.
        memories: Number of memories. None if the server refuses to count them.
        memories_to_reseal: Number of memories sealed with data keys that are being replaced. None if no keys are.
        replication: Differences of the collection's replicas from the configuration. None without any.
    """

    observed: Observation
    plan: Plan
    refusal: Refusal | None
    applied: Plan
    previous_owner: Marker | None = None
    corrected: tuple[Difference, ...] = ()
    drift: tuple[Difference, ...] = ()
    is_queued: bool = False
    unlisted: Mapping[str, int] = field(default_factory=dict)
    memories: int | None = None
    memories_to_reseal: int | None = None
    replication: ReplicationGap | None = None

    @property
    def has_reindexed(self) -> bool:
        """True if the pass made a change of class Reindex, which Qdrant carries out in the background."""
        return any(class_of(change) is ChangeClass.REINDEX for change in self.applied.changes)

    @property
    def is_woken(self) -> bool:
        """True if the pass resumed the optimizers of a grey collection."""
        return any(isinstance(change, WakeOptimizers) for change in self.applied.changes)
