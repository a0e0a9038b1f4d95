"""Counts, estimates and facets. If strict mode forbids exact counts, all matching points are listed instead.

With `search_allow_exact: false` the server rejects exact counts and facets in addition to exact searches (400, "Exact
search disabled!"; Qdrant 1.18.3). Listing points is allowed, up to `max_query_limit` per page. The configuration of the
collection, not the text of the error, decides whether strict mode caused the rejection.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentmemory_operator.adapters.qdrant.configuration import limits_from
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.collections.rules.collection import effective_limits
from agentmemory_operator.errors import StoreRejected

Call = Callable[[str, str, Any], Awaitable[Any]]
"""Makes a read call from method, path and body. Returns the field `result` of the response."""

# Points per page. The number is small, because a concurrent search has to wait for one page.
PAGE_POINTS = 2_000


async def count_exactly(call: Call, collection: str, filter_: Mapping[str, Any] | None) -> int:
    """Return the number of matching points.

    If points must be listed, a point that is added or deleted in the meantime may or may not be included.

    Args:
        call: Makes the calls.
        collection: URL path of the collection, `/collections/{name}`.
        filter_: Qdrant filter; None or an empty one matches all points.

    Raises:
        StoreRejected: If the server rejects the call for a reason other than strict mode.
    """
    matching = {"filter": filter_} if filter_ else {}
    try:
        result = await call("POST", f"{collection}/points/count", {"exact": True} | matching)
    except StoreRejected as error:
        size = await _page_size(call, collection, error)
        return sum([len(points) async for points in _list_points(call, collection, matching, page=size, keys=False)])
    with map_parse_errors():
        return int(result["count"])


async def estimate_count(call: Call, collection: str, filter_: Mapping[str, Any] | None) -> int:
    """Return the smallest of the server's estimates for the filter, its first `must` condition, and all points.

    Qdrant multiplies the selectivities of conditions, and `is_empty` counts deleted points until they are removed. So
    its estimate for several conditions can be far too high (1.18.3: 1,517,322 for a collection of 5 points).

    Args:
        call: Makes the calls.
        collection: URL path of the collection, `/collections/{name}`.
        filter_: Qdrant filter; None or an empty one matches all points.
    """
    first = (filter_ or {}).get("must", [])[:1]
    matching = [{}, *({"filter": part} for part in (filter_, {"must": first} if first else None) if part)]
    path = f"{collection}/points/count"
    answers = await asyncio.gather(*(call("POST", path, {"exact": False} | part) for part in matching))
    with map_parse_errors():
        return min(int(result["count"]) for result in answers)


async def facet_exactly(
    call: Call, collection: str, key: str, filter_: Mapping[str, Any], *, limit: int
) -> dict[str, int]:
    """Count matching points for each of the `limit` most frequent values of a keyword.

    Args:
        call: Makes the calls.
        collection: URL path of the collection, `/collections/{name}`.
        key: Top-level payload key; nested keys are not supported.
        limit: Maximum number of values.

    Raises:
        StoreRejected: If the server rejects the call for a reason other than strict mode.
    """
    body = {"key": key, "filter": filter_, "limit": limit, "exact": True}
    try:
        result = await call("POST", f"{collection}/facet", body)
    except StoreRejected as error:
        size, counts = await _page_size(call, collection, error), Counter[str]()
        async for points in _list_points(call, collection, {"filter": filter_}, page=size, keys=[key]):
            with map_parse_errors():
                counts.update(value for point in points for value in _values((point.get("payload") or {}).get(key)))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit])
    with map_parse_errors():
        # Skip counts of 0: Qdrant 1.18.3 still lists values that only deleted points had.
        return {hit["value"]: int(hit["count"]) for hit in result["hits"] if hit["count"]}


async def _page_size(call: Call, collection: str, error: StoreRejected) -> int:
    """Return the page size for listing points if strict mode caused the error; else raise the error."""
    if error.status != 400:
        raise error
    info = await call("GET", collection, None)
    with map_parse_errors():
        limits = effective_limits(limits_from(info["config"].get("strict_mode_config")))
    if limits.get("search_allow_exact") is not False:
        raise error
    return int(min(PAGE_POINTS, limits.get("max_query_limit", PAGE_POINTS)))


async def _list_points(
    call: Call, collection: str, matching: Mapping[str, Any], *, page: int, keys: bool | list[str]
) -> AsyncIterator[Sequence[Any]]:
    """Yield all matching points, page by page."""
    body = {"limit": page, "with_payload": keys, "with_vector": False, **matching}
    while True:
        result = await call("POST", f"{collection}/points/scroll", body)
        with map_parse_errors():
            points, following = result["points"], result.get("next_page_offset")
        yield points
        if following is None:
            return
        body |= {"offset": following}


def _values(payload_value: Any) -> Sequence[str]:
    """Return the distinct keywords of a payload value, because a facet counts a repeated keyword once per point."""
    values = payload_value if isinstance(payload_value, list) else [payload_value]
    return tuple({value for value in values if isinstance(value, str)})
