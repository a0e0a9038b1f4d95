"""One table of calls for Qdrant and for `PointMemory`, which must give the same results.

Property tests rely on `PointMemory`. A new case is an entry in tests/golden/points.yaml.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import SIZE
from tests.support.engine.point_memory import PointMemory
from tests.support.spec.golden import read_table

CASES: list[Json] = read_table("points.yaml")
NAMES = "abcdef"
ID = "00000000-0000-4000-8000-00000000000"
EVERYTHING = {"limit": 100, "with_payload": True}


def id_of(name: str) -> str:
    return f"{ID}{NAMES.index(name)}"


def name_of(id_: str) -> str:
    return NAMES[int(id_.removeprefix(ID))]


def with_ids(value: Any) -> Any:
    """Replace `$a` to `$f` by ids."""
    if isinstance(value, dict):
        return {key: with_ids(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_ids(part) for part in value]
    return id_of(value[1]) if isinstance(value, str) and value.startswith("$") else value


def with_vectors(call: Json) -> Json:
    """Add the vector that the engine requires to the points of an upsert."""
    for upsert in (call, *(operation.get("upsert", {}) for operation in call.get("operations", ()))):
        for point in upsert.get("points", ()):
            point.setdefault("vector", [1.0] * SIZE)
    return call


def payloads_by_name(points: list[Json]) -> dict[str, Any]:
    found = {name_of(point["id"]): point.get("payload") for point in points}
    assert len(found) == len(points), "a point is told twice"
    return found


@pytest.fixture(params=["engine", "memory"])
def store(request: pytest.FixtureRequest) -> Any:
    """The engine, and its in-memory model."""
    return PointMemory() if request.param == "memory" else request.getfixturevalue("world").agent.store


@pytest.fixture
def collection(store: Any, request: pytest.FixtureRequest) -> str:
    return "memory" if isinstance(store, PointMemory) else request.getfixturevalue("world").agent.alias


async def fill(store: Any, collection: str, points: Mapping[str, Json]) -> None:
    rows = [{"id": id_of(name), "vector": [1.0] * SIZE, "payload": payload} for name, payload in points.items()]
    if rows:
        await store.upsert(collection, rows)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
async def test_memory_matches_engine(store: Any, collection: str, case: Json) -> None:
    await fill(store, collection, case["points"])

    answer: Any = None
    for call in case["calls"]:
        ((method, arguments),) = call.items()
        answer = await getattr(store, method)(collection, **with_vectors(with_ids(arguments)))

    if "answers" in case:
        points, following = answer if isinstance(answer, tuple) else (answer, None)
        assert payloads_by_name(points) == case["answers"]
        assert (following and name_of(following)) == case.get("next")
    if "then" in case:
        points, _ = await store.scroll(collection, EVERYTHING)
        assert payloads_by_name(points) == case["then"]
