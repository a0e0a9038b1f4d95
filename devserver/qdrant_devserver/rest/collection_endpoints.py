"""Endpoints of collections, aliases, payload indexes and named vectors."""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import qdrant_edge as edge
from starlette.requests import Request

from qdrant_devserver.cluster.peers import Peer, describe_shards, replicas_of, shard_count, shard_filter
from qdrant_devserver.cluster.replica_transfers import change_replicas, describe_transfers, update_replica_states
from qdrant_devserver.cluster.state import State
from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import malformed, wrong_input
from qdrant_devserver.fields import Document, read_list, read_object, require
from qdrant_devserver.points.updates import apply_operation, write_access
from qdrant_devserver.points.vector_names import add_vector, apply_configuration, check_sparse_unchanged, drop_vector
from qdrant_devserver.rest.requests import (
    collection_of,
    peer_of,
    peer_view,
    read_body,
    read_wait,
    state_of,
    update_result,
)
from qdrant_devserver.storage.collection import ServedCollection, Summary
from qdrant_devserver.storage.configuration import (
    create_configuration,
    merge_configuration,
    restarts_optimizers,
)
from qdrant_devserver.storage.indexes import index_operation, read_schema
from qdrant_devserver.storage.strict_mode import active_limits, check_limit

# The server creates a collection with two segments, even if it is empty.
MIN_SEGMENTS = 2


async def list_collections(request: Request) -> Document:
    """GET /collections."""
    return {"collections": [{"name": name} for name in peer_view(request).collections]}


async def create_collection(request: Request) -> bool:
    """PUT /collections/{name}."""
    state = state_of(request)
    configuration = create_configuration(await read_body(request), state.features)
    state.create(request.path_params["name"], configuration)
    return True


async def get_collection(request: Request) -> Document:
    """GET /collections/{name}.

    A peer without a replica responds with the state of a peer that has one, like the server.
    """
    state, collection = state_of(request), peer_view(request).resolve(request.path_params["name"])
    configuration, schemas = state.consensus.view_of(_source_peer(collection, peer_of(request))).read_facts(collection)
    summary = Summary() if collection.deleted else state.shards.summary(collection)
    return {
        "status": state.optimizations.status(collection),
        "optimizer_status": "ok" if collection.failure is None else {"error": collection.failure},
        "indexed_vectors_count": summary.indexed,
        "points_count": summary.points,
        "segments_count": _segments(collection, summary.segments),
        "config": configuration,
        "payload_schema": {
            field: schema | {"points": summary.index_points.get(field, 0)} for field, schema in schemas.items()
        },
        "update_queue": {"length": 0},
    }


async def collection_exists(request: Request) -> Document:
    """GET /collections/{name}/exists."""
    known, name = peer_view(request), request.path_params["name"]
    return {"exists": name in known.collections or name in known.aliases}


async def patch_collection(request: Request) -> bool:
    """PATCH /collections/{name}."""
    state, body = state_of(request), await read_body(request)
    collection = state.catalogue.resolve(request.path_params["name"])
    merged, problem = merge_configuration(collection.record.configuration, body, state.features)
    if collection.record.generation is not None:
        check_sparse_unchanged(collection.record.configuration, merged)
    if merged != collection.record.configuration:
        collection.record.configuration = merged
        collection.save()
    if problem is not None:
        raise problem
    if restarts_optimizers(body):
        state.optimizations.schedule_check(collection)
    return True


async def delete_collection(request: Request) -> bool:
    """DELETE /collections/{name}. Aliases are not resolved."""
    state = state_of(request)
    name = request.path_params["name"]
    collection, is_recovered = state.catalogue.collections.get(name), state.recoveries.pop(name, None) is not None
    if collection is None:
        return is_recovered
    await state.remove(collection)
    return True


async def list_aliases(request: Request) -> Document:
    """GET /aliases."""
    return _aliases(peer_view(request).aliases)


async def list_collection_aliases(request: Request) -> Document:
    """GET /collections/{name}/aliases."""
    known = peer_view(request)
    name = known.resolve(request.path_params["name"]).name
    return _aliases({alias: target for alias, target in known.aliases.items() if target == name})


async def change_aliases(request: Request) -> bool:
    """POST /collections/aliases. As on the server, actions before a failing one stay in effect."""
    catalogue, body = state_of(request).catalogue, await read_body(request)
    actions = [_read_alias_action(item) for item in read_list(require(body, "actions"), "actions")]
    before = dict(catalogue.aliases)
    try:
        for method, arguments in actions:
            getattr(catalogue, method)(*arguments)
    finally:
        catalogue.save_aliases(before)
    return True


async def create_index(request: Request) -> Document:
    """PUT /collections/{name}/index."""
    read_wait(request)
    state, body = state_of(request), await read_body(request)
    field = require(body, "field_name")
    if not isinstance(field, str):
        raise malformed("invalid type for `field_name`, expected a string")
    if body.get("field_schema") is None:
        raise wrong_input("Can't auto-detect field type, please specify `field_schema` in the request")
    schema = read_schema(body["field_schema"], state.features)
    with engine_errors():
        operation = index_operation(field, schema)
    collection = collection_of(request)
    async with write_access(collection):
        schemas = collection.record.payload_schema
        if schemas.get(field) != schema:
            count = len(schemas.keys() | {field})
            check_limit(
                active_limits(collection.record.configuration), "max_payload_index_count", count, "payload indexes"
            )
            # A client that disconnects does not cancel this: an index that was started is completed.
            await state.faults.delay("index")
            if collection.record.generation is not None:
                apply_operation(state.shards.open(collection), collection, operation)
            collection.record.payload_schema = schemas | {field: schema}
            collection.save()
        number = collection.next_operation()
    return update_result(request, number)


