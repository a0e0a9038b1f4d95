"""Filters of mem0's dialects, on lists and searches."""

from typing import Any

import pytest

from agentmemory_operator.entrypoints.api.mem0 import filter_reader
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from tests.support.web.mem0_site import Mem0Site

DAY = 86_400
BASE = 1_700_006_400  # 2023-11-15T00:00:00Z
ADA, BOB = "ada-of-filters", "bob-of-filters"


@pytest.fixture(scope="module", autouse=True)
def memories(site: Mem0Site) -> None:
    """Store `tea`, `coffee` and `water` of Ada, and `milk` of Bob."""
    site.add("tea", ADA, run_id="r1", agent_id="waiter", metadata={"cup": "blue", "n": 1}, timestamp=BASE)
    site.add("coffee", ADA, run_id="r2", metadata={"cup": "red"}, timestamp=BASE + DAY, expiration_date="2999-01-31")
    site.add("water", ADA, app_id="cafe", timestamp=BASE + 2 * DAY)
    site.add("milk", BOB, run_id="r1", timestamp=BASE)
    water = site.call("POST", "/v3/memories/", json={"filters": {"app_id": "cafe", "user_id": ADA}}).json()["results"]
    site.native("PATCH", f"/memories/{water[0]['id']}", params={"user_id": ADA}, json={"tags": ["drinks", "cold"]})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, "coffee tea water"),
        ({"run_id": "r1"}, "tea"),
        ({"run_id": "*"}, "coffee tea"),
        ({"run_id": {"in": ["r1", "r2"]}}, "coffee tea"),
        ({"run_id": {"ne": "r1"}}, "coffee water"),
        ({"NOT": {"run_id": "*"}}, "water"),
        ({"agent_id": "waiter"}, "tea"),
        ({"agent_id": "*"}, "tea"),
        ({"app_id": "cafe"}, "water"),
        ({"AND": [{"run_id": "r1"}, {"agent_id": "other"}]}, ""),
        ({"OR": [{"run_id": "r1"}, {"app_id": "cafe"}]}, "tea water"),
        ({"NOT": [{"OR": [{"run_id": "r1"}, {"app_id": "cafe"}]}]}, "coffee"),
        ({"metadata": {"cup": "blue"}}, "tea"),
        ({"metadata": {"cup": {"ne": "blue"}}}, "coffee water"),
        ({"metadata": {"cup": {"contains": "RED"}}}, "coffee"),
        ({"metadata": {"ne": {"cup": "blue"}}}, "coffee water"),
        ({"metadata": {"cup": "*"}}, "coffee tea"),
        ({"metadata": {"n": 1}}, "tea"),
        ({"categories": {"in": ["cold"]}}, "water"),
        ({"categories": {"contains": "drinks"}}, "water"),
        ({"NOT": {"categories": {"in": ["cold"]}}}, "coffee tea"),
        ({"created_at": {"gte": "2023-11-16"}}, "coffee water"),
        ({"created_at": {"gte": "2023-11-16", "lt": "2023-11-17T00:00:00"}}, "coffee"),
        ({"created_at": {"lt": BASE + 1}}, "tea"),
        ({"timestamp": {"gt": "2023-11-16T01:00:00+01:00"}}, "water"),
        ({"updated_at": {"gte": "2023-11-16"}}, "coffee tea water"),
        ({"updated_at": {"lt": "2023-11-16"}}, ""),
        ({"expiration_date": {"gte": "2999-01-31"}}, "coffee"),
        ({"expiration_date": {"gt": "2999-01-31"}}, ""),
        ({"expiration_date": "2999-01-31"}, "coffee"),
        ({"keywords": {"icontains": "TEA"}}, "tea"),
        ({"text": "water"}, "water"),
    ],
    ids=str,
)
def test_condition_selects(condition: Any, expected: str, site: Mem0Site) -> None:
    assert site.texts({"user_id": ADA, **condition}) == expected.split()


