"""Brings the replicas of a collection's shards to as many as are asked for, one move in a pass.

What is on its way, and what is left, is seen in the cluster: whoever comes next goes on from there.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentmemory_operator.collections.rules.outcome import Reconciled
from agentmemory_operator.collections.rules.replicas import (
    CopyReplica,
    Placement,
    Replication,
    next_move,
    replication_of,
    too_few,
)
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.spec.kinds.conditions import Reason

Turn = Callable[[], Awaitable[str | None]]
"""Takes the turn to copy shards: returns None, or whose turn it is."""


NO_CALLS = "the server has no API for moving replicas: a rebuild is planned instead"


async def check_peers(factor: int | None, *, store: CollectionStore) -> None:
    """Pass unless a new collection is to have more replicas of a shard than the cluster has peers.

    A server that is alone takes the number for what it may become.

    Raises:
        SpecInvalid: names both numbers; Qdrant would make as many as it can and say nothing.
    """
    if factor is None or factor == 1:
        return
    peers = await store.peers()
    if 1 < peers < factor:
        raise SpecInvalid(Reason.INVALID_SPEC, too_few(peers, factor))


async def replicate(done: Reconciled, factor: int | None, *, store: CollectionStore, turn: Turn | None) -> Reconciled:
    """What a pass came to, with the one move of a replica made that is due.

    Args:
        factor: replicas of each shard that the object asks for; None asks for nothing.
        turn: asked before a shard of a collection that holds something is copied; None asks nobody.
    """
    placement = done.observed.placement
    if placement is None:
        return done
    if factor is None or not _may_move(done, placement, factor) or next_move(placement, factor) is None:
        return _told(done, replication_of(placement, factor if placement.can_move else None))
    return _told(done, await _move(done, placement, factor, store=store, turn=turn))


def _may_move(done: Reconciled, placement: Placement, factor: int) -> bool:
    """Whether replicas are moved: not where the collection is to be replaced, nor to a number left as drift."""
    is_replaced = done.refusal is not None and done.refusal.reason == Reason.REBUILD_RUNNING
    return placement.can_move and not is_replaced and factor == done.observed.collection.replication_factor


async def _move(
    done: Reconciled, placement: Placement, factor: int, *, store: CollectionStore, turn: Turn | None
) -> Replication | None:
    is_copy = isinstance(next_move(placement, factor), CopyReplica)
    if is_copy and turn is not None and done.observed.points and (before := await turn()):
        message = f"replication is queued: one collection per connection at a time, {before} is first"
        return Replication(Reason.REINDEX_QUEUED, message, before=before)
    # What is dropped does not come back: it is decided by what is so now.
    now = await store.placement(done.observed.physical)
    move = next_move(now, factor) if now else None
    if now is None or move is None:
        return replication_of(now or placement, factor)
    if await store.move_replica(done.observed.physical, move):
        return replication_of(now, factor, begun=move)
    return Replication(Reason.REPLICATING, NO_CALLS, is_under_way=True)


def _told(done: Reconciled, replication: Replication | None) -> Reconciled:
    if replication is None:
        return done
    is_busy = done.observed.is_busy or replication.is_under_way
    observed = replace(done.observed, is_busy=is_busy)
    return replace(
        done, observed=observed, replication=replication, is_queued=done.is_queued or bool(replication.before)
    )