async def delete_index(request: Request) -> Document:
    """DELETE /collections/{name}/index/{field}."""
    read_wait(request)
    state, collection, field = state_of(request), collection_of(request), request.path_params["field"]
    async with write_access(collection):
        schemas = dict(collection.record.payload_schema)
        if schemas.pop(field, None) is not None:
            # In this order a crash in between leaves an extra index, not a missing one.
            collection.record.payload_schema = schemas
            collection.save()
            if collection.record.generation is not None:
                drop = edge.UpdateOperation.delete_field_index(field)
                apply_operation(state.shards.open(collection), collection, drop)
        number = collection.next_operation()
    return update_result(request, number)


async def create_vector(request: Request) -> Document:
    """PUT /collections/{name}/vectors/{vector}."""
    read_wait(request)
    body = await read_body(request)
    return await _change_vector(request, lambda stored, name: add_vector(stored, name, body))


async def delete_vector(request: Request) -> Document:
    """DELETE /collections/{name}/vectors/{vector}."""
    read_wait(request)
    return await _change_vector(request, drop_vector)


async def get_optimizations(request: Request) -> Document:
    """GET /collections/{name}/optimizations."""
    state, collection = state_of(request), collection_of(request)
    requested = _read_with(request)
    summary = state.shards.summary(collection)
    running, pending = state.optimizations.is_running(collection), state.optimizations.is_pending(collection)
    segments = _segments(collection, summary.segments)
    queued = pending and not running
    answer: Document = {
        "summary": {
            "queued_optimizations": int(queued),
            "queued_segments": int(queued),
            "queued_points": summary.points if queued else 0,
            "idle_segments": segments - 1 if running or queued else segments,
        },
        "running": [_running(state, collection, summary.points)] if running else [],
    }
    if "queued" in requested:
        segment = {"uuid": _segment_id(collection), "points_count": summary.points}
        answer["queued"] = [{"optimizer": "indexing", "segments": [segment]}] if queued else []
    if "completed" in requested:
        answer["completed"] = []
    if "idle_segments" in requested:
        answer["idle_segments"] = []
    return answer


async def get_collection_cluster(request: Request) -> Document:
    """GET /collections/{name}/cluster."""
    state, collection = state_of(request), peer_view(request).resolve(request.path_params["name"])
    if collection.deleted:
        return describe_shards(collection, peer_of(request), dict.fromkeys(replicas_of(collection.record), 0))
    await update_replica_states(state, collection)
    count, points = shard_count(collection.record), {0: state.shards.summary(collection).points}
    if count > 1:
        opened = state.shards.open(collection)
        filters = {shard: shard_filter(shard, count) for shard in range(count)}
        points = {shard: opened.count(edge.CountRequest(True, chosen)) for shard, chosen in filters.items()}
    description = describe_shards(collection, peer_of(request), points)
    transfers = describe_transfers(collection, peer_of(request), sum(points.values()))
    return description | {"shard_transfers": [*description["shard_transfers"], *transfers]}


async def change_collection_cluster(request: Request) -> bool:
    """POST /collections/{name}/cluster."""
    body = await read_body(request)
    return await change_replicas(state_of(request), collection_of(request), body)


def _source_peer(collection: ServedCollection, peer: Peer) -> int:
    """Return the number of the peer that provides the configuration: `peer` if it has a replica, else another one."""
    holders = {number for states in replicas_of(collection.record).values() for number in states}
    return peer.number if peer.number in holders else min(holders, default=peer.number)


def _segments(collection: ServedCollection, counted: int) -> int:
    configured = collection.record.configuration["optimizer_config"]["default_segment_number"]
    return max(counted, configured or MIN_SEGMENTS)


def _aliases(aliases: Mapping[str, str]) -> Document:
    listed = sorted(aliases.items())
    return {"aliases": [{"alias_name": alias, "collection_name": name} for alias, name in listed]}


_ALIAS_FIELDS = {
    "create_alias": ("alias_name", "collection_name"),
    "delete_alias": ("alias_name",),
    "rename_alias": ("old_alias_name", "new_alias_name"),
}


def _read_alias_action(value: object) -> tuple[str, list[str]]:
    document = read_object(value, "actions")
    for method, fields in _ALIAS_FIELDS.items():
        if method in document:
            arguments = read_object(document[method], method)
            names = [require(arguments, field) for field in fields]
            if all(isinstance(name, str) for name in names):
                return method, names
    raise malformed("data did not match any variant of untagged enum AliasOperations")


def _read_with(request: Request) -> set[str]:
    requested = {name.strip() for name in request.query_params.get("with", "").split(",")} - {""}
    if unknown := requested - {"queued", "completed", "idle_segments"}:
        raise wrong_input(f"Unknown field in 'with' parameter: {unknown.pop()}")
    return requested


def _running(state: State, collection: ServedCollection, points: int) -> Document:
    started_at = datetime.fromtimestamp(state.optimizations.started(collection), UTC).isoformat()
    segment = _segment_id(collection)
    return {
        "uuid": segment,
        "optimizer": "indexing",
        "status": "optimizing",
        "segments": [{"uuid": segment, "points_count": points}],
        "progress": {"name": "Segment Optimizing", "started_at": started_at},
    }


def _segment_id(collection: ServedCollection) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, collection.folder.name))


async def _change_vector(request: Request, change: Callable[[Document, str], Document]) -> Document:
    state, collection, name = state_of(request), collection_of(request), request.path_params["vector"]
    async with write_access(collection):
        changed = change(collection.record.configuration, name)
        if changed != collection.record.configuration:
            apply_configuration(state.shards, collection, changed, name)
        number = collection.next_operation()
    state.optimizations.schedule_check(collection)
    return update_result(request, number)
