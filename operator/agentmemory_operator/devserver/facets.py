"""Count the points of each value of a payload field."""

import qdrant_edge as edge

from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.engine_faults import engine_errors
from agentmemory_operator.devserver.fields import Document, Text, read_flag, read_unsigned, require
from agentmemory_operator.devserver.filters import read_filter
from agentmemory_operator.devserver.strict_mode import check_limit, check_search, limits_of

DEFAULT_LIMIT = 10


def count_values(shard: edge.EdgeShard, collection: Collection, body: Document) -> Document:
    """Return the values of a field with their counts, the most frequent first, then by value.

    Raises:
        Problem: 400 when no index of the field finds exact values.
    """
    limits = limits_of(collection.record.configuration)
    limit, exact = read_unsigned(body, "limit", minimum=1), read_flag(body, "exact")
    check_limit(limits, "max_query_limit", limit, "limit")
    check_search(limits, {"exact": exact})
    request = edge.FacetRequest(
        key=Text().read(require(body, "key"), "key"),
        limit=limit or DEFAULT_LIMIT,
        exact=exact or False,
        filter=read_filter(body.get("filter")),
    )
    with engine_errors():
        hits = shard.facet(request).hits
    return {"hits": [{"value": hit.value, "count": hit.count} for hit in hits]}
