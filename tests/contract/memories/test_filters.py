"""Filters over a real engine: the same memories as Python finds, whatever the payloads and the indexes."""

import asyncio
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmemory_operator.memories.rules.criteria import (
    AllOf,
    AnyOf,
    Contains,
    Criterion,
    Empty,
    Equals,
    FieldKind,
    NoneOf,
    Within,
    compile_criterion,
)
from agentmemory_operator.memories.rules.criteria_json import OPERATORS, read_filters
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.times import render_time

COMPARED = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}

INDEXED = dict(RETRIEVAL_INDEXES) | {
    "confidence": "float",
    "validTo": "integer",
    "metadata.word": "keyword",
    "metadata.whole": "integer",
    "metadata.real": "float",
    "metadata.flag": "bool",
    "metadata.at": "datetime",
}

words = st.sampled_from(["a", "A b", "b a", "é", "5", "a_b"])
wholes = st.integers(-2, 2) | st.sampled_from([2**53, -(2**53)])
numbers = st.integers(-2, 2) | st.sampled_from([-0.5, 0.0, 0.1, 0.5, 1.5, 1e300])
times_ms = st.sampled_from([0, 1, 1_795_219_200_000, 1_795_219_200_001, 253_402_300_799_999])
times = times_ms.map(render_time)
anything = words | numbers | st.booleans() | times
BOUNDS = ("gt", "gte", "lt", "lte")

METADATA = {
    "word": words,
    "whole": wholes,
    "real": numbers,
    "flag": st.booleans(),
    "at": times,
    # No index serves it.
    "any": anything,
}
# Outside name: kind, key on the point, what it holds there, what it is compared with.
FIELDS = {
    "type": (FieldKind.WORD, "type", words, words),
    "tags": (FieldKind.WORDS, "tags", st.lists(words, max_size=3), words),
    "confidence": (FieldKind.NUMBER, "confidence", st.sampled_from([0, 0.1, 0.5, 1]), numbers),
    "access_count": (FieldKind.NUMBER, "accessCount", st.integers(0, 2), numbers),
    "valid_to": (FieldKind.TIME, "validTo", times_ms, times),
}


def holds(criterion: Criterion, payload: Mapping[str, Any]) -> bool:
    """Tell whether a memory's payload meets the condition."""
    match criterion:
        case AllOf(parts):
            return all(holds(part, payload) for part in parts)
        case AnyOf(parts):
            return any(holds(part, payload) for part in parts)
        case NoneOf(parts):
            return not any(holds(part, payload) for part in parts)
        case Empty(field):
            return not values_at(payload, field.key)
        case Equals(field, wanted):
            return any(same(value, wanted) for value in values_at(payload, field.key))
        case Contains(field, text):
            return any(words_of(text) <= words_of(value) for value in values_at(payload, field.key) if words_of(text))
        case Within(field=field):
            return any(within(value, criterion.bounds) for value in values_at(payload, field.key))


def values_at(payload: Mapping[str, Any], path: str) -> list[Any]:
    value: Any = payload
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def same(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool | str):
        return type(value) is type(wanted) and bool(value == wanted)
    return is_number(value) and float(value) == wanted


def within(value: Any, bounds: Mapping[str, Any]) -> bool:
    if any(isinstance(bound, str) for bound in bounds.values()):
        moments = {name: datetime.fromisoformat(bound) for name, bound in bounds.items()}
        return (moment := moment_of(value)) is not None and all(COMPARED[n](moment, b) for n, b in moments.items())
    return is_number(value) and all(COMPARED[name](float(value), bound) for name, bound in bounds.items())


def words_of(value: Any) -> set[str]:
    return set(re.findall(r"[^\W_]+", value.lower())) if isinstance(value, str) else set()


