"""Endpoints of collections, aliases and payload indexes."""

import uuid
from datetime import UTC, datetime

import qdrant_edge as edge
from starlette.requests import Request

from agentmemory_operator.devserver.cluster import Peer, describe_shards, points_of, shard_count
from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.configuration import (
    create_configuration,
    merge_configuration,
    restarts_optimizers,
)
from agentmemory_operator.devserver.engine_faults import engine_errors
from agentmemory_operator.devserver.fields import Document, read_list, read_object, require
from agentmemory_operator.devserver.indexes import index_operation, read_schema
from agentmemory_operator.devserver.problems import malformed, wrong_input
from agentmemory_operator.devserver.replica_transfers import change_replicas, describe_transfers, settle_replicas
from agentmemory_operator.devserver.requests import read_body, read_wait
from agentmemory_operator.devserver.state import State
from agentmemory_operator.devserver.strict_mode import check_limit, limits_of
from agentmemory_operator.devserver.updates import apply_operation, write_access
from agentmemory_operator.devserver.vector_names import check_sparse_unchanged

# The server starts a collection with two segments, however small.
FEWEST_SEGMENTS = 2


def state_of(request: Request) -> State:
    """Return the server's state."""
    state: State = request.app.state.server
    return state


def peer_of(request: Request) -> Peer:
    """Return the peer that was asked."""
    peer: Peer = state_of(request).cluster.peers[request.app.state.peer - 1]
    return peer


def collection_of(request: Request) -> Collection:
    """Return the collection that the path names, directly or by an alias."""
    return state_of(request).catalogue.resolve(request.path_params["name"])


async def list_collections(request: Request) -> Document:
    """GET /collections."""
    return {"collections": [{"name": name} for name in state_of(request).catalogue.collections]}


async def create_collection(request: Request) -> bool:
    """PUT /collections/{name}."""
    state = state_of(request)
    configuration = create_configuration(await read_body(request), state.features)
    state.create(request.path_params["name"], configuration)
    return True


async def get_collection(request: Request) -> Document:
    """GET /collections/{name}."""
    state, collection = state_of(request), collection_of(request)
    summary, record = state.shards.summary(collection), collection.record
    return {
        "status": state.optimizations.status(collection),
        "optimizer_status": "ok" if collection.failure is None else {"error": collection.failure},
        "indexed_vectors_count": summary.indexed,
        "points_count": summary.points,
        "segments_count": _segments(collection, summary.segments),
        "config": record.configuration,
        "payload_schema": {
            field: schema | {"points": summary.index_points.get(field, 0)}
            for field, schema in record.payload_schema.items()
        },
        "update_queue": {"length": 0},
    }


async def collection_exists(request: Request) -> Document:
    """GET /collections/{name}/exists."""
    return {"exists": state_of(request).catalogue.exists(request.path_params["name"])}


async def patch_collection(request: Request) -> bool:
    """PATCH /collections/{name}."""
    state, body = state_of(request), await read_body(request)
    collection = collection_of(request)
    merged, problem = merge_configuration(collection.record.configuration, body, state.features)
    if collection.record.generation is not None:
        check_sparse_unchanged(collection.record.configuration, merged)
    if merged != collection.record.configuration:
        collection.record.configuration = merged
        collection.save()
    if problem is not None:
        raise problem
    if restarts_optimizers(body):
        state.optimizations.wake(collection)
    return True


async def delete_collection(request: Request) -> bool:
    """DELETE /collections/{name}; an alias is not followed."""
    state = state_of(request)
    collection = state.catalogue.collections.get(request.path_params["name"])
    if collection is None:
        return False
    await state.remove(collection)
    return True


async def list_aliases(request: Request) -> Document:
    """GET /aliases."""
    return _aliases(state_of(request).catalogue.aliases)


async def list_collection_aliases(request: Request) -> Document:
    """GET /collections/{name}/aliases."""
    name = collection_of(request).name
    aliases = state_of(request).catalogue.aliases
    return _aliases({alias: target for alias, target in aliases.items() if target == name})


async def change_aliases(request: Request) -> bool:
    """POST /collections/aliases; actions before a failing one stay, as on the server."""
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
            check_limit(limits_of(collection.record.configuration), "max_payload_index_count", count, "payload indexes")
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
            # In this order a crash in between leaves an index that nobody asked for, not one that is missing.
            collection.record.payload_schema = schemas
            collection.save()
            if collection.record.generation is not None:
                drop = edge.UpdateOperation.delete_field_index(field)
                apply_operation(state.shards.open(collection), collection, drop)
        number = collection.next_operation()
    return update_result(request, number)


async def get_optimizations(request: Request) -> Document:
    """GET /collections/{name}/optimizations."""
    state, collection = state_of(request), collection_of(request)
    wanted = _read_with(request)
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
    if "queued" in wanted:
        segment = {"uuid": _segment_id(collection), "points_count": summary.points}
        answer["queued"] = [{"optimizer": "indexing", "segments": [segment]}] if queued else []
    if "completed" in wanted:
        answer["completed"] = []
    if "idle_segments" in wanted:
        answer["idle_segments"] = []
    return answer


async def get_collection_cluster(request: Request) -> Document:
    """GET /collections/{name}/cluster."""
    state, collection = state_of(request), collection_of(request)
    await settle_replicas(state, collection)
    count, points = shard_count(collection.record), {0: state.shards.summary(collection).points}
    if count > 1:
        opened = state.shards.open(collection)
        filters = {shard: points_of(shard, count) for shard in range(count)}
        points = {shard: opened.count(edge.CountRequest(True, chosen)) for shard, chosen in filters.items()}
    told = describe_shards(collection, peer_of(request), points)
    asked_for = describe_transfers(collection, peer_of(request), sum(points.values()))
    return told | {"shard_transfers": [*told["shard_transfers"], *asked_for]}


async def change_collection_cluster(request: Request) -> bool:
    """POST /collections/{name}/cluster."""
    body = await read_body(request)
    return await change_replicas(state_of(request), collection_of(request), body)


def update_result(request: Request, number: int) -> Document:
    """Return the answer to an update; everything is applied before it is sent, whether waited for or not."""
    return {"operation_id": number, "status": "completed" if read_wait(request) else "acknowledged"}


def _segments(collection: Collection, counted: int) -> int:
    configured = collection.record.configuration["optimizer_config"]["default_segment_number"]
    return max(counted, configured or FEWEST_SEGMENTS)


def _aliases(aliases: dict[str, str]) -> Document:
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
    wanted = {name.strip() for name in request.query_params.get("with", "").split(",")} - {""}
    if unknown := wanted - {"queued", "completed", "idle_segments"}:
        raise wrong_input(f"Unknown field in 'with' parameter: {unknown.pop()}")
    return wanted


def _running(state: State, collection: Collection, points: int) -> Document:
    began = datetime.fromtimestamp(state.optimizations.started(collection), UTC).isoformat()
    segment = _segment_id(collection)
    return {
        "uuid": segment,
        "optimizer": "indexing",
        "status": "optimizing",
        "segments": [{"uuid": segment, "points_count": points}],
        "progress": {"name": "Segment Optimizing", "started_at": began},
    }


def _segment_id(collection: Collection) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, collection.folder.name))
