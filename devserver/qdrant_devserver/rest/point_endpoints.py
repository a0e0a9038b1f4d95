"""Endpoints of points: reads, queries and updates."""

import shutil
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request

from qdrant_devserver.error_answers import engine_failure, not_found, wrong_input
from qdrant_devserver.fields import Document, read_list, read_object, require
from qdrant_devserver.points.chunked_work import map_in_chunks
from qdrant_devserver.points.facets import count_values
from qdrant_devserver.points.identifiers import parse_point_id
from qdrant_devserver.points.queries import render_record
from qdrant_devserver.points.reads import count_points, retrieve_point, retrieve_points, scroll_records
from qdrant_devserver.points.updates import AsyncReader, Reader, Update, apply_update, read_batch
from qdrant_devserver.rest.requests import collection_of, read_body, read_wait, state_of, update_result
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.strict_mode import active_limits, check_limit


async def query_points(request: Request) -> Document:
    """POST /collections/{name}/points/query."""
    body = await read_body(request)
    return {"points": state_of(request).query_runner(collection_of(request)).run(body)}


async def query_points_batch(request: Request) -> list[Document]:
    """POST /collections/{name}/points/query/batch."""
    body = await read_body(request)
    searches = [read_object(item, "searches") for item in read_list(require(body, "searches"), "searches")]
    collection = collection_of(request)
    check_limit(active_limits(collection.record.configuration), "search_max_batchsize", len(searches), "searches")
    searching = state_of(request).query_runner(collection)
    return [{"points": searching.run(search)} for search in searches]


async def get_point(request: Request) -> Document:
    """GET /collections/{name}/points/{id}."""
    text = request.path_params["id"]
    point = parse_point_id(text)
    if point is None:
        raise wrong_input(f'Can not recognize "{text}" as point id')
    found = retrieve_point(state_of(request).shards.open(collection_of(request)), point)
    if found is None:
        raise not_found(f"Point with id {point} does not exists!")
    return found


async def get_points(request: Request) -> list[Document]:
    """POST /collections/{name}/points."""
    body, collection = await read_body(request), collection_of(request)
    return retrieve_points(state_of(request).shards.open(collection), collection, body)


async def scroll(request: Request) -> Document:
    """POST /collections/{name}/points/scroll."""
    body, collection = await read_body(request), collection_of(request)
    records, following = scroll_records(state_of(request).shards.open(collection), collection, body)
    return {"points": await map_in_chunks(render_record, records), "next_page_offset": following}


async def count(request: Request) -> Document:
    """POST /collections/{name}/points/count."""
    body, collection = await read_body(request), collection_of(request)
    return count_points(state_of(request).shards.open(collection), collection, body)


async def facet(request: Request) -> Document:
    """POST /collections/{name}/facet."""
    body, collection = await read_body(request), collection_of(request)
    return count_values(state_of(request).shards.open(collection), collection, body)


def update_endpoint(read: Reader | AsyncReader) -> Callable[[Request], Awaitable[Document]]:
    """Build the endpoint for one kind of update."""

    async def endpoint(request: Request) -> Document:
        read_wait(request)
        body = await read_body(request)
        collection = collection_of(request)
        update = read(body, collection)
        return update_result(request, await _apply(request, update if isinstance(update, Update) else await update))

    return endpoint


async def update_batch(request: Request) -> list[Document]:
    """POST /collections/{name}/points/batch. As on the server, updates before a failing one stay in effect."""
    read_wait(request)
    updates = read_batch(await read_body(request), collection_of(request))
    return [update_result(request, await _apply(request, update)) for update in updates]


async def _apply(request: Request, update: Update) -> int:
    state, collection = state_of(request), collection_of(request)
    limits = active_limits(collection.record.configuration)
    if update.added and "max_points_count" in limits:
        check_limit(limits, "max_points_count", state.shards.summary(collection).points + update.added, "points")
    _check_disk(collection)
    try:
        await state.faults.apply("update")
        keeps_vectors = state.faults.retains_vectors(amid_snapshot=collection.snapshots > 0)
        on_retained = partial(state.faults.record_effect, "upsert") if keeps_vectors else None
        return await apply_update(state.shards, collection, update, on_retained=on_retained)
    except OSError as error:
        raise engine_failure(str(error)) from error
    finally:
        state.optimizations.schedule_check(collection)


def _check_disk(collection: ServedCollection) -> None:
    """Refuse a change of points if the disk has less free space than twice the write-ahead log, as the server does."""
    least_bytes = 2 * collection.record.configuration["wal_config"]["wal_capacity_mb"] << 20
    if shutil.disk_usage(collection.folder).free < least_bytes:
        raise engine_failure("No space left on device: WAL buffer size exceeds available disk space")
