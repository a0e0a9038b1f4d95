"""Replicas of a simulated cluster: copied between peers, moved, dropped, lost with a peer, and recovered.

The states follow the source of Qdrant 1.19. A replica that is filled by `stream_records` is Partial, by other methods
Recovery; then it is Active. An aborted copy leaves a Dead replica, an aborted move none. A Dead replica on a reachable
peer is filled again automatically.

Replicas are only states, so no point is copied. A real server notices that a peer is unreachable when a write fails.
This one notices it when the collection's cluster state is read.
"""

import asyncio
import time
from collections.abc import Iterator

from qdrant_devserver.cluster.peers import ACTIVE, DEAD, PARTIAL, Peer, replicas_of, set_replicas
from qdrant_devserver.cluster.state import State
from qdrant_devserver.error_answers import ErrorAnswer, invalid, malformed, not_built, not_found
from qdrant_devserver.fields import Choice, Document, Unsigned, read_object, require
from qdrant_devserver.points.updates import write_access
from qdrant_devserver.storage.collection import ServedCollection, Transfer

FILLING = "Recovery"
STREAM = "stream_records"
# Qdrant's default since 1.18.
DEFAULT_METHOD = "snapshot"
METHODS = Choice((STREAM, "snapshot", "wal_delta", "resharding_stream_records"))
UNSUPPORTED_OPERATIONS = (
    "create_sharding_key",
    "drop_sharding_key",
    "restart_transfer",
    "start_resharding",
    "abort_resharding",
    "replicate_points",
)


async def change_replicas(state: State, collection: ServedCollection, body: Document) -> bool:
    """Carry out `POST /collections/{name}/cluster`.

    Raises:
        ErrorAnswer: 405 if the server is no cluster; 400 or 422 as on a real server; 404 for an unknown transfer; 501
            for custom sharding and resharding.
    """
    name, fields = _read(body)
    if not state.cluster.is_enabled:
        raise ErrorAnswer(405, "Qdrant is running in standalone mode")
    shard = _unsigned(fields, "shard_id")
    if name != "abort_transfer" and shard not in replicas_of(collection.record):
        raise _bad(f"Shard {shard} of {collection.name} does not exist")
    match name:
        case "drop_replica":
            await _drop(state, collection, shard, _peer(state, fields, "peer_id"))
        case "abort_transfer":
            await _abort(collection, shard, _unsigned(fields, "from_peer_id"), _unsigned(fields, "to_peer_id"))
        case _:
            await _transfer(state, collection, _read_transfer(state, fields, shard, is_sync=name == "replicate_shard"))
    return True


async def update_replica_states(state: State, collection: ServedCollection) -> None:
    """Mark replicas on unreachable peers as Dead, and start to fill Dead replicas on reachable peers.

    The last active replica of a shard stays active. A single server has nothing to update.

    Raises:
        ErrorAnswer: 404 if the collection was deleted in the meantime.
    """
    if not state.cluster.is_enabled:
        return
    away = state.faults.unreachable_peers()
    async with write_access(collection):
        for shard, states in replicas_of(collection.record).items():
            for peer in away & states.keys():
                state.faults.record_effect("away")
                _lose(collection, shard, peer)
        transfers = list(_to_fill(collection, away))
        for transfer in transfers:
            _begin(collection, transfer)
    for transfer in transfers:
        await _run(state, collection, transfer)


def describe_transfers(collection: ServedCollection, peer: Peer, points: int) -> list[Document]:
    """List the requested transfers for `GET /collections/{name}/cluster`. Only their source peer shows the progress.

    Args:
        points: Number of points of the collection.
    """
    return [
        {
            "shard_id": transfer.shard,
            "from": transfer.source,
            "to": transfer.target,
            "sync": transfer.is_sync,
            "method": transfer.method,
        }
        | ({"comment": _progress(transfer, points)} if transfer.source == peer.number else {})
        for transfer in sorted(collection.transfers, key=lambda transfer: transfer.shard)
    ]


def _read(body: Document) -> tuple[str, Document]:
    for name in ("move_shard", "replicate_shard", "abort_transfer", "drop_replica", *UNSUPPORTED_OPERATIONS):
        if name in body:
            if name in UNSUPPORTED_OPERATIONS:
                raise not_built(f"{name} of a collection's shards")
            fields = read_object(body[name], name)
            if name != "drop_replica" and _unsigned(fields, "from_peer_id") == _unsigned(fields, "to_peer_id"):
                raise invalid(f"{name}.to_peer_id", "cannot transfer shard to itself")
            return name, fields
    raise malformed("data did not match any variant of untagged enum ClusterOperations")


def _unsigned(fields: Document, name: str) -> int:
    return Unsigned().read(require(fields, name), name)


def _peer(state: State, fields: Document, name: str) -> int:
    number = _unsigned(fields, name)
    if number not in {peer.number for peer in state.cluster.peers}:
        raise _bad(f"Peer {number} does not exist")
    return number