def test_conditions_also_select_in_searches(site: Mem0Site) -> None:
    body = {"query": "drink", "filters": {"AND": [{"user_id": ADA}, {"NOT": [{"run_id": "r1"}]}]}}
    found = site.call("POST", "/v3/memories/search/", json=body).json()["results"]

    assert sorted(memory["memory"] for memory in found) == ["coffee", "water"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"user_id": {"in": [ADA, BOB]}}, "coffee milk tea water"),
        ({"OR": [{"user_id": ADA}, {"user_id": BOB}]}, "coffee milk tea water"),
        ({"OR": [{"user_id": ADA, "run_id": "r2"}, {"user_id": BOB}]}, "coffee milk"),
        ({"AND": [{"user_id": {"in": [ADA, BOB]}}, {"user_id": {"ne": ADA}}]}, "milk"),
        ({"AND": [{"user_id": ADA}, {"user_id": BOB}]}, ""),
        ({"AND": [{"user_id": ADA}, {"NOT": [{"user_id": "*"}]}]}, ""),
        ({"user_id": ADA, "NOT": [{"NOT": [{"AND": [{"user_id": ADA}, {"user_id": BOB}]}]}]}, ""),
        ({"AND": [{"user_id": {"in": [ADA, BOB]}}, {"NOT": [{"user_id": ADA, "run_id": "r1"}]}]}, "coffee milk water"),
        ({"AND": [{"user_id": "*"}, {"run_id": "r2"}, {"metadata": {"cup": "red"}}]}, "coffee"),
    ],
    ids=str,
)
def test_users_are_combined(filters: Any, expected: str, site: Mem0Site) -> None:
    assert site.texts(filters) == expected.split()


def test_list_options_narrow(site: Mem0Site) -> None:
    def texts(**options: Any) -> list[str]:
        body = {"filters": {"user_id": ADA}, "fields": ["memory"], **options}
        results = site.call("POST", "/v3/memories/", json=body).json()["results"]
        assert all(set(memory) == {"id", "memory"} for memory in results)
        return [memory["memory"] for memory in results]

    assert texts() == ["water", "coffee", "tea"]
    assert texts(start_date="2023-11-16", end_date="2023-11-16") == ["coffee"]
    assert texts(categories=["cold"]) == ["water"]
    assert texts(keywords="coffee") == ["coffee"]
    assert texts(metadata={"cup": "blue"}) == ["tea"]


def test_memory_ids_select_updated_memories(site: Mem0Site, user: str) -> None:
    first, second = site.add("Ada drinks tea", user), site.add("Ada drinks coffee", user)
    site.add("Ada drinks water", user)
    site.call("PUT", f"/v1/memories/{first}/", json={"text": "Ada drinks milk"})

    filters = {"user_id": user, "memory_ids": [first, second]}
    assert site.texts(filters) == ["Ada drinks coffee", "Ada drinks milk"]


@pytest.mark.parametrize(
    "condition",
    [
        {"bogus_key": "z"},
        {"run_id": {"matches": "r"}},
        {"AND": []},
        {"AND": ["x"]},
        {"OR": [{}]},
        {"user_id": {"gt": "a"}},
        {"user_id": {"in": []}},
        {"user_id": 5},
        {"metadata": "x"},
        {"metadata": {"a b": 1}},
        {"metadata": {"ne": {}}},
        {"memory_ids": "x"},
        {"created_at": {"gte": "soon"}},
        {"created_at": {"gte": 10**30}},
        {"categories": {"in": [f"c{number}" for number in range(300)]}},
    ],
    ids=lambda condition: str(condition)[:40],
)
def test_invalid_condition_is_rejected(condition: Any, site: Mem0Site) -> None:
    answer = site.call("POST", "/v3/memories/", json={"filters": {"AND": [{"user_id": ADA}, condition]}})

    assert answer.status_code == 400, answer.text
    assert answer.json()["errors"]


def test_deep_filters_are_rejected(site: Mem0Site) -> None:
    filters: Any = {"user_id": ADA}
    for _ in range(12):
        filters = {"AND": [filters]}

    assert site.call("POST", "/v3/memories/", json={"filters": filters}).status_code == 400


def test_too_large_filters_are_not_parsed_to_their_end(site: Mem0Site, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def counted(document: Any) -> Any:
        parsed.append(document)
        return parse_filters(document)

    monkeypatch.setattr(filter_reader, "parse_filters", counted)
    for condition in ({"OR": [{"run_id": "r1"}] * 5000}, {"metadata": {"ne": {f"n{n}": n for n in range(5000)}}}):
        assert site.call("POST", "/v3/memories/", json={"filters": {"user_id": ADA, **condition}}).status_code == 400
        assert len(parsed) <= filter_reader.MAX_VALUES
        parsed.clear()


def test_too_many_fields_are_rejected(site: Mem0Site) -> None:
    body = {"filters": {"user_id": ADA}, "fields": ["memory"] * 65}

    assert site.call("POST", "/v3/memories/", json=body).status_code == 400


def test_too_many_users_are_rejected(site: Mem0Site) -> None:
    filters = {"user_id": {"in": [f"user-{number}" for number in range(101)]}}

    assert site.call("POST", "/v3/memories/", json={"filters": filters}).status_code == 400
