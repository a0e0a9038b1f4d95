"""Filters of LangGraph combined with a query: equal results as in LangGraph's own store, with any payload index."""

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from agentmemory_client.langgraph_store import AgentMemoryStore
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api

FILTERS = 60
INDEXES = ["none", "integer", "float", "keyword", "bool"]
MISSING = object()
BIG = 2**53
VALUES: list[Any] = [
    *(MISSING, None, True, False, 0, 1, 1.0, -0.0, 2, 7.5, -3, 6, 5.0, BIG, BIG + 1, BIG + 2, -BIG - 1, 1e300, -1e300),
    *("draft", "Draft", "final", "7", "1e3", "-7.5", "1", "True", "", " ", "inf", "nan", "x" * 1025, "a\nb", "äöü"),
    *(["draft"], ["draft", "final"], [], [1], [True], [7.5, "7"], [None], ["7"], {}, {"a": 1}, {"a": ["draft"]}),
]
OPERANDS = [0, 1, True, False, 5, 7.5, -3, 2, BIG, BIG + 1, -BIG - 1, 1e300, "7", "draft"]
NUMBERS = [0, 1, True, 5, 5.0, 7.5, -3, 7, BIG, BIG + 1, 1e300, "7", "1e3"]


def document(index: str) -> dict[str, Any]:
    return agent_document(
        f"filters-{index}",
        preset="keyed",
        embedding={"provider": "wordllama", "dimensions": 64},
        scoring={"scoreThreshold": 0.0},
    )


@pytest.fixture(scope="module")
def bots(qdrant_url: str) -> Iterator[Stack]:
    documents = [document(index) for index in INDEXES]
    for index, agent in zip(INDEXES, documents, strict=True):
        create_collection(qdrant_url, agent)
        for field in ("x", "y") if index != "none" else ():
            body = {"field_name": f"metadata.langgraph.value.{field}", "field_schema": index}
            url = f"{qdrant_url}/collections/agent_memory_filters-{index}__1/index?wait=true"
            httpx.put(url, json=body, timeout=30).raise_for_status()
    with running_api(qdrant_url, *documents) as stack:
        yield stack


def drawn_values(draw: random.Random) -> list[dict[str, Any]]:
    """Return one value for each element of `VALUES` as x, with a random y."""
    values = []
    for x in VALUES:
        fields = {"x": x, "y": draw.choice(VALUES), "text": f"item {draw.randrange(100)}"}
        values.append({name: field for name, field in fields.items() if field is not MISSING})
    return values


def drawn_condition(draw: random.Random) -> Any:
    match draw.randrange(6):
        case 0:
            return draw.choice([value for value in VALUES if value is not MISSING])
        case 1:
            return {"$eq": draw.choice([value for value in VALUES if value is not MISSING])}
        case 2:
            return {"$ne": draw.choice(OPERANDS)}
        case 3:
            return {draw.choice(["$gt", "$gte"]): draw.choice(NUMBERS)}
        case 4:
            return {draw.choice(["$lt", "$lte"]): draw.choice(NUMBERS)}
        case _:
            low, high = sorted(draw.choices([-3, 0, 1, 5, 7.5, BIG], k=2))
            return {"$gte": low, "$lte": high}


def drawn_filter(draw: random.Random) -> dict[str, Any]:
    first = {draw.choice("xy"): drawn_condition(draw)}
    return first | ({"y": drawn_condition(draw)} if draw.random() < 0.2 else {})


class Oracle:
    """LangGraph's own store, one per item: a comparison that raises counts as no match."""

    def __init__(self, values: list[dict[str, Any]]) -> None:
        self._stores = []
        for value in values:
            store = InMemoryStore()
            store.put(("docs",), "k", value)
            self._stores.append(store)

    def matching(self, filter_: dict[str, Any]) -> set[str]:
        return {str(number) for number, store in enumerate(self._stores) if self._holds(store, filter_)}

    @staticmethod
    def _holds(store: InMemoryStore, filter_: dict[str, Any]) -> bool:
        try:
            return bool(store.search(("docs",), filter=filter_))
        except (TypeError, ValueError, OverflowError):
            return False


def differences(value: Any, condition: Any) -> set[str]:
    """Return the reasons why a plain filter of the API would miss a value that matches in LangGraph."""
    operands = condition if isinstance(condition, dict) else {"$eq": condition}
    found = set()
    for name, operand in operands.items():
        if name == "$ne" and isinstance(value, list) and operand in value:
            found.add("a list that has what it is not to be")
        if name in ("$gt", "$gte", "$lt", "$lte") and isinstance(value, str):
            found.add("text that is a number")
        if name in ("$gt", "$gte", "$lt", "$lte") and isinstance(value, bool):
            found.add("a truth compared with a number")
        if name == "$eq" and type(value) is not type(operand) and value is not None:
            found.add("numbers and truths that are equal")
        if name in ("$gte", "$lte") and isinstance(value, int) and value != operand and float(value) == operand:
            found.add("whole numbers beyond those that a float has")
    return found


@pytest.mark.parametrize("index", INDEXES)
def test_filter_with_query_matches_langgraph(bots: Stack, user: str, index: str) -> None:
    draw = random.Random(index)
    values = drawn_values(draw)
    oracle, covered, matched = Oracle(values), set[str](), 0
    with AgentMemoryStore(f"filters-{index}", user_id=user, url=bots.api_url, fields=["text"], threshold=-1) as store:
        store.batch([PutOp(("docs",), str(number), value) for number, value in enumerate(values)])
        for _ in range(FILTERS):
            filter_ = drawn_filter(draw)
            expected = oracle.matching(filter_)

            ranked = store.search(("docs",), query="item", filter=filter_, limit=100)

            assert {item.key for item in ranked} == expected, filter_
            matched += bool(expected)
            if len(filter_) == 1:
                [(name, condition)] = filter_.items()
                for key in expected:
                    covered |= differences(values[int(key)].get(name), condition)
        listed = store.search(("docs",), filter=filter_, limit=100)

    assert {item.key for item in listed} == expected
    assert matched > FILTERS / 2
    assert covered == {
        "a list that has what it is not to be",
        "text that is a number",
        "a truth compared with a number",
        "numbers and truths that are equal",
        "whole numbers beyond those that a float has",
    }


@pytest.mark.parametrize("bound", ["draft", None, [1]])
def test_non_numeric_bound_is_an_error(bots: Stack, user: str, bound: object) -> None:
    with AgentMemoryStore("filters-none", user_id=user, url=bots.api_url, fields=["text"], threshold=-1) as store:
        store.put(("docs",), "k", {"x": 1, "text": "item"})
        for query in (None, "item"):
            with pytest.raises(ValueError, match=r"\$gt: compares numbers"):
                store.search(("docs",), query=query, filter={"x": {"$gt": bound}})
