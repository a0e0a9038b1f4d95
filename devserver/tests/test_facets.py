"""Facets count the points of each value of an indexed field."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID as UUIDS

import pytest

from tests.support.web.qdrant_nodes import DevServer

LIMITS = {"enabled": True, "max_query_limit": 5, "search_allow_exact": False}
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/f", {"vectors": {"size": 1, "distance": "Dot"}})
    payloads = [
        {"tags": ["a", "b"], "n": 7, "yes": True, "at": {"id": UUID}, "x": 0.5},
        {"tags": ["a"], "n": 7, "yes": False, "at": {"id": UUID}, "x": 0.5},
        {"tags": ["a", "c"], "n": 8, "yes": True, "x": 0.5},
    ]
    points = [{"id": number, "vector": [1.0], "payload": payload} for number, payload in enumerate(payloads)]
    server.call("PUT", "/collections/f/points?wait=true", {"points": points})
    kinds = {"tags": "keyword", "n": "integer", "yes": "bool", "at.id": "uuid", "x": "float"}
    for name, kind in kinds.items():
        server.call("PUT", "/collections/f/index?wait=true", {"field_name": name, "field_schema": kind})
    yield
    server.call("DELETE", "/collections/f")


def hits(server: DevServer, **body: Any) -> list[tuple[Any, int]]:
    found = server.call("POST", "/collections/f/facet", body)["hits"]
    return [(hit["value"], hit["count"]) for hit in found]


@pytest.mark.parametrize(
    ("key", "counted"),
    [
        ("tags", [("a", 3), ("b", 1), ("c", 1)]),
        ("n", [(7, 2), (8, 1)]),
        ("yes", [(True, 2), (False, 1)]),
        ("at.id", [(UUID, 2)]),
    ],
)
def test_values_are_counted_most_frequent_first(server: DevServer, key: str, counted: list[tuple[Any, int]]) -> None:
    assert hits(server, key=key, exact=True) == counted


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "key"),
        ({"key": 5}, 400, "key"),
        ({"key": "absent"}, 400, "No appropriate index for faceting"),
        ({"key": "x"}, 400, "No appropriate index for faceting"),
        ({"key": "tags", "limit": 0}, 422, "limit"),
        ({"key": "tags", "exact": 1}, 400, "exact"),
        ({"key": "tags", "filter": []}, 400, "filter"),
    ],
    ids=str,
)
def test_invalid_facet_is_rejected(server: DevServer, body: Any, status: int, message: str) -> None:
    answer = server.http.post("/collections/f/facet", json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text


def test_strict_mode_limits_a_facet(server: DevServer) -> None:
    server.call("PATCH", "/collections/f", {"strict_mode_config": LIMITS})
    for body in ({"limit": 6}, {"exact": True}):
        server.call("POST", "/collections/f/facet", {"key": "tags"} | body, status=400)
    server.call("PATCH", "/collections/f", {"strict_mode_config": {"enabled": False}})

    assert len(hits(server, key="tags", limit=6)) == 3


@pytest.mark.parametrize("kind", ["uuid", "keyword"])
def test_smallest_values_come_first_on_ties(server: DevServer, kind: str) -> None:
    values = [str(UUIDS(int=(at * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for at in range(3000)]
    server.call("PUT", "/collections/ties", {"vectors": {"size": 1, "distance": "Dot"}})
    try:
        points = [{"id": at, "vector": [1.0], "payload": {"u": value}} for at, value in enumerate(values)]
        server.call("PUT", "/collections/ties/points?wait=true", {"points": points})
        server.call("PUT", "/collections/ties/index?wait=true", {"field_name": "u", "field_schema": kind})
        answers = [server.call("POST", "/collections/ties/facet", {"key": "u", "limit": 4})["hits"] for _ in range(6)]
    finally:
        server.call("DELETE", "/collections/ties")

    assert answers == [[{"value": value, "count": 1} for value in sorted(values)[:4]]] * 6
