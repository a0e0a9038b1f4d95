"""An unsupported feature of Qdrant gets 501 and its name in every request."""

from collections.abc import Iterator
from typing import Any

import pytest

from qdrant_devserver.rest.routes import UNSUPPORTED_ROUTES
from tests.support.web.qdrant_nodes import DevServer

POINTS = "/collections/u/points"
VECTOR = [0.1, 0.2]
DENSE_MODEL = {"text": "cats", "model": "sentence-transformers/all-minilm-l6-v2"}


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/u", {"vectors": {"size": 2, "distance": "Dot"}})
    yield
    server.call("DELETE", "/collections/u")


@pytest.mark.parametrize(("methods", "path", "feature"), UNSUPPORTED_ROUTES)
def test_unbuilt_endpoint_is_501(server: DevServer, methods: tuple[str, ...], path: str, feature: str) -> None:
    filled = path.replace("{rest:path}", "x").format(name="u")
    for method in methods:
        answer = server.http.request(method, filled, json={})

        assert answer.status_code == 501
        assert feature in answer.json()["status"]["error"]


@pytest.mark.parametrize(
    ("path", "body", "feature"),
    [
        (f"{POINTS}/query", {"query": {"recommend": {"positive": [1]}}}, "recommend"),
        (f"{POINTS}/query", {"query": {"discover": {"target": 1, "context": []}}}, "discover"),
        (f"{POINTS}/query", {"query": {"context": []}}, "context"),
        (f"{POINTS}/query", {"query": {"sample": "random"}}, "sample"),
        (f"{POINTS}/query", {"query": {"relevance_feedback": {}}}, "relevance feedback"),
        (f"{POINTS}/query", {"query": {"nearest": VECTOR, "mmr": {}}}, "mmr"),
        (f"{POINTS}/query", {"query": VECTOR, "lookup_from": {"collection": "v"}}, "lookup_from"),
        (f"{POINTS}/query", {"query": DENSE_MODEL}, "inference with the model sentence-transformers"),
        (f"{POINTS}/query", {"query": [VECTOR]}, "multivectors"),
    ],
)
def test_unbuilt_read_is_501(server: DevServer, path: str, body: Any, feature: str) -> None:
    answer = server.http.post(path, json=body)

    assert answer.status_code == 501
    assert feature in answer.json()["status"]["error"]


@pytest.mark.parametrize(
    ("path", "body", "feature"),
    [
        (POINTS, {"points": [{"id": 1, "vector": {"": DENSE_MODEL}}]}, "inference"),
        (POINTS, {"points": [{"id": 1, "vector": DENSE_MODEL}]}, "inference"),
        (POINTS, {"points": [{"id": 1, "vector": [VECTOR]}]}, "multivectors"),
        ("/collections/v", {"vectors": {"size": 2, "distance": "Dot", "multivector_config": {}}}, "multivectors"),
        ("/collections/v", {"vectors": {"size": 2, "distance": "Dot", "datatype": "turbo4"}}, "turbo4"),
        ("/collections/v", {"sharding_method": "custom"}, "custom sharding"),
        ("/collections/v", {"strict_mode_config": {"enabled": True, "read_rate_limit": 9}}, "read_rate_limit"),
        ("/collections/u/index", {"field_name": "t", "field_schema": {"type": "text", "stemmer": {}}}, "stemmer"),
    ],
)
def test_unbuilt_write_stores_nothing(server: DevServer, path: str, body: Any, feature: str) -> None:
    answer = server.http.put(path, json=body)

    assert answer.status_code == 501
    assert feature in answer.json()["status"]["error"]
    assert server.call("GET", "/collections") == {"collections": [{"name": "u"}]}
    assert server.call("POST", f"{POINTS}/count", {}) == {"count": 0}
