"""What of a rebuild's source is not in its target as it is there."""

from typing import Any

import pytest

from agentmemory_operator.domain.divergence import divergence

Row = dict[str, Any]
V1, V2 = {"rev": 1, "updatedAt": 10}, {"rev": 2, "updatedAt": 20}


@pytest.mark.parametrize(
    ("source", "target", "carried", "strayed"),
    [
        pytest.param({1: V1}, {1: V1}, (), {}, id="the same"),
        pytest.param({1: V1}, {}, (1,), {}, id="missing"),
        pytest.param({1: V2}, {1: V1}, (1,), {}, id="older"),
        pytest.param({1: V1}, {1: {}}, (1,), {}, id="without a revision"),
        pytest.param({1: V1}, {1: V2}, (), {1: 2}, id="ahead, as of a point that was purged and written anew"),
        pytest.param({1: V1}, {1: V1 | {"updatedAt": 11}}, (), {1: 1}, id="of the same revision, written otherwise"),
        pytest.param({1: {}}, {1: V1}, (), {1: 1}, id="written by another hand since"),
        pytest.param({1: {}}, {1: {}}, (), {}, id="of another hand, on both sides"),
        pytest.param({}, {1: V1}, (), {}, id="in the target alone: nothing is said"),
        pytest.param({"a": V1, 7: V2}, {"a": V2, 7: V1}, (7,), {"a": 2}, id="of several"),
    ],
)
def test_what_differs(source: dict[Any, Row], target: dict[Any, Row], carried: tuple[Any, ...], strayed: Row) -> None:
    found = divergence(source, target)

    assert (found.carried, dict(found.strayed)) == (carried, strayed)
