"""Count the points of each value of a payload field."""

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.fields import Document, Text, read_flag, read_unsigned, require
from qdrant_devserver.points.filters import read_filter
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.strict_mode import active_limits, check_exact, check_limit

DEFAULT_LIMIT = 10
# With a small limit and inexact counts, the engine picks at random among values with equal counts.
ALL_VALUES = 2**31


def count_values(shard: edge.EdgeShard, collection: ServedCollection, body: Document) -> Document:
    """Count the points of each value of a field, most frequent first, then by value; 10 values without a limit.

    Raises:
        ErrorAnswer: 400 if the field has no index for exact values, or strict mode forbids the request; 422 for a limit
            of 0; as `read_filter`.
    """
    limits = active_limits(collection.record.configuration)
    limit, exact = read_unsigned(body, "limit", minimum=1), read_flag(body, "exact")
    check_limit(limits, "max_query_limit", limit, "limit")
    check_exact(limits, exact)
    request = edge.FacetRequest(
        key=Text().read(require(body, "key"), "key"),
        limit=ALL_VALUES,
        exact=exact or False,
        filter=read_filter(body.get("filter")),
    )
    with engine_errors():
        hits = shard.facet(request).hits[: limit or DEFAULT_LIMIT]
    return {"hits": [{"value": hit.value, "count": hit.count} for hit in hits]}
