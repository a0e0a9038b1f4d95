"""Filters on a real engine, with every index and without one, compared with an oracle.

The engine finds candidates, the matcher of the product decides (docs/adr/0042). Each filter is also evaluated by wrong
oracles: the run fails if a wrong oracle differs in too few cases.
"""

import asyncio
import functools
import operator
import re
import unicodedata
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    compile_certain,
    compile_criterion,
    is_exact,
)
from agentmemory_operator.memories.rules.criteria_json import OPERATORS, parse_filters
from agentmemory_operator.memories.rules.criteria_match import matches
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.times import render_time

COMPARED = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
BOUNDS = tuple(COMPARED)
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"

COFFEE, DRINKS_COFFEE = "\u5496\u5561", "\u559d\u5496\u5561"
TEXTS = (
    *("ant", "elephant", "Big Ant here", "HERE, big", "a_b", "\u00e9", "E\u0301t\u00e9", DRINKS_COFFEE, "5"),
    *(ID, ID.upper()),
)
QUERY_WORDS = ("ant", "ANT", "here big", "Big Ant", "a", "e\u0301", COFFEE)
WHOLES = (*range(-2, 3), 2**53, 2**53 + 1, -(2**53), 1357924680135792468)
NUMBERS = (*WHOLES, -0.5, 0.0, 0.1, 0.5, 1.5, 1e300)
TIMES_MS = (0, 1, 1_795_219_200_000, 1_795_219_200_001, 253_402_300_799_999)
TIMES = tuple(map(render_time, TIMES_MS))

texts, wholes, numbers, times_ms, times = map(st.sampled_from, (TEXTS, WHOLES, NUMBERS, TIMES_MS, TIMES))
query_words = st.sampled_from(QUERY_WORDS)
query_texts = texts | query_words
anything = texts | numbers | st.booleans() | times

# An integer index does not contain fractions: docs/filters.md.
STORED = {
    "integer": texts | wholes | st.booleans() | times,
    **dict.fromkeys(["keyword", "float", "bool", "datetime", "text", "uuid", "plain"], anything),
}
"""Values of metadata fields. Each field has the name of its index; `plain` has none."""
INDEXED = dict(RETRIEVAL_INDEXES) | {
    "confidence": "float",
    "validTo": "integer",
    **{f"metadata.{name}": name for name in STORED if name != "plain"},
}
# Public name: kind, payload key, stored values, values in filters.
FIELDS = {
    "type": (FieldKind.WORD, "type", texts, query_texts),
    "tags": (FieldKind.WORDS, "tags", st.lists(texts, max_size=3), query_texts),
    "confidence": (FieldKind.NUMBER, "confidence", st.sampled_from([0, 0.1, 0.5, 1]), numbers),
    "access_count": (FieldKind.NUMBER, "accessCount", st.integers(0, 2), numbers),
    "valid_to": (FieldKind.TIME, "validTo", times_ms, times),
}


class Oracle:
    """The meaning of filters according to docs/filters.md."""

    def holds(self, criterion: Criterion, payload: Mapping[str, Any]) -> bool:
        """Return whether a payload meets a criterion."""
        match criterion:
            case AllOf(parts):
                return all(self.holds(part, payload) for part in parts)
            case AnyOf(parts):
                return any(self.holds(part, payload) for part in parts)
            case NoneOf(parts):
                return not any(self.holds(part, payload) for part in parts)
        values = values_at(payload, criterion.field.key)
        match criterion:
            case Empty():
                return not values
            case Equals(value=expected_value):
                return any(self.same(value, expected_value) for value in values)
            case Contains(text=text):
                return any(isinstance(value, str) and self.contains(value, text) for value in values)
            case Within():
                return any(self.within(value, criterion.bounds) for value in values)

    def same(self, value: Any, expected_value: Any) -> bool:
        if isinstance(expected_value, bool | str):
            return type(value) is type(expected_value) and bool(value == expected_value)
        return is_number(value) and self.compare("eq", value, expected_value)

    def within(self, value: Any, bounds: Mapping[str, Any]) -> bool:
        if any(isinstance(bound, str) for bound in bounds.values()):
            moments = {name: datetime.fromisoformat(bound) for name, bound in bounds.items()}
            return (moment := moment_of(value)) is not None and all(COMPARED[n](moment, b) for n, b in moments.items())
        return is_number(value) and all(self.compare(name, value, bound) for name, bound in bounds.items())

    def compare(self, name: str, value: Any, expected_value: Any) -> bool:
        return bool((COMPARED | {"eq": operator.eq})[name](value, expected_value))

    def contains(self, value: str, text: str) -> bool:
        own = words_of(value)
        return all(
            word in own or (word > "\u3000" and any(word in longer for longer in own)) for word in words_of(text)
        )


