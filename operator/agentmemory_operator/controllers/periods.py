"""Intervals and time limits of passes, probes and comparisons."""

from dataclasses import dataclass

from agentmemory_operator.connections.server_capacity import READ_TTL_S
from agentmemory_operator.zones.key_checks import SETTLED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Durations in seconds, and one rate.

    Attributes:
        converged_s: Delay of the next pass over a converged object. That pass detects changes made by others.
        busy_s: Delay of the next pass while Qdrant indexes the collection, or a deletion waits for a snapshot or keys.
        settle_s: Delay of the next pass after a reindex was requested, while Qdrant has not started it.
        stalled_s: Delay of the next pass over an object that waits for a user's action, a slot, a restore, or Qdrant to
            repair the collection. The operator does not watch Secrets: that pass detects a newly created Secret.
        probe_s: Interval between two probes of a connection; up to three times as long while its server is unavailable.
        capacity_s: Interval between two reads of a server's capacity.
        release_s: Longest time that an unreachable Qdrant or key store may delay a deletion.
        resync_s: Interval between two comparisons of all objects, and of copied Secrets, with lists of the API server,
            and between two checks that the signing key of user tokens exists.
        keys_settle_s: Longest time that data keys are still created under the old wrapping key after a rotation.
        reconnect_passes_per_s: Passes per second over the objects of a connection that responds again.
    """

    converged_s: float = 300.0
    busy_s: float = 5.0
    settle_s: float = 1.0
    stalled_s: float = 30.0
    probe_s: float = 5.0
    capacity_s: float = READ_TTL_S
    release_s: float = 300.0
    resync_s: float = 300.0
    keys_settle_s: float = SETTLED_S
    reconnect_passes_per_s: float = 100.0
