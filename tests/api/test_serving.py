"""API serving: offline pages, metrics, access log, body limits, and the warning about outdated settings."""

import json
import logging
import re
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from agentmemory_operator.entrypoints.api.edge import STALE_HEADER
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.logs import JsonFormatter
from tests.api.conftest import PROBE, WORDS
from tests.support.metrics import parse_samples
from tests.support.web.api_stack import ConstantSources, Stack, running_api

MEMORIES, SEARCH = "/v1/agents/probe/memories", "/v1/agents/probe/search"
VECTOR = [1.0] * 8


def samples(url: str) -> dict[str, float]:
    """Return the samples of `/metrics`, by name and labels."""
    return parse_samples(httpx.get(f"{url}/metrics").text)


def test_docs_page_loads_nothing_from_other_hosts(client: httpx.Client) -> None:
    page = client.get("/docs").text
    loaded = re.findall(r"""(?:src|href)=["']([^"']+)""", page) + re.findall(r"""url: ["']([^"']+)""", page)

    assert len(loaded) == 4
    assert "://" not in page
    # By default the script would send the document to a validator on the internet.
    assert re.search(r'"validatorUrl": ?null', page)
    for path in loaded:
        assert client.get(path).status_code == 200, path


def test_requests_searches_and_calls_are_measured(stack: Stack, client: httpx.Client, user: str) -> None:
    body = {"user_id": user, "content": f"text of {user}"}
    before = samples(stack.api_url)
    client.post("/v1/agents/words/memories", json=body).raise_for_status()
    client.post("/v1/agents/words/memories", json=body).raise_for_status()
    client.post("/v1/agents/words/search", json={"user_id": user, "query": "text"}).raise_for_status()
    after = samples(stack.api_url)

    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    labels = 'method="POST",route="/v1/agents/{agent}/memories",status="201"'
    assert grown[f"agentmemory_api_request_duration_seconds_count{{{labels}}}"] == 2
    assert grown['agentmemory_api_embedding_cache_total{result="hit"}'] == 1
    assert grown['agentmemory_api_embedding_cache_total{result="miss"}'] == 2
    assert grown['agentmemory_api_embed_duration_seconds_count{outcome="ok",provider="wordllama"}'] == 2
    assert grown['agentmemory_api_engine_duration_seconds_count{operation="PUT points",outcome="2xx"}'] == 2
    assert grown['agentmemory_api_engine_duration_seconds_count{operation="POST points/query",outcome="2xx"}'] == 1
    assert grown["agentmemory_api_search_candidates_count"] == 1
    assert grown["agentmemory_api_search_candidates_sum"] == 2
    assert after["agentmemory_api_access_waiting"] >= 2
    assert user not in httpx.get(f"{stack.api_url}/metrics").text


def test_callers_cannot_create_metric_series(stack: Stack, client: httpx.Client) -> None:
    for number in range(3):
        client.request("PROPFIND", f"/nowhere/{number}")
        client.get(f"/v1/agents/unknown-{number}")

    requests = {name for name in samples(stack.api_url) if name.startswith("agentmemory_api_request_duration")}

    assert any('method="other",route="unmatched",status="404"' in name for name in requests)
    assert not any("PROPFIND" in name or "nowhere" in name or "unknown" in name for name in requests)


def test_access_log_has_requests_but_no_contents(
    client: httpx.Client, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a-secret-of-hers"
    with caplog.at_level(logging.INFO, "agentmemory_operator.entrypoints.api.edge"):
        stored = client.post(MEMORIES, json={"user_id": user, "content": secret, "vector": VECTOR})
        client.get(f"{MEMORIES}/{stored.json()['id']}", params={"user_id": user}, headers={"X-Request-Id": "r-1"})
        client.post(SEARCH, json={"user_id": user, "query": secret})
        client.get("/healthz")

    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert [json.loads(line)["request"]["status"] for line in lines] == [201, 200, 422]
    logged = json.loads(lines[1])["request"]
    assert logged["took_ms"] > 0
    del logged["took_ms"]
    assert logged == {
        "method": "GET",
        "path": f"{MEMORIES}/{stored.json()['id']}",
        "status": 200,
        "request_id": "r-1",
    }
    assert not any(secret in line or user in line for line in lines)


@pytest.mark.parametrize(("age_s", "header"), [(0.0, None), (60.0, None), (75.9, "75")])
def test_outdated_settings_are_served_with_a_warning(qdrant_url: str, age_s: float, header: str | None) -> None:
    with running_api(qdrant_url, PROBE, sources=ConstantSources(None, age_s)) as stack:
        answers = [httpx.get(stack.api_url + path) for path in ("/v1/agents/probe", "/v1/agents/nobody")]
        probe = httpx.get(f"{stack.api_url}/readyz")

    assert [answer.status_code for answer in answers] == [200, 404]
    assert [answer.headers.get(STALE_HEADER) for answer in answers] == [header, header]
    assert (probe.status_code, probe.headers.get(STALE_HEADER)) == (200, None)


def start_request(url: str, *, body: bytes) -> socket.socket:
    """Start a request whose body does not end."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname or "", place.port or 0))
    lines = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body) + 1}", "", ""]
    connection.sendall("\r\n".join([f"POST {MEMORIES}/batch HTTP/1.1", *lines]).encode() + body)
    return connection


def wait_receiving(url: str, number: int, *, body_bytes: int = 0) -> None:
    deadline_s = time.monotonic() + 20
    expected = {"agentmemory_api_requests_receiving": number, "agentmemory_api_body_bytes_in_flight": body_bytes}
    while not expected.items() <= samples(url).items():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def store(url: str, **more: object) -> httpx.Response:
    return httpx.post(url + MEMORIES, json={"user_id": "u", "content": "c" * 1000, "vector": VECTOR, **more})


def test_unfinished_body_uses_only_its_bytes(qdrant_url: str) -> None:
    """An unfinished body occupies no request slot."""

    with running_api(qdrant_url, PROBE, limits=Limits(requests=1)) as stack:
        with start_request(stack.api_url, body=b"{" * 100_000):
            wait_receiving(stack.api_url, 1, body_bytes=100_000)
            assert samples(stack.api_url)["agentmemory_api_requests_in_flight"] == 0
            assert store(stack.api_url).status_code == 201
        wait_receiving(stack.api_url, 0)
        assert store(stack.api_url).status_code == 201


def test_stalled_body_yields_to_a_new_one(qdrant_url: str) -> None:
    memories = [{"user_id": "u", "content": f"{number}" + "c" * 1000, "vector": VECTOR} for number in range(300)]
    with running_api(qdrant_url, PROBE, limits=Limits(body_bytes=400_000)) as stack:
        with start_request(stack.api_url, body=b"{" * 300_000) as stalled:
            wait_receiving(stack.api_url, 1, body_bytes=300_000)
            stored = httpx.post(f"{stack.api_url}{MEMORIES}/batch", json={"memories": memories})
            received = stalled.recv(4096)
        wait_receiving(stack.api_url, 0)

        assert received.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in received
        assert stored.status_code == 200
        assert samples(stack.api_url)["agentmemory_api_requests_in_flight"] == 0


def test_oversized_body_is_accepted_if_alone(qdrant_url: str) -> None:
    with running_api(qdrant_url, WORDS, PROBE, limits=Limits(body_bytes=10)) as stack:
        assert store(stack.api_url).status_code == 201