class Substring(Oracle):
    """Text match of Qdrant without an index."""

    def contains(self, value: str, text: str) -> bool:
        return text in value


class Cased(Oracle):
    def contains(self, value: str, text: str) -> bool:
        return set(re.findall(r"[^\W_]+", text)) <= set(re.findall(r"[^\W_]+", value))


class Runs(Oracle):
    """Text match of Qdrant with an index: whole words, separated by characters that are no letters."""

    def contains(self, value: str, text: str) -> bool:
        return words_of(text) <= words_of(value)


class Floats(Oracle):
    def compare(self, name: str, value: Any, expected_value: Any) -> bool:
        return super().compare(name, float(value), float(expected_value))


class Identifiers(Oracle):
    """Equality of Qdrant's index of UUIDs."""

    def same(self, value: Any, expected_value: Any) -> bool:
        texts = isinstance(value, str) and isinstance(expected_value, str)
        return value.lower() == expected_value.lower() if texts else super().same(value, expected_value)


class Times(Oracle):
    """Bounds of Qdrant's datetime index, which accepts numbers as times."""

    def within(self, value: Any, bounds: Mapping[str, Any]) -> bool:
        moment = moment_of(value)
        if moment is None or any(isinstance(bound, str) for bound in bounds.values()):
            return super().within(value, bounds)
        return super().within(moment.timestamp() * 1_000_000, bounds)


WRONG = (Substring(), Cased(), Runs(), Floats(), Identifiers(), Times())


def values_at(payload: Mapping[str, Any], path: str) -> list[Any]:
    value: Any = payload
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


@functools.cache
def words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).casefold()))


def moment_of(value: Any) -> datetime | None:
    return parsed(value) if isinstance(value, str) and "T" in value else None


@functools.cache
def parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def one_or_many(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.none() | st.lists(values, max_size=3)


metadata: dict[str, st.SearchStrategy[Any]] = {name: one_or_many(values) for name, values in STORED.items()}
metadata["deep"] = st.fixed_dictionaries({"any": one_or_many(anything)})
payloads = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional=metadata)},
    optional={key: values for _, key, values, _ in FIELDS.values()},
)


def conditions(
    kind: FieldKind, values: st.SearchStrategy[Any], *, bounds: st.SearchStrategy[Any] = numbers
) -> st.SearchStrategy[Any]:
    """Draw a condition for one field: a value, or one or two operators; `bounds` applies to metadata."""
    values = st.none() | values
    operands = {
        "eq": values,
        "ne": values,
        "in": st.lists(values, min_size=1, max_size=3),
        "contains": query_words,
    } | dict.fromkeys(BOUNDS, bounds if kind is FieldKind.ANY else values.filter(lambda value: value is not None))
    names = st.lists(st.sampled_from(OPERATORS[kind]), min_size=1, max_size=2, unique=True)
    return values | names.flatmap(lambda chosen: st.fixed_dictionaries({name: operands[name] for name in chosen}))


def between_times(name: str) -> st.SearchStrategy[Any]:
    bounds = st.dictionaries(st.sampled_from(BOUNDS), times, min_size=1, max_size=2)
    return bounds.map(lambda chosen: {name: chosen})


