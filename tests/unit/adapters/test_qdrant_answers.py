"""Size limits of Qdrant's responses, and the extraction of its error messages."""

import json
import pathlib
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.call_hooks import CallResponse
from agentmemory_operator.adapters.qdrant.response_limits import (
    MAX_LIST_BYTES,
    MAX_OBJECT_BYTES,
    MAX_POINTS_BYTES,
    error_from_response,
    error_message,
    max_response_bytes,
    parse_error_text,
)
from agentmemory_operator.errors import CollectionNotFound, NotFound, RouteNotFound

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "qdrant_http.json"
SCROLL, QUERY, RETRIEVE = (f"/collections/c/points{call}" for call in ("/scroll", "/query", ""))
MIB = 1 << 20


@pytest.mark.parametrize(
    ("method", "path", "body", "most"),
    [
        ("GET", "/collections/c", None, MAX_OBJECT_BYTES),
        ("GET", "/collections/c/aliases", None, MAX_OBJECT_BYTES),
        ("POST", "/collections/c/points/count", {}, MAX_OBJECT_BYTES),
        ("POST", "/collections/c/facet", {"limit": 1_000}, MAX_OBJECT_BYTES),
        ("POST", "/collections/c/facet", {"limit": 50_000}, 50_000 * 2_048),
        ("PUT", "/collections/c/points?wait=true", {"points": [1]}, MAX_OBJECT_BYTES),
        ("POST", "/collections/c/points/payload?wait=true", {"payload": {}}, MAX_OBJECT_BYTES),
        ("POST", "/collections/c/points/batch?wait=true", {"operations": []}, MAX_OBJECT_BYTES),
        ("GET", "/collections", None, MAX_LIST_BYTES),
        ("GET", "/aliases", None, MAX_LIST_BYTES),
        ("GET", "/telemetry?details_level=1", None, MAX_LIST_BYTES),
        ("GET", "/collections/c/snapshots", None, MAX_LIST_BYTES),
        ("POST", SCROLL, {"limit": 2_000, "with_payload": False}, MAX_OBJECT_BYTES + 2_000 * 4_096),
        ("POST", QUERY, {"query": [1.0], "limit": 10}, MAX_OBJECT_BYTES + 10 * 4_096),
        ("POST", SCROLL, {"limit": 8, "with_payload": ["rev"]}, MAX_OBJECT_BYTES + MIB),
        ("POST", SCROLL, {"limit": 4, "with_payload": ["content"]}, MAX_OBJECT_BYTES + 5 * MIB),
        ("POST", SCROLL, {"limit": 4, "with_payload": True}, MAX_OBJECT_BYTES + 5 * MIB),
        ("POST", SCROLL, {"limit": 4}, MAX_OBJECT_BYTES + 5 * MIB),
        ("POST", SCROLL, {"limit": 4, "with_payload": True, "with_vector": True}, MAX_OBJECT_BYTES + 11 * MIB),
        ("POST", RETRIEVE, {"ids": ["a"] * 4, "with_payload": True}, MAX_OBJECT_BYTES + 5 * MIB),
        ("POST", f"{QUERY}/batch", {"searches": [{"limit": 2, "with_payload": True}] * 2}, MAX_OBJECT_BYTES + 5 * MIB),
        ("POST", QUERY, {"query": [1.0], "limit": 10_000, "with_payload": True}, MAX_POINTS_BYTES),
    ],
)
def test_response_limit_follows_the_request(method: str, path: str, body: Any, most: int) -> None:
    assert max_response_bytes(method, path, body) == most


def _recorded() -> list[str]:
    found: list[str] = []

    def look(node: Any) -> None:
        if isinstance(node, dict) and isinstance(node.get("answer"), dict) and node.get("status", 0) >= 400:
            found.append(json.dumps(node["answer"]))
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            look(child)

    look(json.loads(GOLDEN.read_text()))
    return found


def test_recorded_errors_have_a_message() -> None:
    recorded = _recorded()

    assert len(recorded) > 30
    assert all(parse_error_text(answer.encode()) for answer in recorded)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"Unauthorized",
        b"[]",
        b"1",
        b'{"status": "error"}',
        b'{"status": {"error": null}}',
        b'{"status": []}',
        b"\xff",
    ],
)
def test_malformed_error_has_no_message(raw: bytes) -> None:
    assert parse_error_text(raw) == ""
    assert error_message(403, parse_error_text(raw)) == "Qdrant answered 403"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"status": {"error": "Not found: Collection `a` doesn\'t exist!"}}', CollectionNotFound),
        (b'{"status": {"error": "Not found: Snapshot a"}}', NotFound),
        (b"Not found: Snapshot a", NotFound),
        (b"", RouteNotFound),
        (b"404 page not found", RouteNotFound),
        (b"<h1>Not Found</h1>", RouteNotFound),
        (b'{"message": "no Route matched"}', RouteNotFound),
    ],
)
def test_foreign_404_says_nothing_about_a_resource(body: bytes, error: type[Exception]) -> None:
    assert type(error_from_response(CallResponse(404, {}, body), None)) is error


def test_echoed_api_key_is_removed() -> None:
    assert parse_error_text(b'{"status": {"error": "not KEY"}}', "KEY") == "not ..."
