"""Change points: read update requests and apply them, with one writer per collection.

Everything is validated before the engine receives it. The engine replays its log after a crash, and a logged operation
must not fail then.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import (
    ErrorAnswer,
    collection_missing,
    invalid,
    malformed,
    point_missing,
    vector_missing,
    wrong_input,
)
from qdrant_devserver.fields import Document, Json, read_list, read_object, replace_aliases, require
from qdrant_devserver.points.chunked_work import map_in_chunks
from qdrant_devserver.points.filters import read_filter
from qdrant_devserver.points.identifiers import PointId, read_point_id, read_point_ids
from qdrant_devserver.points.vectors import read_point_vectors
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.shards import Shards
from qdrant_devserver.storage.strict_mode import active_limits, check_limit

# Number of points in one call to the engine. The call blocks the event loop (8 x 384 dimensions: about 0.3 ms).
BATCH_SIZE = 8
_MODES = {
    "upsert": edge.UpdateMode.Upsert,
    "insert_only": edge.UpdateMode.InsertOnly,
    "update_only": edge.UpdateMode.UpdateOnly,
}
_EMPTY = ErrorAnswer(400, "Bad request: Empty update request")


@dataclass(frozen=True, slots=True)
class Update:
    """A validated update.

    Attributes:
        operations: Operations for the engine, in order.
        required_ids: Ids that must exist. A missing one is left out by `build_for_existing`, and then reported.
        build_for_existing: Builds the operations for the ids that exist.
        added: Maximum number of points that the update adds.
        vector_names: Names of the vectors of each upserted point.
    """

    operations: list[edge.UpdateOperation] = field(default_factory=list)
    required_ids: tuple[PointId, ...] = ()
    build_for_existing: Callable[[set[PointId]], list[edge.UpdateOperation]] | None = None
    added: int = 0
    vector_names: Mapping[PointId, frozenset[str]] = field(default_factory=dict)


Reader: TypeAlias = Callable[[Document, ServedCollection], Update]
AsyncReader: TypeAlias = Callable[[Document, ServedCollection], Awaitable[Update]]


async def apply_update(
    shards: Shards, collection: ServedCollection, update: Update, *, on_retained: Callable[[], None] | None = None
) -> int:
    """Apply an update under the collection's write lock and return its number.

    Args:
        on_retained: None for normal upserts. Otherwise an upsert keeps the old vectors that the new point lacks, and
            this is called if there are any.

    Raises:
        ErrorAnswer: 404 if an addressed point does not exist (the existing ones are updated nevertheless), or if the
            collection was deleted in the meantime.
    """
    async with write_access(collection):
        number = collection.next_operation()
        shard = shards.open(collection)
        operations, missing = list(update.operations), None
        if update.build_for_existing is not None:
            found = _existing(shard, update.required_ids)
            missing = next((point for point in update.required_ids if point not in found), None)
            operations = update.build_for_existing(found) if found else []
        if on_retained is not None and (kept := _restore_omitted_vectors(shard, update.vector_names)):
            on_retained()
            operations += kept
        for index, operation in enumerate(operations):
            if index:
                await asyncio.sleep(0)
            apply_operation(shard, collection, operation)
    if missing is not None:
        raise point_missing(missing)
    return number


@contextlib.asynccontextmanager
async def write_access(collection: ServedCollection) -> AsyncIterator[None]:
    """Hold the write lock of a collection.

    Raises:
        ErrorAnswer: 404 if the collection was deleted while this writer waited.
    """
    async with collection.write_lock:
        if collection.deleted:
            raise collection_missing(collection.name)
        yield


def apply_operation(shard: edge.EdgeShard, collection: ServedCollection, operation: edge.UpdateOperation) -> None:
    """Apply one operation to the engine. While an optimized copy is being built, also add it to the journal."""
    with engine_errors():
        shard.update(operation)
    if collection.journal is not None:
        collection.journal.append(operation)


def read_upsert(body: Document, collection: ServedCollection) -> Update:
    """Read `{"points": […]}` or `{"batch": {…}}`, with `update_filter` and `update_mode`.

    Raises:
        ErrorAnswer: 400 or 422 as on the server, also for more points than strict mode allows; 501 for unsupported
            vectors or conditions.
    """
    documents = _documents_of(body)
    return _build_upsert(body, collection, documents, [_read_point(document, collection) for document in documents])


async def read_upsert_in_chunks(body: Document, collection: ServedCollection) -> Update:
    """Read an upsert like `read_upsert`, but yield to the event loop after every 4 points, so searches can run."""
    documents = _documents_of(body)
    points = await map_in_chunks(lambda document: _read_point(document, collection), documents)
    return _build_upsert(body, collection, documents, points)


def _documents_of(body: Document) -> list[Json]:
    if body.get("batch") is not None:
        return _batch_points(read_object(body["batch"], "batch"))
    if body.get("points") is None:
        raise malformed("Invalid PointInsertOperations format")
    return read_list(body["points"], "points")


def _build_upsert(
    body: Document, collection: ServedCollection, documents: list[Json], points: list[edge.Point]
) -> Update:
    mode = body.get("update_mode") or "upsert"
    if mode not in _MODES:
        raise malformed(f"unknown variant `{mode}`, expected one of `upsert`, `insert_only`, `update_only`")
    condition = read_filter(body.get("update_filter"), "update_filter")
    if not points:
        raise _EMPTY
    check_limit(active_limits(collection.record.configuration), "upsert_max_batchsize", len(points), "upsert")
    conditional = condition is not None or mode != "upsert"
    with engine_errors():
        operations = [
            edge.UpdateOperation.upsert_points(part, condition or edge.Filter(), _MODES[mode])
            if conditional
            else edge.UpdateOperation.upsert_points(part)
            for part in _parts(points)
        ]
    return Update(operations, added=len(points), vector_names=dict(map(_names_of, documents)))


def _names_of(document: Json) -> tuple[PointId, frozenset[str]]:
    """Return the id of a point and the names of its vectors."""
    vector = document.get("vector", document.get("vectors"))
    return read_point_id(document["id"]), frozenset(vector if isinstance(vector, dict) else [""])


def read_set_payload(body: Document, _: ServedCollection) -> Update:
    """Read a payload to merge into that of the selected points."""
    payload, key = read_object(require(body, "payload"), "payload"), _read_key(body)
    return _selected(
        body,
        lambda ids: edge.UpdateOperation.set_payload(ids, payload, key),
        lambda chosen: edge.UpdateOperation.set_payload_by_filter(chosen, payload, key),
    )


def read_overwrite_payload(body: Document, _: ServedCollection) -> Update:
    """Read a payload that replaces that of the selected points."""
    payload, key = read_object(require(body, "payload"), "payload"), _read_key(body)
    return _selected(
        body,
        lambda ids: edge.UpdateOperation.overwrite_payload(ids, payload, key),
        lambda chosen: edge.UpdateOperation.overwrite_payload_by_filter(chosen, payload, key),
    )


def read_delete_payload(body: Document, _: ServedCollection) -> Update:
    """Read payload keys to remove from the selected points."""
    keys = _texts(require(body, "keys"), "keys")
    return _selected(
        body,
        lambda ids: edge.UpdateOperation.delete_payload(ids, keys),
        lambda chosen: edge.UpdateOperation.delete_payload_by_filter(chosen, keys),
    )


def read_clear_payload(body: Document, _: ServedCollection) -> Update:
    """Read a selection of points to remove the payload from."""
    return _selected(body, edge.UpdateOperation.clear_payload, edge.UpdateOperation.clear_payload_by_filter)


def read_delete(body: Document, _: ServedCollection) -> Update:
    """Read a selection of points to delete. Ids that do not exist are no error."""
    if body.get("points") is None:
        return Update([edge.UpdateOperation.delete_points_by_filter(_required_filter(body))])
    ids = read_point_ids(body["points"], "points")
    if not ids:
        raise _EMPTY
    return Update([edge.UpdateOperation.delete_points(list(ids))])


def read_update_vectors(body: Document, collection: ServedCollection) -> Update:
    """Read new vectors for existing points."""
    documents = read_list(require(body, "points"), "points")
    if not documents:
        raise invalid("points", "must specify points to update")
    condition = read_filter(body.get("update_filter"), "update_filter")
    vectors = [_read_point_vectors(document, collection) for document in documents]
    with engine_errors():
        changes = {point: edge.PointVectors(point, vector) for point, vector in vectors}

    def narrowed(found: set[PointId]) -> list[edge.UpdateOperation]:
        kept = [change for point, change in changes.items() if point in found]
        return [edge.UpdateOperation.update_vectors(part, condition) for part in _parts(kept)]

    return Update(required_ids=tuple(changes), build_for_existing=narrowed)


def read_delete_vectors(body: Document, collection: ServedCollection) -> Update:
    """Read names of vectors to remove from the selected points."""
    names = _texts(require(body, "vector"), "vector")
    if not names:
        raise invalid("vector", "must specify vector names to delete")
    for name in names:
        if name not in collection.vectors and name not in collection.sparse_vectors:
            raise vector_missing(name)
    return _selected(
        body,
        lambda ids: edge.UpdateOperation.delete_vectors(ids, names),
        lambda chosen: edge.UpdateOperation.delete_vectors_by_filter(chosen, names),
    )


def read_batch(body: Document, collection: ServedCollection) -> list[Update]:
    """Read a list of updates to apply in order."""
    operations = read_list(require(body, "operations"), "operations")
    return [_read_operation(read_object(operation, "operations"), collection) for operation in operations]


def _read_operation(document: Document, collection: ServedCollection) -> Update:
    for name, read in _OPERATIONS.items():
        if name in document:
            return read(read_object(document[name], name), collection)
    raise malformed("data did not match any variant of untagged enum UpdateOperation")


def _read_point(value: Json, collection: ServedCollection) -> edge.Point:
    point, vector = _read_point_vectors(value, collection)
    payload = value.get("payload")
    if payload is not None:
        read_object(payload, "payload")
    with engine_errors():
        return edge.Point(point, vector, payload)


def _read_point_vectors(value: Json, collection: ServedCollection) -> tuple[PointId, Any]:
    document = replace_aliases(read_object(value, "points"), {"vectors": "vector"})
    point = read_point_id(require(document, "id"))
    return point, read_point_vectors(require(document, "vector"), collection)


def _batch_points(batch: Document) -> list[Document]:
    ids, vectors = read_list(require(batch, "ids"), "batch.ids"), require(batch, "vectors")
    payloads = read_list(batch.get("payloads") or [], "batch.payloads")
    if isinstance(vectors, dict):
        columns = {name: read_list(column, f"batch.vectors.{name}") for name, column in vectors.items()}
        if any(len(column) != len(ids) for column in columns.values()):
            raise wrong_input("number of ids and vectors in a batch differ")
        vectors = [{name: column[index] for name, column in columns.items()} for index in range(len(ids))]
    if len(vectors) != len(ids) or len(payloads) not in (0, len(ids)):
        message = f"number of ids ({len(ids)}), vectors ({len(vectors)}) and payloads ({len(payloads)}) differ"
        raise invalid("batch", f"Validation error: {message} [{{}}]")
    rows = zip_longest(ids, vectors, payloads)
    return [{"id": point, "vector": vector, "payload": payload} for point, vector, payload in rows]


def _selected(
    body: Document,
    by_ids: Callable[[list[PointId]], edge.UpdateOperation],
    by_filter: Callable[[edge.Filter], edge.UpdateOperation],
) -> Update:
    """Build an update of the listed points or, if none are listed, of those that the filter matches."""
    if body.get("points") is None:
        chosen = _required_filter(body)
        with engine_errors():
            return Update([by_filter(chosen)])
    ids = read_point_ids(body["points"], "points")
    if not ids:
        raise _EMPTY
    with engine_errors():
        by_ids(ids)
    return Update(
        required_ids=tuple(ids), build_for_existing=lambda found: [by_ids([point for point in ids if point in found])]
    )


def _required_filter(body: Document) -> edge.Filter:
    chosen = read_filter(body.get("filter"))
    if chosen is None:
        raise malformed("Either list of point ids or filter must be provided")
    return chosen


def _restore_omitted_vectors(
    shard: edge.EdgeShard, named: Mapping[PointId, frozenset[str]]
) -> list[edge.UpdateOperation]:
    """Build operations that restore the current vectors which an upsert leaves out."""
    kept = []
    for record in shard.retrieve(list(named), False, True) if named else []:
        current: Any = record.vector or {}
        vectors = current if isinstance(current, dict) else {"": current}
        point = _id_of(record)
        if omitted := {name: vector for name, vector in vectors.items() if name not in named[point]}:
            kept.append(edge.PointVectors(point, omitted))
    return [edge.UpdateOperation.update_vectors(part, None) for part in _parts(kept)]


def _id_of(record: edge.Record) -> PointId:
    return record.id if isinstance(record.id, int) else str(record.id)


def _existing(shard: edge.EdgeShard, points: Iterable[PointId]) -> set[PointId]:
    records = shard.retrieve(list(points), False, False)
    return {_id_of(record) for record in records}


def _read_key(body: Document) -> str | None:
    key = body.get("key")
    if key is not None and not isinstance(key, str):
        raise malformed("invalid type for `key`, expected a string")
    return key


def _texts(value: Json, path: str) -> list[str]:
    names = read_list(value, path)
    if not all(isinstance(name, str) for name in names):
        raise malformed(f"invalid type for {path}, expected strings")
    return names


def _parts(items: list[Any]) -> Iterable[list[Any]]:
    return (items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE))


_OPERATIONS: dict[str, Reader] = {
    "upsert": read_upsert,
    "delete": read_delete,
    "set_payload": read_set_payload,
    "overwrite_payload": read_overwrite_payload,
    "delete_payload": read_delete_payload,
    "clear_payload": read_clear_payload,
    "update_vectors": read_update_vectors,
    "delete_vectors": read_delete_vectors,
}
