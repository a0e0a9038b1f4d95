"""Request ids, tokens, body sizes, unexpected errors, health, and the problem pages."""

import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.api.identity.auth import OpenGuard, TokenGuard, build_guard
from agentmemory_operator.entrypoints.api.memories import memory_routes
from agentmemory_operator.entrypoints.api.problems import PROBLEMS
from agentmemory_operator.settings import SettingInvalid, Settings
from tests.support.web.api_stack import ConstantSources, Stack, running_api

MEMORIES, BATCH = "/v1/agents/probe/memories", "/v1/agents/probe/memories/batch"
MIB = 1 << 20


@pytest.fixture(scope="module")
def guarded(qdrant_url: str) -> Iterator[str]:
    """An API that requires a token and is not ready."""
    with running_api(qdrant_url, guard=TokenGuard("s3cret"), sources=ConstantSources("no Qdrant answers", 75)) as stack:
        yield stack.api_url


def test_request_id_is_echoed(client: httpx.Client) -> None:
    answer = client.get("/v1/agents/nobody", headers={"X-Request-Id": "my-id.7"})

    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "my-id.7"
    assert answer.headers["x-agentmemory-version"] == __version__


@pytest.mark.parametrize("sent", [None, "", "with blank", "x" * 129, "<script>"])
def test_missing_or_odd_request_id_is_replaced(client: httpx.Client, sent: str | None) -> None:
    answer = client.get("/v1/agents", headers={"X-Request-Id": sent} if sent is not None else {})

    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("s3cret", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer s3cret2", 401),
        ("Basic s3cret", 401),
        ("Bearer s3cret", 200),
        ("bearer  s3cret", 200),
    ],
)
def test_token_decides_access(guarded: str, header: str | None, status: int) -> None:
    answer = httpx.get(f"{guarded}/v1/agents", headers={"Authorization": header} if header is not None else {})

    assert answer.status_code == status
    if status == 401:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/v1/agents/x", "/v1/nothing", "/v1/"])
def test_every_v1_path_needs_a_token(guarded: str, path: str) -> None:
    assert httpx.get(guarded + path).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/docs", "/problems/not-found"])
def test_pages_outside_v1_need_no_token(guarded: str, path: str) -> None:
    # The first /openapi.json takes seconds on a busy machine.
    assert httpx.get(guarded + path, timeout=60).status_code != 401


def test_not_ready_has_retry_after(guarded: str) -> None:
    answer = httpx.get(f"{guarded}/readyz")

    assert (answer.json()["type"], answer.headers["retry-after"]) == ("/problems/unavailable", "1")


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/agents/probe", "/v1/nothing", "/mcp"])
def test_unread_agents_are_503_without_a_token(qdrant_url: str, path: str) -> None:
    sources = ConstantSources(None, 0, unread="not loaded")
    with running_api(qdrant_url, guard=TokenGuard("s3cret"), sources=sources) as stack:
        answer = httpx.get(stack.api_url + path)

        assert httpx.get(f"{stack.api_url}/healthz").status_code == 200
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (answer.json()["type"], answer.json()["detail"]) == ("/problems/unavailable", "not loaded")


def test_ready_is_200(client: httpx.Client) -> None:
    assert client.get("/readyz").json() == {"status": "ok"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.9.1"])
def test_auth_none_is_allowed_on_loopback(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        guard = build_guard(Settings(auth="none"), host)

    assert isinstance(guard, OpenGuard)
    assert f"anybody who can reach {host}" in caplog.text


@pytest.mark.parametrize(("host", "is_warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_accepted_auth_none_warns_of_other_machines(
    host: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build_guard(Settings(auth="none", accepts_auth_none=True), host)

    assert ("anybody who can reach" in caplog.text) is is_warned


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "api.example.com", ""])
def test_auth_none_elsewhere_must_be_accepted(host: str) -> None:
    with pytest.raises(SettingInvalid, match="AGENTMEMORY_AUTH_NONE_ACCEPTED=yes"):
        build_guard(Settings(auth="none"), host)

    assert isinstance(build_guard(Settings(auth="none", accepts_auth_none=True), host), OpenGuard)


def test_kubernetes_auth_needs_a_cluster() -> None:
    with pytest.raises(SettingInvalid, match="with --source kubernetes, or set AGENTMEMORY_AUTH=token"):
        build_guard(Settings.from_env({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), "0.0.0.0")


def test_token_auth_is_allowed_anywhere() -> None:
    assert isinstance(build_guard(Settings(auth="token", token="t"), "0.0.0.0"), TokenGuard)


@pytest.mark.parametrize(("path", "limit"), [(MEMORIES, MIB), ("/v1/agents/probe/search", MIB), (BATCH, 16 * MIB)])
def test_oversized_content_length_is_413(client: httpx.Client, path: str, limit: int) -> None:
    answer = client.post(path, content=b" " * (limit + 1))

    assert answer.status_code == 413
    assert answer.json()["detail"].startswith(f"the body is larger than {limit // MIB} MiB")


@pytest.mark.parametrize("path", [MEMORIES, "/v1/agents/probe/search"])
def test_body_of_exactly_the_limit_is_read(client: httpx.Client, path: str) -> None:
    assert client.post(path, content=b"{}".ljust(MIB)).status_code == 422


def test_oversized_chunked_body_is_413(stack: Stack) -> None:
    connection = http.client.HTTPConnection(urlsplit(stack.api_url).netloc, timeout=20)
    chunks = (b" " * 65_536 for _ in range(17))
    sent = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    connection.request("POST", MEMORIES, body=chunks, encode_chunked=True, headers=sent)
    answer = connection.getresponse()

    assert answer.status == 413
    assert b"/problems/body-too-large" in answer.read()
    connection.close()


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"])
def test_json_media_type_is_accepted(client: httpx.Client, user: str, media_type: str) -> None:
    body = json.dumps({"user_id": user, "content": "c", "vector": [1.0] * 8})

    assert client.post(MEMORIES, content=body, headers={"Content-Type": media_type}).status_code == 201


def test_chunked_body_is_read_whole(client: httpx.Client, user: str) -> None:
    parts = [f'{{"user_id": "{user}", '.encode(), b'"content": "c", ', b'"vector": [1,1,1,1,1,1,1,1]}']

    answer = client.post(MEMORIES, content=iter(parts), headers={"Content-Type": "application/json; charset=utf-8"})

    assert answer.status_code == 201


def test_unexpected_error_is_a_problem_and_logged(
    stack: Stack, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*args: Any, **more: Any) -> None:
        raise ZeroDivisionError("not for callers")

    monkeypatch.setattr(memory_routes, "count_stored", fail)
    answer = client.get("/v1/agents/probe", headers={"X-Request-Id": "trace-me"})

    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    assert "not for callers" not in answer.text
    assert "request trace-me" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_every_problem_has_a_page(client: httpx.Client, problem: Any) -> None:
    page = client.get(problem.uri).json()

    assert (page["type"], page["status"]) == (problem.uri, problem.status)
    assert page["explanation"]


def test_access_counts_are_flushed_at_shutdown(qdrant_url: str) -> None:
    events: list[str] = []

    with running_api(qdrant_url) as stack:

        async def flush() -> None:
            events.append("flushed")

        stack.services.access_counts.flush = flush  # type: ignore[method-assign]
        assert httpx.get(f"{stack.api_url}/healthz").status_code == 200
    assert events == ["flushed"]
