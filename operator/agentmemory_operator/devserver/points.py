"""Read points: by id, page by page, counted."""

import qdrant_edge as edge

from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.engine_faults import engine_errors
from agentmemory_operator.devserver.fields import Document, Json, read_flag, read_unsigned, require
from agentmemory_operator.devserver.filters import read_filter
from agentmemory_operator.devserver.identifiers import PointId, read_point_id, read_point_ids
from agentmemory_operator.devserver.ordering import read_order_by
from agentmemory_operator.devserver.problems import wrong_input
from agentmemory_operator.devserver.queries import render_record
from agentmemory_operator.devserver.selections import read_with_payload, read_with_vector
from agentmemory_operator.devserver.strict_mode import check_limit, limits_of

DEFAULT_LIMIT = 10


def retrieve_points(shard: edge.EdgeShard, collection: Collection, body: Document) -> list[Document]:
    """Return the points with the given ids that exist, in the order of the request."""
    ids = read_point_ids(require(body, "ids"), "ids")
    with_payload, with_vector = read_with_payload(body, default=True), read_with_vector(body, collection)
    with engine_errors():
        return [render_record(record) for record in shard.retrieve(list(ids), with_payload, with_vector)]


def retrieve_point(shard: edge.EdgeShard, point: PointId) -> Document | None:
    """Return one whole point, or none."""
    records = shard.retrieve([point], True, True)
    return render_record(records[0]) if records else None


def scroll_records(
    shard: edge.EdgeShard, collection: Collection, body: Document
) -> tuple[list[edge.Record], PointId | None]:
    """Return a page of points and where the next begins."""
    limit = read_unsigned(body, "limit", path="scroll_request.", minimum=1)
    check_limit(limits_of(collection.record.configuration), "max_query_limit", limit, "limit")
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


def count_points(shard: edge.EdgeShard, body: Document) -> Document:
    """Return how many points a filter matches; exactly, unless the body says otherwise."""
    exact = read_flag(body, "exact")
    with engine_errors():
        count = shard.count(edge.CountRequest(exact is not False, read_filter(body.get("filter"))))
    return {"count": count}
