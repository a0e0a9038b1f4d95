"""A text match compares words if the field has a text index, and case-sensitive substrings otherwise.

The expected results are those of Qdrant 1.18.3.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.qdrant_nodes import DevServer

TEXTS = ["elephant", "Big Ant here", "an ant", ["bee", "HERE ant"], 5]


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/t", {"vectors": {"size": 1, "distance": "Dot"}})
    points = [
        {"id": place, "vector": [1.0], "payload": {"plain": text, "indexed": text, "list": [{"plain": text}]}}
        for place, text in enumerate(TEXTS)
    ]
    server.call("PUT", "/collections/t/points?wait=true", {"points": points})
    server.call("PUT", "/collections/t/index?wait=true", {"field_name": "indexed", "field_schema": "text"})
    yield
    server.call("DELETE", "/collections/t")


def found(server: DevServer, condition: Any) -> list[int]:
    body = {"filter": {"must": [condition]}, "with_payload": False}
    return [point["id"] for point in server.call("POST", "/collections/t/points/scroll", body)["points"]]


@pytest.mark.parametrize(
    ("match", "plain", "indexed"),
    [
        ({"text": "ant"}, [0, 2, 3], [1, 2, 3]),
        ({"text": "big here"}, [], [1]),
        ({"text": "HERE"}, [3], [1, 3]),
        ({"text": "g A"}, [1], []),
        ({"phrase": "Big Ant"}, [1], []),
        ({"text_any": "here phan"}, [0, 1], [1, 3]),
        ({"text_any": " "}, [], []),
    ],
)
def test_text_match_depends_on_the_index(
    server: DevServer, match: dict[str, str], plain: list[int], indexed: list[int]
) -> None:
    nested = {"nested": {"key": "list", "filter": {"must": [{"key": "plain", "match": match}]}}}

    assert found(server, {"key": "plain", "match": match}) == plain
    assert found(server, {"key": "indexed", "match": match}) == indexed
    assert found(server, nested) == plain