def about(name: str, conditions: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return conditions.map(lambda condition: {name: condition})


leaves = st.one_of(
    *(about(name, conditions(kind, values)) for name, (kind, _, _, values) in FIELDS.items()),
    *(about(f"metadata.{name}", conditions(FieldKind.ANY, query_texts | anything)) for name in STORED),
    about("metadata.deep.any", conditions(FieldKind.ANY, anything)),
    *(between_times(f"metadata.{name}") for name in STORED),
    *(about(f"metadata.{name}", about("contains", query_words)) for name in ("plain", "text")),
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
    """Collection without vectors and with all indexes."""
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


async def find(url: str, rows: list[dict[str, Any]], filters: list[dict[str, Any]]) -> list[set[int]]:
    """Return the positions of the rows that each filter finds."""
    await call("POST", f"{url}/points/delete?wait=true", {"filter": {"must": []}})
    points = [{"id": place, "vector": {}, "payload": row} for place, row in enumerate(rows)]
    await call("PUT", f"{url}/points?wait=true", {"points": points})
    searches = [{"filter": filter_, "limit": 100} for filter_ in filters]
    pages = await call("POST", f"{url}/points/query/batch", {"searches": searches})
    return [{point["id"] for point in page["points"]} for page in pages]


def test_every_operator_agrees_under_every_index(collection: str) -> None:
    values = [*TEXTS, *NUMBERS, True, False, *TIMES, None, [], [None], ["bee", *TEXTS[:2]], [[5]], {"ant": 5}]
    conditions_to_test = [
        *({"eq": value} for value in (*TEXTS, *NUMBERS, True, False, *TIMES, None)),
        *({"ne": value} for value in (*TEXTS[:2], ID, 0, 0.5, None)),
        *({"in": [value, "bee", 7]} for value in (*TEXTS, *NUMBERS, True, None)),
        *({"contains": words} for words in QUERY_WORDS),
        *({bound: value} for bound in BOUNDS for value in (*NUMBERS, *TIMES)),
    ]
    distinguished: Counter[str] = Counter()
    for name in STORED:
        # An integer index does not contain fractions.
        kept = [value for value in values if name != "integer" or not isinstance(value, float)]
        rows = [{"metadata": {name: value}} for value in kept]
        documents = [{f"metadata.{name}": condition} for condition in conditions_to_test]
        both = [*documents, *({"NOT": [document]} for document in documents)]
        # A wrong oracle decides by the value, not by the field.
        distinguished += compare(collection, rows, both, WRONG if name == "plain" else ())

    assert all(distinguished[type(wrong).__name__] >= 2 for wrong in WRONG), distinguished


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(payloads, min_size=4, max_size=12), documents=st.lists(documents, min_size=10, max_size=20))
def test_engine_candidates_include_all_matches(
    collection: str, rows: list[dict[str, Any]], documents: list[dict[str, Any]]
) -> None:
    compare(collection, rows, documents)


def compare(
    collection: str, rows: list[dict[str, Any]], documents: list[dict[str, Any]], wrong_oracles: Sequence[Oracle] = ()
) -> Counter[str]:
    """Compare engine, matcher and oracle; return in how many documents each wrong oracle differs."""
    trees = [criterion for document in documents if (criterion := parse_filters(document))]
    wider = [{"must": [compile_criterion(tree, INDEXED)]} for tree in trees]
    certain = [{"must": [compile_certain(tree, INDEXED) or {"has_id": []}]} for tree in trees]
    places = asyncio.run(find(collection, rows, [*wider, *certain]))
    distinguished: Counter[str] = Counter()
    for number, (tree, document) in enumerate(zip(trees, documents, strict=True)):
        candidates, safe = places[number], places[len(trees) + number]
        expected = means(Oracle(), tree, rows)
        assert {place for place, row in enumerate(rows) if matches(tree, row)} == expected, document
        assert safe <= expected <= candidates, document
        assert candidates == expected or not is_exact(tree, INDEXED), document
        distinguished.update(type(wrong).__name__ for wrong in wrong_oracles if means(wrong, tree, rows) != expected)
    return distinguished


def means(oracle: Oracle, tree: Criterion, rows: list[dict[str, Any]]) -> set[int]:
    return {place for place, row in enumerate(rows) if oracle.holds(tree, row)}


@pytest.mark.parametrize(
    ("name", "condition", "value", "is_found"),
    [
        ("plain", {"match": {"text": "ant"}}, "elephant", True),
        ("plain", {"match": {"text": "ANT"}}, "ant", False),
        ("plain", {"match": {"text": "here big"}}, "big here", False),
        ("text", {"match": {"text": "ant"}}, "elephant", False),
        ("text", {"match": {"text": "HERE big"}}, "Big Ant here", True),
        ("text", {"match": {"text": COFFEE}}, DRINKS_COFFEE, False),
        ("uuid", {"match": {"value": ID}}, ID.upper(), True),
        ("integer", {"match": {"value": ID}}, ID, False),
        ("plain", {"match": {"value": ID}}, ID.upper(), False),
        ("datetime", {"range": {"gte": 1}}, "2026-11-21T08:00:00Z", True),
        ("datetime", {"range": {"gte": 1}}, 5, False),
        ("integer", {"range": {"gte": "1970-01-01T00:00:00Z"}}, 5, True),
        ("integer", {"range": {"gte": 0}}, 0.5, False),
        ("plain", {"range": {"lte": 2**53}}, 2**53 + 1, True),
        ("plain", {"match": {"value": 5}}, 5.0, False),
    ],
)
def test_engine_differs_as_documented(
    collection: str, name: str, condition: dict[str, Any], value: Any, is_found: bool
) -> None:
    filter_ = {"must": [{"key": f"metadata.{name}", **condition}]}

    [places] = asyncio.run(find(collection, [{"metadata": {name: value}}], [filter_]))

    assert places == ({0} if is_found else set())
