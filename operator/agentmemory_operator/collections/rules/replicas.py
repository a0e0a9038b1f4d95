"""Where the replicas of a collection's shards are, and what brings each shard to as many as are asked for.

A replica is copied from an active one onto the peer that has fewest and none of that shard; one too many is dropped
from the peer that has most, and only where as many active ones are left as are asked for. One move at a time, and none
while a shard is on its way: each follows from what is seen, so that nothing has to be remembered.

A replica of a peer that is listed counts, dead or not: the server fills it again when its peer is back. A peer that is
taken out of the cluster takes its replicas with it, and they are made on others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentmemory_operator.spec.kinds.conditions import Reason

ACTIVE, DEAD = "Active", "Dead"

# So many are named one by one.
NAMED = 8

States = Mapping[int, str]
"""Peer -> state of its replica, in the server's words."""


@dataclass(frozen=True, slots=True)
class CopyReplica:
    """Copy a shard from a peer that has it to one that has not."""

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
    """The replicas of a collection in a cluster.

    Attributes:
        peers: numbers of all that are listed, away or not.
        shards: the replicas of each.
        copying: what is on its way.
        can_move: whether the server has calls that move replicas.
    """

    peers: tuple[int, ...]
    shards: Mapping[int, States]
    copying: tuple[CopyReplica, ...] = ()
    can_move: bool = True

    @property
    def active(self) -> int:
        """How many replicas are active."""
        return sum(state == ACTIVE for states in self.shards.values() for state in states.values())

    @property
    def inactive(self) -> tuple[str, ...]:
        """Those that are not, in words."""
        return tuple(
            f"shard {shard} on peer {peer} is {state}"
            for shard, states in sorted(self.shards.items())
            for peer, state in sorted(states.items())
            if state != ACTIVE
        )


def moves_to(placement: Placement, factor: int) -> tuple[Move, ...]:
    """What brings each shard to so many replicas, in order; what cannot be done safely now is left out."""
    shards = {shard: dict(states) for shard, states in sorted(placement.shards.items())}
    loads = Counter(peer for states in shards.values() for peer in states)
    sick = {peer for states in shards.values() for peer, state in states.items() if state == DEAD}
    return (*_copies(placement, factor, shards, loads, sick), *_drops(factor, shards, loads))


def next_move(placement: Placement, factor: int) -> Move | None:
    """The next move; None if there is nothing to do or a move is under way."""
    return None if placement.copying else next(iter(moves_to(placement, factor)), None)


def _copies(
    placement: Placement, factor: int, shards: dict[int, dict[int, str]], loads: Counter[int], sick: set[int]
) -> Iterator[CopyReplica]:
    for shard, states in shards.items():
        sources = [peer for peer, state in states.items() if state == ACTIVE]
        while sources and len(states) < factor:
            free = [peer for peer in placement.peers if peer not in states]
            if not free:
                break
            source = min(sources)
            # One with a dead replica may be away. Of several the next one round spreads what one peer had.
            target = min(free, key=lambda peer: (peer in sick, loads[peer], peer < source, peer))
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
    left = sum(state == ACTIVE for peer, state in states.items() if peer != dropped)
    return left >= max(1, factor)


@dataclass(frozen=True, slots=True)
class Replication:
    """What a cluster still owes a collection.

    Attributes:
        begun: what was begun just now.
        is_under_way: more is seen soon, without anybody doing anything.
        before: whose turn it is to have its replicas copied, where it is another's.
    """

    reason: Reason
    message: str
    begun: Move | None = None
    is_under_way: bool = False
    before: str | None = None


def replication_of(placement: Placement, factor: int | None, *, begun: Move | None = None) -> Replication | None:
    """What a cluster still owes a collection, None where everything is as asked.

    Args:
        factor: None asks for nothing.
        begun: what was begun since `placement` was seen.
    """
    left = len(moves_to(placement, factor)) if factor else 0
    if begun or placement.copying:
        doing = begun or placement.copying[0]
        verb = "dropping" if isinstance(doing, DropReplica) else "copying"
        rest = left - (begun is not None)
        more = f"; {rest} more to go" if rest else ""
        return Replication(Reason.REPLICATING, f"{verb} {doing}{more}", begun, is_under_way=True)
    if left:
        return Replication(Reason.REPLICATING, f"{left} replicas left to move", is_under_way=True)
    if waits := unsettled(placement):
        return Replication(Reason.REPLICAS_INACTIVE, f"{waits}: {_WAY_OUT}")
    if factor and factor > len(placement.peers):
        return Replication(Reason.TOO_FEW_PEERS, too_few(len(placement.peers), factor))
    return None


_WAY_OUT = (
    "Qdrant refills a replica when its peer is back. Remove a peer that is gone for good from the cluster "
    "(DELETE /cluster/peer/N?force=true), and its replicas are created on other peers"
)


def too_few(peers: int, factor: int) -> str:
    """What is wrong with more replicas than peers."""
    return (
        f"spec.index.sharding.replicationFactor {factor} is more than the number of peers in the cluster "
        f"({peers}): set at most {peers}, or add peers"
    )


def unsettled(placement: Placement) -> str:
    """What of the replicas has to be waited for, empty where all are active and none is on its way."""
    lost = [f"shard {shard} has no replica" for shard, states in sorted(placement.shards.items()) if not states]
    copied = [f"{copy} is being copied" for copy in placement.copying]
    return named([*lost, *placement.inactive, *copied])


def named(words: list[str] | tuple[str, ...]) -> str:
    """A list for people, cut where it is long."""
    more = [f"and {len(words) - NAMED} more"] if len(words) > NAMED else []
    return ", ".join([*words[:NAMED], *more])
