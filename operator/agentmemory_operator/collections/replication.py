"""Bring the number of replicas of a collection's shards to the configured one, by one move in each pass.

The remaining and running moves are computed from the state of the cluster in each pass. Nothing is stored, so any later
pass can continue, also after a restart.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.replicas import (
    CopyReplica,
    Placement,
    ReplicationGap,
    find_gap,
    next_move,
    too_few_peers,
)
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.spec.kinds.conditions import Reason

AcquireSlot = Callable[[], Awaitable[str | None]]
"""Acquires the slot for copying shards. Returns None if acquired, otherwise the name of the object that has it."""


NO_REPLICA_API = "the server has no API for moving replicas: a rebuild is planned instead"


async def check_peers(factor: int | None, *, store: CollectionStore) -> None:
    """Raise if a new collection of a cluster would have more replicas of a shard than the cluster has peers.

    A single server accepts any number, for a cluster that it may become later.

    Raises:
        SpecInvalid: If the cluster has fewer peers. Qdrant would create fewer replicas without an error.
    """
    if factor is None or factor == 1:
        return
    peers = await store.peers()
    if 1 < peers < factor:
        raise SpecInvalid(Reason.INVALID_SPEC, too_few_peers(peers, factor))


async def replicate(
    done: PassOutcome, factor: int | None, *, store: CollectionStore, acquire_slot: AcquireSlot | None
) -> PassOutcome:
    """Make the next move of a replica, if one is due, and add its result to the outcome of a pass.

    Args:
        done: Outcome of the pass.
        factor: Configured replicas of each shard. None leaves the replicas as they are.
        acquire_slot: Acquires the slot before a shard of a collection with points is copied. None copies without a
            slot.

    Raises:
        AgentMemoryError: Errors of `store` and `acquire_slot`.
    """
    placement = done.observed.placement
    if placement is None:
        return done
    if factor is None or not _may_move(done, placement, factor) or next_move(placement, factor) is None:
        return _with_replication(done, find_gap(placement, factor if placement.can_move else None))
    return _with_replication(done, await _move(done, placement, factor, store=store, turn=acquire_slot))


def _may_move(outcome: PassOutcome, placement: Placement, factor: int) -> bool:
    """Return whether replicas can be moved now: the server has an API for it, and no rebuild replaces the collection.

    If the collection's own replication factor differs from the configured factor, its replicas stay: either the
    difference is drift that stays, or the change of the factor is withheld.
    """
    is_replaced = outcome.refusal is not None and outcome.refusal.reason == Reason.REBUILD_RUNNING
    return placement.can_move and not is_replaced and factor == outcome.observed.collection.replication_factor


async def _move(
    outcome: PassOutcome, placement: Placement, factor: int, *, store: CollectionStore, turn: AcquireSlot | None
) -> ReplicationGap | None:
    is_copy = isinstance(next_move(placement, factor), CopyReplica)
    if is_copy and turn is not None and outcome.observed.points and (slot_holder := await turn()):
        message = f"replication is queued: one collection per connection at a time, {slot_holder} is first"
        return ReplicationGap(Reason.REINDEX_QUEUED, message, slot_holder=slot_holder)
    # Read the placement again, because dropping the last intact replica of a shard would lose its points.
    current = await store.placement(outcome.observed.physical)
    move = next_move(current, factor) if current else None
    if current is None or move is None:
        return find_gap(current or placement, factor)
    if await store.move_replica(outcome.observed.physical, move):
        return find_gap(current, factor, started_move=move)
    return ReplicationGap(Reason.REPLICATING, NO_REPLICA_API, is_in_progress=True)


def _with_replication(outcome: PassOutcome, gap: ReplicationGap | None) -> PassOutcome:
    if gap is None:
        return outcome
    is_busy = outcome.observed.is_busy or gap.is_in_progress
    observed = replace(outcome.observed, is_busy=is_busy)
    return replace(outcome, observed=observed, replication=gap, is_queued=outcome.is_queued or bool(gap.slot_holder))
