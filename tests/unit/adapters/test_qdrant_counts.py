"""An estimate of Qdrant's is held to bounds, because several conditions may match many times the points there are."""

from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.counts import estimate_count

USER, DELETED = {"key": "userId", "match": {"value": "u"}}, {"is_empty": {"key": "deletedAt"}}
ESTIMATES = {None: 500, str([USER]): 5, str([DELETED]): 5_000, str([USER, DELETED]): 1_517_322}


async def estimated(method: str, path: str, body: Any) -> Any:
    """Answer as Qdrant 1.18.3 does where many points were deleted and not yet removed."""
    assert (method, path, body["exact"]) == ("POST", "/collections/c/points/count", False)
    must = body["filter"]["must"] if "filter" in body else None
    return {"count": ESTIMATES[must and str(must)]}


@pytest.mark.parametrize(
    ("filter_", "count"), [(None, 500), ({}, 500), ({"must": [USER, DELETED]}, 5), ({"must": [DELETED]}, 500)], ids=str
)
async def test_no_more_than_there_are_and_than_the_first_condition_matches(filter_: Any, count: int) -> None:
    assert await estimate_count(estimated, "/collections/c", filter_) == count
