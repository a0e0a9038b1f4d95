"""Limits for Qdrant's estimated counts: several conditions can exceed the number of points many times."""

from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.counts import estimate_count

USER, DELETED = {"key": "userId", "match": {"value": "u"}}, {"is_empty": {"key": "deletedAt"}}
ESTIMATES = {None: 500, str([USER]): 5, str([DELETED]): 5_000, str([USER, DELETED]): 1_517_322}


async def estimated(method: str, path: str, body: Any) -> Any:
    """Respond as Qdrant 1.18.3 does with many deleted points not yet vacuumed."""
    assert (method, path, body["exact"]) == ("POST", "/collections/c/points/count", False)
    must = body["filter"]["must"] if "filter" in body else None
    return {"count": ESTIMATES[must and str(must)]}


@pytest.mark.parametrize(
    ("filter_", "count"), [(None, 500), ({}, 500), ({"must": [USER, DELETED]}, 5), ({"must": [DELETED]}, 500)], ids=str
)
async def test_estimate_is_capped(filter_: Any, count: int) -> None:
    assert await estimate_count(estimated, "/collections/c", filter_) == count
