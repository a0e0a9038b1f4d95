"""When passes look again at what they have looked at."""

from dataclasses import dataclass

from agentmemory_operator.connections.capacity import FRESH_S
from agentmemory_operator.zones.upkeep import SETTLED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Seconds until something is looked at again.

    Attributes:
        converged_s: an object that is as it should be: finds what changed behind the operator's back.
        busy_s: one whose collection the engine indexes.
        settle_s: one whose collection was told to reindex and is not seen to.
        stalled_s: one that only a person can mend: a Secret created later sends no event.
        probe_s: a connection.
        capacity_s: how full its server is.
        release_s: how long an unreachable Qdrant may hold an object's deletion.
        keys_settle_s: after another wrapping key came, data keys are made under the one before for no longer.
        returning_per_s: not a period: how many objects of a connection that came back are looked at each second.
        resync_s: all objects, against the list of the API server.
    """

    converged_s: float = 300.0
    busy_s: float = 5.0
    settle_s: float = 1.0
    stalled_s: float = 30.0
    probe_s: float = 5.0
    capacity_s: float = FRESH_S
    release_s: float = 300.0
    resync_s: float = 300.0
    keys_settle_s: float = SETTLED_S
    returning_per_s: float = 100.0
