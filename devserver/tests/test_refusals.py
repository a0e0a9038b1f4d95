"""Requests that the real server rejects are rejected here, with its status and a message that names the error."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.qdrant_nodes import DevServer, StartServer

POINTS = "/collections/r/points"
VECTOR = [0.1, 0.2]


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/r", {"vectors": {"size": 2, "distance": "Dot"}})
    points = [{"id": 1, "vector": VECTOR, "payload": {"n": 1, "s": "x", "yes": True}}]
    server.call("PUT", f"{POINTS}?wait=true", {"points": points})
    yield
    server.call("DELETE", "/collections/r")


def formula(expression: Any) -> dict[str, Any]:
    return {"prefetch": [{"query": VECTOR}], "query": {"formula": expression}}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"vectors": {"size": 0, "distance": "Dot"}}, 400, "VectorsConfig"),
        ({"vectors": {"size": 2}}, 400, "distance"),
        ({"vectors": {"size": True, "distance": "Dot"}}, 400, "VectorsConfig"),
        ({"vectors": [1]}, 400, "vectors"),
        ({"vectors": {"a/b": {"size": 2, "distance": "Dot"}}}, 400, "a/b"),
        ({"vectors": {"size": 65537, "distance": "Dot"}}, 422, "65536"),
        ({"hnsw_config": {"m": -1}}, 400, "hnsw_config.m"),
        ({"hnsw_config": {"m": "many"}}, 400, "hnsw_config.m"),
        ({"hnsw_config": {"ef_construct": 3}}, 422, "ef_construct"),
        ({"optimizers_config": {"deleted_threshold": 1.5}}, 422, "deleted_threshold"),
        ({"optimizers_config": {"vacuum_min_vector_number": 99}}, 422, "vacuum_min_vector_number"),
        ({"quantization_config": {"scalar": {"type": "int9"}}}, 400, "int8"),
        ({"quantization_config": {"scalar": {"quantile": 0.9}}}, 400, "type"),
        ({"quantization_config": {"scalar": {"type": "int8", "quantile": 0.4}}}, 422, "quantile"),
        ({"quantization_config": {"magic": {}}}, 400, "QuantizationConfig"),
        ({"replication_factor": 0}, 422, "replication_factor"),
        ({"sparse_vectors": {"": {}}}, 400, "Sparse vector name"),
        ({"vectors": {"a": {"size": 2, "distance": "Dot"}}, "sparse_vectors": {"a": {}}}, 400, "unique"),
        ({"metadata": 5}, 400, "metadata"),
    ],
)
def test_invalid_configuration_is_rejected(server: DevServer, body: Any, status: int, message: str) -> None:
    answer = server.http.put("/collections/bad", json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert server.call("GET", "/collections/bad/exists") == {"exists": False}


@pytest.mark.parametrize(
    ("filter_", "status", "message"),
    [
        ([], 400, "filter"),
        ({"musst": []}, 400, "musst"),
        ({"must": [1]}, 400, "condition"),
        ({"must": [{"nonsense": 1}]}, 400, "condition"),
        ({"must": [{"key": "n", "match": {"value": 1.5}}]}, 400, "MatchInterface"),
        ({"must": [{"key": "n", "match": {"any": [1, "a"]}}]}, 400, "MatchInterface"),
        ({"must": [{"key": "n", "match": {"like": "a"}}]}, 400, "MatchInterface"),
        ({"must": [{"key": "n", "range": {"gt": "yesterday"}}]}, 400, "date-time"),
        ({"must": [{"key": "n", "range": {"gt": [1]}}]}, 400, "range"),
        ({"must": [{"key": "a[", "match": {"value": 1}}]}, 400, "a["),
        ({"must": [{"key": "n"}]}, 422, "must[0]"),
        ({"must": [{"has_id": ["no-id"]}]}, 400, "no-id"),
        ({"min_should": {"conditions": []}}, 400, "min_count"),
    ],
)
def test_invalid_filter_is_rejected(server: DevServer, filter_: Any, status: int, message: str) -> None:
    answer = server.http.post(f"{POINTS}/scroll", json={"filter": filter_})

    assert (answer.status_code, message in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": [0.1]}, 400, "expected dim: 2, got 1"),
        ({"query": ["a", "b"]}, 400, "variant"),
        ({"query": True}, 400, "Expected some form"),
        ({"query": VECTOR, "using": "no"}, 400, "no"),
        ({"query": VECTOR, "limit": -1}, 400, "limit"),
        ({"query": VECTOR, "params": {"exact": 1}}, 400, "exact"),
        ({"query": VECTOR, "params": {"quantization": {"oversampling": 0.5}}}, 422, "oversampling"),
        ({"query": VECTOR, "with_payload": 5}, 400, "Expected a boolean"),
        ({"query": VECTOR, "with_vector": ["no"]}, 400, "no"),
        ({"query": 99}, 404, "99"),
        (formula({"min": [1.0, "$score"]}), 400, "Expected some form"),
        (formula({"acosh": 1.0}), 400, "Expected some form"),
        (formula({"sum": "n"}), 400, "sum"),
        (formula("absent"), 400, "No value found"),
        (formula("s"), 400, "not a number"),
        (formula({"ln": 0.0}), 400, "non-finite"),
        (formula({"exp_decay": {"x": "n", "midpoint": 1.5}}), 400, "midpoint"),
        (formula({"datetime": "no date"}), 400, "date"),
    ],
)
def test_invalid_query_is_rejected(server: DevServer, body: Any, status: int, message: str) -> None:
    answer = server.http.post(f"{POINTS}/query", json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    ("call", "body", "status", "message"),
    [
        ("PUT ", {"points": [{"id": 2, "vector": [0.1]}]}, 400, "expected dim: 2, got 1"),
        ("PUT ", {"points": [{"id": 2, "vector": ["a", "b"]}]}, 400, "variant"),
        ("PUT ", {"points": [{"id": 2, "vector": {"no": VECTOR}}]}, 400, "no"),
        ("PUT ", {"points": [{"id": 1.5, "vector": VECTOR}]}, 400, "1.5"),
        ("PUT ", {"points": [{"id": 2**64, "vector": VECTOR}]}, 400, "point ID"),
        ("PUT ", {"points": [{"id": 2, "vector": VECTOR, "payload": 3}]}, 400, "payload"),
        ("PUT ", {"points": [{"id": 2, "vector": VECTOR}], "update_mode": "maybe"}, 400, "maybe"),
        ("PUT ", {"nothing": 1}, 400, "PointInsertOperations"),
        ("PUT ", {"batch": {"ids": [2, 3], "vectors": [VECTOR]}}, 422, "differ"),
        ("PUT /vectors", {"points": []}, 422, "points"),
        ("POST /vectors/delete", {"points": [1], "vector": ["no"]}, 400, "no"),
        ("POST /payload", {"payload": {"a": 1}}, 400, "filter"),
        ("POST /payload", {"payload": {"a": 1}, "points": []}, 400, "Empty"),
        ("POST /payload", {"points": [1]}, 400, "payload"),
        ("POST /payload/delete", {"keys": ["a"], "points": [77]}, 404, "77"),
        ("POST /delete", {}, 400, "filter"),
        ("POST /batch", {"operations": [{"invent": {}}]}, 400, "UpdateOperation"),
    ],
)
def test_invalid_update_changes_nothing(server: DevServer, call: str, body: Any, status: int, message: str) -> None:
    method, path = call.split(" ")
    answer = server.http.request(method, POINTS + path, json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert server.call("POST", f"{POINTS}/count", {}) == {"count": 1}
    assert server.call("GET", f"{POINTS}/1")["payload"] == {"n": 1, "s": "x", "yes": True}


def test_nan_is_malformed_json(server: DevServer) -> None:
    answer = server.http.put(POINTS, content=b'{"points": [{"id": 2, "vector": [NaN, 0.1]}]}')

    assert answer.status_code == 400


def test_unknown_field_is_ignored(server: DevServer) -> None:
    assert server.call("POST", f"{POINTS}/count", {"exact": True, "nonsense": 1}) == {"count": 1}


def test_booleans_do_not_match_numbers(server: DevServer) -> None:
    matching = {"filter": {"must": [{"key": "yes", "match": {"value": True}}]}}
    number = {"filter": {"must": [{"key": "n", "match": {"value": True}}]}}

    assert server.call("POST", f"{POINTS}/count", matching) == {"count": 1}
    assert server.call("POST", f"{POINTS}/count", number) == {"count": 0}


def test_strict_mode_rejects_excess(server: DevServer) -> None:
    limits = {"enabled": True, "max_query_limit": 5, "search_max_hnsw_ef": 50, "search_allow_exact": False}
    server.call("PATCH", "/collections/r", {"strict_mode_config": limits})

    for body in ({"limit": 6}, {"params": {"hnsw_ef": 51}}, {"params": {"exact": True}}):
        server.call("POST", f"{POINTS}/query", {"query": VECTOR} | body, status=400)
    # A count is exact by default.
    refused = [server.http.post(f"{POINTS}/count", json=body) for body in ({}, {"exact": True})]
    server.call("POST", f"{POINTS}/count", {"exact": False})
    server.call("PATCH", "/collections/r", {"strict_mode_config": {"enabled": False}})
    expected_message = "Bad request: Exact search disabled!. Help: Set exact=false."
    assert {(answer.status_code, answer.json()["status"]["error"]) for answer in refused} == {(400, expected_message)}
    server.call("POST", f"{POINTS}/query", {"query": VECTOR, "limit": 6})


def test_later_version_has_its_features(start_server: StartServer) -> None:
    later = start_server("--qdrant-version", "1.20")
    later.call("PUT", "/collections/l", {"vectors": {"size": 2, "distance": "Dot", "memory": "cold"}})
    later.call("PUT", "/collections/l/points", {"points": [{"id": 1, "vector": [2.0, 0.0]}]})
    query = {"prefetch": [{"query": [1.0, 0.0]}], "query": {"formula": {"min": [1.0, "$score"]}}}

    assert later.call("POST", "/collections/l/points/query", query)["points"][0]["score"] == 1.0
    assert later.call("GET", "/collections/l")["config"]["params"]["vectors"]["memory"] == "cold"
    assert later.http.get("/").json()["version"] == "1.20.0"


def test_default_version_ignores_memory_tiers(server: DevServer) -> None:
    server.call("PUT", "/collections/t", {"vectors": {"size": 2, "distance": "Dot", "memory": "cold"}})
    vectors = server.call("GET", "/collections/t")["config"]["params"]["vectors"]
    server.call("DELETE", "/collections/t")

    assert vectors == {"size": 2, "distance": "Dot"}
