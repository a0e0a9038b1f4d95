"""Replicas of a collection's shards: their placement, and the moves to the configured number.

A missing replica is copied from an active one to the peer with the fewest replicas and none of that shard. A surplus
one is dropped, an inactive one first, then from the peer with the most; but only while enough active ones remain. Only
one move runs at a time. The next one is computed from the observed placement, so no state is stored.

A replica on a listed peer counts even if it is dead: Qdrant refills it once the peer is back. A peer that is removed
from the cluster loses its replicas, which are created on other peers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentmemory_operator.spec.kinds.conditions import Reason

ACTIVE, DEAD = "Active", "Dead"

# Maximum number of items that a message lists.
MAX_LISTED_REPLICAS = 8

States = Mapping[int, str]
"""State of each replica by peer, in Qdrant's terms."""


@dataclass(frozen=True, slots=True)
class CopyReplica:
    """Copy a shard from a peer that has it to one that does not."""

    shard: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"shard {self.shard} from peer {self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class DropReplica:
    """Drop a peer's replica of a shard."""

    shard: int
    peer: int

    def __str__(self) -> str:
        return f"shard {self.shard} from peer {self.peer}"


Move = CopyReplica | DropReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Replicas of a collection in a cluster.

    Attributes:
        peers: Ids of all listed peers, available or not.
        shards: Replicas of each shard.
        copying: Copies in progress.
        can_move: True if the server has an API to move replicas.
    """

    peers: tuple[int, ...]
    shards: Mapping[int, States]
    copying: tuple[CopyReplica, ...] = ()
    can_move: bool = True

    @property
    def active(self) -> int:
        """Number of active replicas of all shards together."""
        return sum(state == ACTIVE for states in self.shards.values() for state in states.values())

    @property
    def inactive(self) -> tuple[str, ...]:
        """One text for each replica that is not active, with shard, peer and state, sorted by shard and peer."""
        return tuple(
            f"shard {shard} on peer {peer} is {state}"
            for shard, states in sorted(self.shards.items())
            for peer, state in sorted(states.items())
            if state != ACTIVE
        )


def plan_moves(placement: Placement, factor: int) -> tuple[Move, ...]:
    """Return the moves that give each shard `factor` replicas, in order. Moves that are unsafe now are left out."""
    shards = {shard: dict(states) for shard, states in sorted(placement.shards.items())}
    loads = Counter(peer for states in shards.values() for peer in states)
    dead_peers = {peer for states in shards.values() for peer, state in states.items() if state == DEAD}
    return (*_copies(placement, factor, shards, loads, dead_peers), *_drops(factor, shards, loads))


def next_move(placement: Placement, factor: int) -> Move | None:
    """Return the next move, or None if there is none or one is in progress."""
    return None if placement.copying else next(iter(plan_moves(placement, factor)), None)


def _copies(
    placement: Placement, factor: int, shards: dict[int, dict[int, str]], loads: Counter[int], dead_peers: set[int]
) -> Iterator[CopyReplica]:
    for shard, states in shards.items():
        sources = [peer for peer, state in states.items() if state == ACTIVE]
        while sources and len(states) < factor:
            free_peers = [peer for peer in placement.peers if peer not in states]
            if not free_peers:
                break
            source = min(sources)
            # A peer with a dead replica may be unavailable. Ties go to the next peer in a ring, which spreads the
            # shards of one peer.
            target = min(free_peers, key=lambda peer: (peer in dead_peers, loads[peer], peer < source, peer))
            yield CopyReplica(shard, source, target)
            states[target] = ACTIVE
            loads[target] += 1


def _drops(factor: int, shards: dict[int, dict[int, str]], loads: Counter[int]) -> Iterator[DropReplica]:
    for shard, states in shards.items():
        while len(states) > factor:
            droppable = [peer for peer in states if _is_enough_without(states, peer, factor)]
            if not droppable:
                break
            peer = max(droppable, key=lambda peer: (states[peer] != ACTIVE, loads[peer], peer))
            yield DropReplica(shard, peer)
            del states[peer]
            loads[peer] -= 1


def _is_enough_without(states: States, dropped: int, factor: int) -> bool:
    remaining = sum(state == ACTIVE for peer, state in states.items() if peer != dropped)
    return remaining >= max(1, factor)


@dataclass(frozen=True, slots=True)
class ReplicationGap:
    """A difference between a collection's replicas and the configuration.

    Attributes:
        started: Move that this pass has started. None without one.
        is_in_progress: True if the cluster will change on its own or in the next pass, so that it should be read again
            soon.
        slot_holder: Name of the object that has the slot for copying shards. None if this collection need not wait.
    """

    reason: Reason
    message: str
    started: Move | None = None
    is_in_progress: bool = False
    slot_holder: str | None = None


def find_gap(placement: Placement, factor: int | None, *, started_move: Move | None = None) -> ReplicationGap | None:
    """Return the difference between a collection's replicas and the configuration, or None without one.

    Args:
        factor: Configured number of replicas. None if the number is not configured or not changed now.
        started_move: Move that was started after `placement` was read.
    """
    remaining = len(plan_moves(placement, factor)) if factor else 0
    if started_move or placement.copying:
        move = started_move or placement.copying[0]
        verb = "dropping" if isinstance(move, DropReplica) else "copying"
        later_moves = remaining - (started_move is not None)
        more = f"; {later_moves} more to go" if later_moves else ""
        return ReplicationGap(Reason.REPLICATING, f"{verb} {move}{more}", started_move, is_in_progress=True)
    if remaining:
        return ReplicationGap(Reason.REPLICATING, f"{remaining} replicas left to move", is_in_progress=True)
    if pending := describe_unsettled(placement):
        return ReplicationGap(Reason.REPLICAS_INACTIVE, f"{pending}: {_WAY_OUT}")
    if factor and factor > len(placement.peers):
        return ReplicationGap(Reason.TOO_FEW_PEERS, too_few_peers(len(placement.peers), factor))
    return None


_WAY_OUT = (
    "Qdrant refills a replica when its peer is back. Remove a peer that is gone for good from the cluster "
    "(DELETE /cluster/peer/N?force=true), and its replicas are created on other peers"
)


def too_few_peers(peers: int, factor: int) -> str:
    """Return the error message for more replicas than peers."""
    return (
        f"spec.index.sharding.replicationFactor {factor} is more than the number of peers in the cluster "
        f"({peers}): set at most {peers}, or add peers"
    )


def describe_unsettled(placement: Placement) -> str:
    """Return shards without replicas, and replicas that are inactive or being copied, as text; empty without any."""
    missing = [f"shard {shard} has no replica" for shard, states in sorted(placement.shards.items()) if not states]
    copied = [f"{copy} is being copied" for copy in placement.copying]
    return join_limited([*missing, *placement.inactive, *copied])


def join_limited(items: list[str] | tuple[str, ...]) -> str:
    """Join a list for a message; after 8 items, only the number of the others is given."""
    suffix = [f"and {len(items) - MAX_LISTED_REPLICAS} more"] if len(items) > MAX_LISTED_REPLICAS else []
    return ", ".join([*items[:MAX_LISTED_REPLICAS], *suffix])
