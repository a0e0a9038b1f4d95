"""Root links, HEAD requests, and the suggestion for a wrong path."""

import time
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.entrypoints.api.identity.auth import TokenGuard
from tests.support.web.api_stack import Stack, running_api

PROBE = "/v1/agents/probe"


@pytest.fixture(scope="module")
def guarded(qdrant_url: str) -> Iterator[str]:
    """An API that requires a token."""
    with running_api(qdrant_url, guard=TokenGuard("s3cret")) as stack:
        yield stack.api_url


def test_root_links_to_existing_pages(client: httpx.Client, guarded: str) -> None:
    answer = client.get("/")

    links = answer.json()["links"]
    assert {"/docs", "/v1/agents", "/mcp", "/healthz"} <= set(links.values())
    assert "/ui" not in links.values()
    for path in links.values():
        assert client.get(path).status_code == (405 if path == "/mcp" else 200), path
    # The same for every caller: no agents, users or settings.
    assert httpx.get(f"{guarded}/").json() == answer.json()
    assert httpx.get(f"{guarded}/v1/agents").status_code == httpx.head(f"{guarded}/v1/agents").status_code == 401


def paths_of(client: httpx.Client) -> dict[str, set[str]]:
    described = client.get("/openapi.json").json()["paths"]
    values = {"{agent}": "probe", "{session_id}": "s", "{id}": "018f0000-0000-7000-8000-000000000000", "{name}": "n"}
    paths = {}
    for template, methods in described.items():
        path = template
        for name, value in values.items():
            path = path.replace(name, value)
        paths[path] = set(methods)
    return paths | {"/docs": {"get"}, "/openapi.json": {"get"}, "/docs/assets/swagger-ui.css": {"get"}}


def test_head_is_supported_wherever_get_is(client: httpx.Client) -> None:
    paths = paths_of(client)
    read = [path for path, methods in paths.items() if "get" in methods]
    assert len(read) > 20

    for path in read:
        parameters = {"user_id": "u", "namespace": ["a", "b"], "key": "k"} if path.startswith(f"{PROBE}/items") else {}
        parameters = parameters or ({"user_id": "u"} if path.startswith(f"{PROBE}/") else {})
        got, head = client.get(path, params=parameters), client.head(path, params=parameters)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers.get("content-type") == got.headers.get("content-type"), path
        if path != "/metrics":
            assert head.headers.get("content-length") == got.headers.get("content-length"), path
    for path in paths.keys() - set(read):
        assert client.head(path).status_code == client.get(path).status_code in (405, 422), path


def test_head_of_a_stream_ends(client: httpx.Client) -> None:
    started_s = time.monotonic()
    head = client.head(f"{PROBE}/changes", headers={"Accept": "text/event-stream"})

    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert time.monotonic() - started_s < 10
    assert client.head(f"{PROBE}/export", params={"user_id": "u"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/search", "/v1/agents/{agent}/search"),
        ("/search", "/v1/agents/{agent}/search"),
        ("/v1/agent", "/v1/agents"),
        ("/v1/agents/", "/v1/agents"),
        ("/v2/agents", "/v1/agents"),
        ("/api/v1/agents", "/v1/agents"),
        ("/agents/bot/search", "/v1/agents/bot/search"),
        ("/V1/Agents/bot/Search", "/v1/agents/bot/search"),
        ("/v1/agents/bot/memory", "/v1/agents/bot/memories"),
        ("/v1/agents/bot/memories/7/hist", "/v1/agents/bot/memories/7/history"),
        ("/v1/agents/bot/memories/7/versions", "/v1/agents/bot/memories/7"),
        ("/v1/agents/bot/session/s%201/working", "/v1/agents/bot/sessions/s%201/working"),
        ("/v1/agents/bot/nothing", "/v1/agents/bot"),
        ("/memories", "/v1/agents/{agent}/memories"),
        ("/health", "/healthz"),
        ("/doc", "/docs"),
        ("/mcp/", "/mcp"),
        ("/nothing", "/"),
        ("/" + "x" * 5_000, "/"),
        ("/x" * 1_000, "/"),
    ],
)
def test_wrong_path_names_the_nearest(client: httpx.Client, path: str, near: str) -> None:
    answer = client.get(path)

    assert answer.status_code == 404
    assert answer.json()["detail"].startswith(f"Not Found: the nearest path is {near}; ")


def test_wrong_path_without_token_is_401(guarded: str) -> None:
    assert httpx.get(f"{guarded}/v1/agents/bot/memory").status_code == 401


@pytest.mark.parametrize(("sent", "kept"), [("%2E%2E", ".."), ("%2E", "."), ("..%2F..", "../.."), ("a%2Fb", "a/b")])
def test_session_id_may_consist_of_dots(client: httpx.Client, user: str, sent: str, kept: str, stack: Stack) -> None:
    url = httpx.URL(stack.api_url, raw_path=f"/v1/agents/mind/sessions/{sent}/working?user_id={user}".encode())
    put = client.put(url, json={"content": "w", "vector": [1.0] * 8})
    assert put.status_code == 200, put.text

    listed = client.get(url).json()["results"]
    assert [(each["content"], each["session_id"]) for each in listed] == [("w", kept)]
    ended = client.post(httpx.URL(str(url).replace("/working", "/end")))
    assert ended.json()["dropped"] == 1


@pytest.mark.parametrize("key", ["..", ".", "../..", "a/../b"])
def test_item_key_may_consist_of_dots(client: httpx.Client, user: str, key: str) -> None:
    place = {"user_id": user, "namespace": ["..", "."], "key": key}
    assert client.put("/v1/agents/words/items", params=place, json={"content": key}).status_code == 200

    assert client.get("/v1/agents/words/items", params=place).json()["content"] == key


@pytest.mark.parametrize("sent", ["%2E%2E", "%2E"])
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_memory_id_of_dots_is_404(client: httpx.Client, stack: Stack, user: str, method: str, sent: str) -> None:
    url = httpx.URL(stack.api_url, raw_path=f"{PROBE}/memories/{sent}?user_id={user}".encode())
    answer = client.request(method, url, json={"pinned": True} if method == "PATCH" else None)

    assert answer.status_code == 404
    assert "an ID is a UUID" in answer.json()["detail"]
