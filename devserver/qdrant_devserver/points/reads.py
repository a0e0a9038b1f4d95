"""Read points: by id, by page, and their number."""

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import wrong_input
from qdrant_devserver.fields import Document, Json, read_flag, read_unsigned, require
from qdrant_devserver.points.filters import read_filter
from qdrant_devserver.points.identifiers import PointId, read_point_id, read_point_ids
from qdrant_devserver.points.ordering import read_order_by
from qdrant_devserver.points.queries import render_record
from qdrant_devserver.points.selections import read_with_payload, read_with_vector
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.strict_mode import active_limits, check_exact, check_limit

DEFAULT_LIMIT = 10


def retrieve_points(shard: edge.EdgeShard, collection: ServedCollection, body: Document) -> list[Document]:
    """Return the existing points with the given ids, in the order of the request.

    Raises:
        ErrorAnswer: 400 for a missing or malformed list of ids or selection of parts.
    """
    ids = read_point_ids(require(body, "ids"), "ids")
    with_payload, with_vector = read_with_payload(body, default=True), read_with_vector(body, collection)
    with engine_errors():
        return [render_record(record) for record in shard.retrieve(list(ids), with_payload, with_vector)]


def retrieve_point(shard: edge.EdgeShard, point: PointId) -> Document | None:
    """Return a point with payload and vectors, or None if it does not exist."""
    records = shard.retrieve([point], True, True)
    return render_record(records[0]) if records else None


def scroll_records(
    shard: edge.EdgeShard, collection: ServedCollection, body: Document
) -> tuple[list[edge.Record], PointId | None]:
    """Return a page of points, 10 without a limit, and the id at which the next page starts; None on the last page.

    Raises:
        ErrorAnswer: 400 for `order_by` with an offset or without a range index, for malformed parts of the request, or
            if strict mode forbids the limit; 422 for a limit of 0; as `read_filter`.
    """
    limit = read_unsigned(body, "limit", path="scroll_request.", minimum=1)
    check_limit(active_limits(collection.record.configuration), "max_query_limit", limit, "limit")
    order: Json = body.get("order_by")
    offset: Json = body.get("offset")
    if order is not None and offset is not None:
        raise wrong_input(
            "Cannot use an `offset` when using `order_by`. The alternative for paging is to use "
            "`order_by.start_from` and a filter to exclude the IDs that you've already seen"
        )
    request = edge.ScrollRequest(
        offset=None if offset is None else read_point_id(offset),
        limit=limit or DEFAULT_LIMIT,
        filter=read_filter(body.get("filter"), "scroll_request.filter"),
        with_payload=read_with_payload(body, default=True),
        with_vector=read_with_vector(body, collection),
        order_by=None if order is None else read_order_by(order, collection),
    )
    with engine_errors():
        records, following = shard.scroll(request)
    return records, following


def count_points(shard: edge.EdgeShard, collection: ServedCollection, body: Document) -> Document:
    """Count the points that a filter matches; exactly, unless `exact` is false.

    Raises:
        ErrorAnswer: 400 if strict mode forbids exact requests.
    """
    is_exact = read_flag(body, "exact") is not False
    check_exact(active_limits(collection.record.configuration), is_exact)
    with engine_errors():
        count = shard.count(edge.CountRequest(is_exact, read_filter(body.get("filter"))))
    return {"count": count}
