"""Counts, exact ones also of a collection whose strict mode forbids to ask for them: its points are listed then.

`search_allow_exact: false` refuses exact counts and facets as it does exact searches (400, "Exact search disabled!";
seen on Qdrant 1.18.3). Lists of points are not refused, only held to `max_query_limit`. Whether it is the strict mode
that refuses, the collection's own settings say, so that no words of an error are relied on.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.configuration import limits_from
from agentmemory_operator.collections.rules.collection import limits_in_force
from agentmemory_operator.errors import StoreRejected

Call = Callable[[str, str, Any], Awaitable[Any]]
"""Makes a call that reads, of method, path and body, and returns `result` of its answer."""

# Points of a list: who searches meanwhile waits for one.
PAGE = 2_000


async def count_exactly(call: Call, collection: str, filter_: Mapping[str, Any] | None) -> int:
    """How many points match.

    Where they have to be listed, points that come or go meanwhile may count or not, each at most once.

    Args:
        collection: its path, `/collections/{name}`.
        filter_: None, or an empty one, is all of them.

    Raises:
        StoreRejected: the server refuses for another reason.
    """
    matching = {"filter": filter_} if filter_ else {}
    try:
        told = await call("POST", f"{collection}/points/count", {"exact": True} | matching)
    except StoreRejected as error:
        page = await _page_of(call, collection, error)
        return sum([len(points) async for points in _listed(call, collection, matching, page=page, keys=False)])
    with understood():
        return int(told["count"])


async def estimate_count(call: Call, collection: str, filter_: Mapping[str, Any] | None) -> int:
    """About how many points match, and at most as many as match the first condition alone.

    Qdrant multiplies the shares of conditions. To `is_empty` deleted points count until they are removed, so a filter
    with several may match many times the points there are (1.18.3: 1,517,322 of 5).

    Args:
        collection: its path, `/collections/{name}`.
        filter_: None, or an empty one, is all of them.
    """
    first = (filter_ or {}).get("must", [])[:1]
    matching = [{}, *({"filter": each} for each in (filter_, {"must": first} if first else None) if each)]
    path = f"{collection}/points/count"
    answers = await asyncio.gather(*(call("POST", path, {"exact": False} | each) for each in matching))
    with understood():
        return min(int(told["count"]) for told in answers)


async def facet_exactly(
    call: Call, collection: str, key: str, filter_: Mapping[str, Any], *, limit: int
) -> dict[str, int]:
    """How many matching points have each value of a keyword, of the `limit` most frequent ones.

    Args:
        collection: its path, `/collections/{name}`.
        key: of the payload itself, not of an object in it.

    Raises:
        StoreRejected: the server refuses for another reason.
    """
    body = {"key": key, "filter": filter_, "limit": limit, "exact": True}
    try:
        told = await call("POST", f"{collection}/facet", body)
    except StoreRejected as error:
        page, counts = await _page_of(call, collection, error), Counter[str]()
        async for points in _listed(call, collection, {"filter": filter_}, page=page, keys=[key]):
            with understood():
                counts.update(value for point in points for value in _values((point.get("payload") or {}).get(key)))
        return dict(sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))[:limit])
    with understood():
        return {hit["value"]: int(hit["count"]) for hit in told["hits"]}


async def _page_of(call: Call, collection: str, error: StoreRejected) -> int:
    """How many points to list at once, where it was the strict mode that refused; else raise the error."""
    if error.status != 400:
        raise error
    info = await call("GET", collection, None)
    with understood():
        limits = limits_in_force(limits_from(info["config"].get("strict_mode_config")))
    if limits.get("search_allow_exact") is not False:
        raise error
    return int(min(PAGE, limits.get("max_query_limit", PAGE)))


async def _listed(
    call: Call, collection: str, matching: Mapping[str, Any], *, page: int, keys: bool | list[str]
) -> AsyncIterator[Sequence[Any]]:
    """Yield all points that match, page by page."""
    body = {"limit": page, "with_payload": keys, "with_vector": False, **matching}
    while True:
        told = await call("POST", f"{collection}/points/scroll", body)
        with understood():
            points, following = told["points"], told.get("next_page_offset")
        yield points
        if following is None:
            return
        body |= {"offset": following}


def _values(found: Any) -> Sequence[str]:
    """What a facet counts of a value: a keyword, or each of several once."""
    several = found if isinstance(found, list) else [found]
    return tuple({value for value in several if isinstance(value, str)})
