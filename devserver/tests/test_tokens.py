"""Tokens with limited rights, as on a real server: by the name in the path, and for points or more."""

import time
from typing import Any

import httpx
import jwt
import pytest

from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from tests.support.web.qdrant_nodes import DevServer, StartServer

KEY = "a key of at least thirty-two characters"
POINT = {"points": [{"id": 1, "vector": [1.0]}]}
INDEX = {"field_name": "f", "field_schema": "keyword"}
VECTORS = {"vectors": {"size": 1, "distance": "Dot"}}
NOW = int(time.time())
# Tokens in parameters are created when tests are collected, long before the last test runs.
DAY_S = 86_400


def token(access: Any = None, *, key: str = KEY, **claims: Any) -> str:
    given = {} if access is None else {"access": access}
    return jwt.encode({"exp": NOW + DAY_S} | given | claims, key, algorithm="HS256")


def for_collection(name: str, mode: str, **claims: Any) -> str:
    return token([{"collection": name, "access": mode}], **claims)


@pytest.fixture
def guarded(start_server: StartServer) -> DevServer:
    """Server with the alias `memories` of the collection `memories__1`, and another collection."""
    started = start_server("--api-key", KEY, "--jwt-rbac")
    for name in ("memories__1", "other"):
        ask(started, KEY, "PUT", f"/collections/{name}", VECTORS, status=200)
    alias = {"create_alias": {"collection_name": "memories__1", "alias_name": "memories"}}
    ask(started, KEY, "POST", "/collections/aliases", {"actions": [alias]}, status=200)
    return started


def ask(
    server: DevServer, key: str, method: str, path: str, body: Any = None, *, status: int | None = None
) -> httpx.Response:
    answer = server.http.request(method, path, json=body, headers={"api-key": key})
    assert status in (None, answer.status_code), answer.text
    return answer


# Recorded from Qdrant 1.18 for a points-only token with the name of an alias.
CALLS = [
    ("PUT", "/collections/{}/points", POINT, 200),
    ("POST", "/collections/{}/points/query", {"query": [1.0]}, 200),
    ("POST", "/collections/{}/points/count", {}, 200),
    ("POST", "/collections/{}/points", {"ids": [1]}, 200),
    ("GET", "/collections/{}", None, 200),
    ("PUT", "/collections/{}/index", INDEX, 403),
    ("DELETE", "/collections/{}", None, 403),
    ("PATCH", "/collections/{}", {}, 403),
    ("POST", "/collections/{}/snapshots", None, 403),
    ("GET", "/metrics", None, 403),
    ("GET", "/collections", None, 403),
    ("POST", "/collections/aliases", {"actions": []}, 403),
]


@pytest.mark.parametrize(("name", "is_named"), [("memories", True), ("memories__1", False), ("other", False)])
def test_points_token_is_valid_for_its_name(guarded: DevServer, name: str, is_named: bool) -> None:
    minted = QdrantTokens().mint(KEY, "memories", expires_at_s=NOW + DAY_S)
    assert minted is not None

    answers = [ask(guarded, minted, method, path.format(name), body).status_code for method, path, body, _ in CALLS]

    assert answers == [status if is_named else 403 for *_, status in CALLS]


def test_token_for_an_alias_survives_its_move(guarded: DevServer) -> None:
    minted = for_collection("memories", "prw")
    ask(guarded, minted, "PUT", "/collections/memories/points", POINT, status=200)
    actions = [
        {"delete_alias": {"alias_name": "memories"}},
        {"create_alias": {"collection_name": "other", "alias_name": "memories"}},
    ]
    ask(guarded, KEY, "POST", "/collections/aliases", {"actions": actions}, status=200)

    answer = ask(guarded, minted, "POST", "/collections/memories/points/count", {}, status=200)

    assert answer.json()["result"]["count"] == 0


@pytest.mark.parametrize(
    ("given", "reads", "writes", "indexes"),
    [
        (for_collection("other", "r"), 200, 403, 403),
        (for_collection("other", "rw"), 200, 200, 200),
        (for_collection("other", "prw"), 200, 200, 403),
        (token("r"), 200, 403, 403),
        (token("m"), 200, 200, 200),
        (token(), 200, 200, 200),
        (for_collection("other", "prw", exp=NOW - 60), 401, 401, 401),
        (for_collection("other", "prw", key="another key of thirty-two characters"), 401, 401, 401),
        (token("m", value_exists={"collection": "other", "matches": []}), 501, 501, 501),
    ],
    ids=[
        "r",
        "rw",
        "prw",
        "global r",
        "global m",
        "no access",
        "ended",
        "another key",
        "value_exists",
    ],
)
def test_token_kind_limits_requests(guarded: DevServer, given: str, reads: int, writes: int, indexes: int) -> None:
    base = "/collections/other"

    assert ask(guarded, given, "POST", f"{base}/points/count", {}).status_code == reads
    assert ask(guarded, given, "PUT", f"{base}/points", POINT).status_code == writes
    assert ask(guarded, given, "PUT", f"{base}/index", INDEX).status_code == indexes


# Creating and deleting a snapshot needs rw, reading needs r, and recovering a collection needs global access.
@pytest.mark.parametrize(
    ("given", "looks", "makes", "recovers"),
    [
        (for_collection("other", "r"), 200, 403, 403),
        (for_collection("other", "rw"), 200, 200, 403),
        (for_collection("other", "prw"), 403, 403, 403),
        (for_collection("memories__1", "rw"), 403, 403, 403),
        (token("r"), 200, 403, 403),
        (token("m"), 200, 200, 400),
    ],
    ids=["r", "rw", "prw", "another", "global r", "global m"],
)
def test_token_kind_limits_snapshot_requests(
    guarded: DevServer, given: str, looks: int, makes: int, recovers: int
) -> None:
    base = "/collections/other/snapshots"
    name = ask(guarded, KEY, "POST", base).json()["result"]["name"]

    assert ask(guarded, given, "GET", base).status_code == looks
    assert ask(guarded, given, "GET", f"{base}/{name}").status_code == looks
    assert ask(guarded, given, "POST", base).status_code == makes
    assert ask(guarded, given, "PUT", f"{base}/recover", {"location": "ftp://host/file"}).status_code == recovers
    assert ask(guarded, given, "POST", f"{base}/upload").status_code == recovers
    assert ask(guarded, given, "DELETE", f"{base}/{name}").status_code == makes


def test_token_is_valid_30_s_after_its_expiry(guarded: DevServer) -> None:
    just_ended = for_collection("other", "prw", exp=int(time.time()) - 5)

    ask(guarded, just_ended, "POST", "/collections/other/points/count", {}, status=200)


def test_tokens_are_rejected_by_default(start_server: StartServer) -> None:
    plain = start_server("--api-key", KEY)

    assert ask(plain, token("m"), "GET", "/collections").status_code == 401
    assert ask(plain, KEY, "GET", "/telemetry").json()["result"]["app"]["jwt_rbac"] is False


def test_telemetry_reports_jwt_rbac(guarded: DevServer) -> None:
    assert ask(guarded, KEY, "GET", "/telemetry").json()["result"]["app"]["jwt_rbac"] is True