def moment_of(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) and "T" in value else None
    except ValueError:
        return None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def one_or_many(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.none() | st.lists(values, max_size=3)


metadata: dict[str, st.SearchStrategy[Any]] = {name: one_or_many(values) for name, values in METADATA.items()}
metadata["deep"] = st.fixed_dictionaries({"any": one_or_many(anything)})
payloads = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional=metadata)},
    optional={key: values for _, key, values, _ in FIELDS.values()},
)


def conditions(
    kind: FieldKind, values: st.SearchStrategy[Any], *, bounds: st.SearchStrategy[Any] = numbers
) -> st.SearchStrategy[Any]:
    """Return what one field may be asked for: a value, or one or two operators; `bounds` are those of metadata."""
    values = st.none() | values
    operands = {
        "eq": values,
        "ne": values,
        "in": st.lists(values, min_size=1, max_size=3),
        "contains": words,
    } | dict.fromkeys(BOUNDS, bounds if kind is FieldKind.ANY else values.filter(lambda value: value is not None))
    names = st.lists(st.sampled_from(OPERATORS[kind]), min_size=1, max_size=2, unique=True)
    return values | names.flatmap(lambda chosen: st.fixed_dictionaries({name: operands[name] for name in chosen}))


def between_times(name: str) -> st.SearchStrategy[Any]:
    bounds = st.dictionaries(st.sampled_from(BOUNDS), times, min_size=1, max_size=2)
    return bounds.map(lambda chosen: {name: chosen})


def about(name: str, asked: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return asked.map(lambda condition: {name: condition})


leaves = st.one_of(
    *(about(name, conditions(kind, values)) for name, (kind, _, _, values) in FIELDS.items()),
    # A number asked of an index of times is taken for a time.
    *(
        about(f"metadata.{name}", conditions(FieldKind.ANY, values, bounds=times if name == "at" else numbers))
        for name, values in METADATA.items()
    ),
    about("metadata.deep.any", conditions(FieldKind.ANY, anything)),
    *map(between_times, ("metadata.at", "metadata.any")),
)
documents = st.recursive(
    leaves,
    lambda inner: st.dictionaries(
        st.sampled_from(["AND", "OR", "NOT"]), st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=1
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def collection(qdrant_url: str) -> Iterator[str]:
    """A collection without vectors that has the indexes."""
    url = f"{qdrant_url}/collections/filters-{uuid.uuid4().hex[:12]}"
    asyncio.run(call("PUT", url, {"vectors": {}}))
    for key, type_ in INDEXED.items():
        asyncio.run(call("PUT", f"{url}/index?wait=true", {"field_name": key, "field_schema": type_}))
    yield url
    asyncio.run(call("DELETE", url))


async def call(method: str, url: str, body: Any = None) -> Any:
    async with aiohttp.request(method, url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["result"]


async def found(url: str, rows: list[dict[str, Any]], filters: list[dict[str, Any]]) -> list[set[int]]:
    """Return the places of the rows that each filter lets through."""
    await call("POST", f"{url}/points/delete?wait=true", {"filter": {"must": []}})
    points = [{"id": place, "vector": {}, "payload": row} for place, row in enumerate(rows)]
    await call("PUT", f"{url}/points?wait=true", {"points": points})
    bodies = [{"filter": filter_, "limit": 100, "with_payload": False} for filter_ in filters]
    pages = [await call("POST", f"{url}/points/scroll", body) for body in bodies]
    return [{point["id"] for point in page["points"]} for page in pages]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(payloads, min_size=4, max_size=12), documents=st.lists(documents, min_size=10, max_size=20))
def test_the_engine_finds_what_the_filter_means(
    collection: str, rows: list[dict[str, Any]], documents: list[dict[str, Any]]
) -> None:
    trees = [criterion for document in documents if (criterion := read_filters(document))]

    places = asyncio.run(found(collection, rows, [{"must": [compile_criterion(tree)]} for tree in trees]))

    expected = [{place for place, row in enumerate(rows) if holds(tree, row)} for tree in trees]
    assert list(zip(documents, places, strict=True)) == list(zip(documents, expected, strict=True))
