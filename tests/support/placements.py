"""Replicas of a cluster in small form: in `placed(3, "12", "2-3")` shard 1 is active on peer 2 and dead on peer 3."""

from dataclasses import replace

from agentmemory_operator.domain.replicas import ACTIVE, DEAD, CopyReplica, Move, Placement


def placed(peers: int, *shards: str) -> Placement:
    """Return the placement of shards on so many peers; a digit is the peer of an active replica, after a dash dead."""
    return Placement(peers=tuple(range(1, peers + 1)), shards=dict(enumerate(map(_states, shards))))


def shown(placement: Placement) -> tuple[str, ...]:
    """Return the shards in small form."""
    return tuple(
        "".join(f"{'' if state == ACTIVE else '-'}{peer}" for peer, state in sorted(states.items()))
        for _, states in sorted(placement.shards.items())
    )


def moved(placement: Placement, move: Move, *, state: str = ACTIVE) -> Placement:
    """Return the placement once a move is carried out; a new replica is in `state`."""
    states = dict(placement.shards[move.shard])
    if isinstance(move, CopyReplica):
        states[move.target] = state
    else:
        del states[move.peer]
    return replace(placement, shards={**placement.shards, move.shard: states})


def _states(shard: str) -> dict[int, str]:
    states: dict[int, str] = {}
    for number, sign in enumerate(shard):
        if sign != "-":
            states[int(sign)] = DEAD if shard[number - 1 : number] == "-" else ACTIVE
    return states