def _read_transfer(state: State, fields: Document, shard: int, *, is_sync: bool) -> Transfer:
    target, source = _peer(state, fields, "to_peer_id"), _peer(state, fields, "from_peer_id")
    method = METHODS.read(fields.get("method") or DEFAULT_METHOD, "method")
    if method.startswith("resharding"):
        raise not_built("resharding")
    return Transfer(shard, source, target, is_sync, method, time.monotonic())


async def _transfer(state: State, collection: ServedCollection, transfer: Transfer) -> None:
    async with write_access(collection):
        states = replicas_of(collection.record)[transfer.shard]
        if states.get(transfer.source) != ACTIVE:
            raise _bad(f"Shard {transfer.shard} is not active on peer {transfer.source}")
        ends = {transfer.source, transfer.target}
        for other in collection.transfers:
            if other.shard == transfer.shard and ends & {other.source, other.target}:
                raise _bad(f"Shard {other.shard} is already involved in transfer {other.source} -> {other.target}")
        _begin(collection, transfer)
    await _run(state, collection, transfer)


async def _drop(state: State, collection: ServedCollection, shard: int, peer: int) -> None:
    async with write_access(collection):
        states = replicas_of(collection.record)[shard]
        if peer not in states:
            raise _bad(f"Peer {peer} has no replica of shard {shard}")
        if not any(other != peer and state == ACTIVE for other, state in states.items()):
            raise _bad(f"Shard {shard} must have at least one active replica after removing {peer}")
        for transfer in [each for each in collection.transfers if each.shard == shard]:
            if peer in (transfer.source, transfer.target):
                _abandon(collection, transfer)
        remaining = replicas_of(collection.record)[shard]
        set_replicas(collection.record, shard, {other: state for other, state in remaining.items() if other != peer})
        collection.save()


async def _abort(collection: ServedCollection, shard: int, source: int, target: int) -> None:
    async with write_access(collection):
        for transfer in collection.transfers:
            if (transfer.shard, transfer.source, transfer.target) == (shard, source, target):
                _abandon(collection, transfer)
                return
        transfer_text = f"{source} -> {target} for collection {collection.name}:{shard}"
        raise not_found(f"Shard transfer {transfer_text} does not exist")


def _begin(collection: ServedCollection, transfer: Transfer) -> None:
    collection.transfers.append(transfer)
    _set(collection, transfer.shard, transfer.target, PARTIAL if transfer.method == STREAM else FILLING)


async def _run(state: State, collection: ServedCollection, transfer: Transfer) -> None:
    if state.cluster.activation_s:
        state.start(_fill(state, collection, transfer))
    else:
        await _fill(state, collection, transfer)


async def _fill(state: State, collection: ServedCollection, transfer: Transfer) -> None:
    await asyncio.sleep(state.cluster.activation_s)
    async with collection.write_lock:
        if collection.deleted or transfer not in collection.transfers:
            return
        collection.transfers.remove(transfer)
        _set(collection, transfer.shard, transfer.target, ACTIVE)
        if not transfer.is_sync:
            _set(collection, transfer.shard, transfer.source, None)


def _abandon(collection: ServedCollection, transfer: Transfer) -> None:
    collection.transfers.remove(transfer)
    _set(collection, transfer.shard, transfer.target, DEAD if transfer.is_sync else None)


def _lose(collection: ServedCollection, shard: int, peer: int) -> None:
    """Abort the transfers of a lost replica and mark it as Dead, unless it is the last active one."""
    for transfer in [each for each in collection.transfers if each.shard == shard]:
        if peer in (transfer.source, transfer.target):
            _abandon(collection, transfer)
    states = replicas_of(collection.record)[shard]
    has_others = any(other != peer and state == ACTIVE for other, state in states.items())
    if has_others and states.get(peer, DEAD) != DEAD:
        _set(collection, shard, peer, DEAD)


def _to_fill(collection: ServedCollection, away: frozenset[int]) -> Iterator[Transfer]:
    for shard, states in replicas_of(collection.record).items():
        sources = [peer for peer, state in states.items() if state == ACTIVE and peer not in away]
        for peer, state in states.items():
            if state == DEAD and peer not in away and sources:
                yield Transfer(shard, sources[0], peer, True, "wal_delta", time.monotonic())


def _set(collection: ServedCollection, shard: int, peer: int, state: str | None) -> None:
    """Set the state of a replica; None removes it."""
    states = replicas_of(collection.record)[shard]
    changed = (
        states | {peer: state} if state else {other: current for other, current in states.items() if other != peer}
    )
    set_replicas(collection.record, shard, changed)
    collection.save()


def _progress(transfer: Transfer, points: int) -> str:
    return f"Transferring records (0/{points}), started {time.monotonic() - transfer.started_s:.0f}s ago"


def _bad(message: str) -> ErrorAnswer:
    return ErrorAnswer(400, f"Bad request: {message}")
