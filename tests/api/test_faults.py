"""Outages of Qdrant and the embedding service: 503 with Retry-After, no partial writes, and recovery."""

import pathlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.support.spec.documents import Document, agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.http_server import serve
from tests.support.web.qdrant_proxy import Fault, serve_proxy
from tests.support.web.services import FakeOpenAI, failure

BODY = {"user_id": "u", "content": "c", "vector": [1.0] * 8}
PROBE = agent_document("probe")
PROBES = "/v1/agents/probe/memories"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def remote(url: str) -> Document:
    return agent_document(
        "remote",
        embedding={"provider": "openai", "model": "m", "dimensions": 8, "baseURL": f"{url}/v1", "timeoutSeconds": 1},
    )


def assert_unavailable(answer: httpx.Response, type_: str) -> None:
    assert (answer.status_code, answer.json()["type"]) == (503, type_), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1


def test_qdrant_outage_is_503_until_it_returns(tmp_path: pathlib.Path) -> None:
    port = free_port()
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/v1/agents/probe/memories", BODY),
        ("POST", "/v1/agents/probe/memories/batch", {"memories": [BODY]}),
        ("POST", "/v1/agents/probe/search", {"user_id": "u", "vector": [1.0] * 8}),
        ("GET", "/v1/agents/probe/memories?user_id=u", None),
        ("GET", "/v1/agents/probe", None),
    ]
    with ExitStack() as stack:
        with dev_qdrant(tmp_path, port=port) as qdrant:
            create_collection(qdrant, PROBE)
            api = stack.enter_context(running_api(qdrant, PROBE))
            client = stack.enter_context(httpx.Client(base_url=api.api_url, timeout=20))
            assert client.post("/v1/agents/probe/memories", json=BODY).status_code == 201
        for method, path, body in calls:
            assert_unavailable(client.request(method, path, json=body), "/problems/store-unavailable")
        agents = client.get("/v1/agents").json()["results"]
        assert [(agent["ready"], agent["memories"]) for agent in agents] == [(False, None)]
        assert client.get("/healthz").status_code == 200
        with dev_qdrant(tmp_path, port=port):
            assert client.get("/v1/agents/probe").json()["memories"] == 1
            assert client.post("/v1/agents/probe/memories", json=BODY).status_code == 201
            stack.pop_all().close()


@pytest.mark.parametrize("deleted", ["the collection", "the alias"])
def test_missing_collection_is_not_an_outage(tmp_path: pathlib.Path, deleted: str) -> None:
    alias = "agent_memory_probe"
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/v1/agents/probe/search", {"user_id": "u", "vector": [1.0] * 8}),
        ("GET", "/v1/agents/probe/memories?user_id=u", None),
        ("POST", "/v1/agents/probe/memories", BODY),
        ("POST", "/v1/agents/probe/forget", {"user_id": "u", "everything": True}),
    ]
    with dev_qdrant(tmp_path) as qdrant, httpx.Client(base_url=qdrant) as http, ExitStack() as stack:
        create_collection(qdrant, PROBE)
        urls = [stack.enter_context(running_api(qdrant, PROBE)).api_url for _ in range(2)]
        clients = [stack.enter_context(httpx.Client(base_url=url)) for url in urls]
        # The first API has served the agent before, the second has not.
        assert clients[0].post("/v1/agents/probe/memories", json=BODY).status_code == 201
        (found,) = http.get("/aliases").json()["result"]["aliases"]
        action = {"actions": [{"delete_alias": {"alias_name": alias}}]}
        http.post("/collections/aliases", json=action).raise_for_status()
        if deleted == "the collection":
            http.delete(f"/collections/{found['collection_name']}").raise_for_status()

        for client in clients:
            for method, path, body in calls:
                answer = client.request(method, path, json=body)
                assert_unavailable(answer, "/problems/collection-missing")
                assert "Qdrant is unavailable" not in answer.text
                assert "Ready condition" in answer.json()["detail"]


def test_bad_request_is_422_during_an_outage() -> None:
    with running_api("http://127.0.0.1:9", PROBE) as stack:
        answer = httpx.post(f"{stack.api_url}/v1/agents/probe/search", json={"vector": [1.0] * 8})

    assert answer.status_code == 422


@pytest.fixture
def embedder() -> Iterator[tuple[FakeOpenAI, str]]:
    service = FakeOpenAI()
    with serve(service.app()) as url:
        yield service, url


@pytest.fixture
def client(qdrant_url: str, embedder: tuple[FakeOpenAI, str]) -> Iterator[httpx.Client]:
    document = remote(embedder[1])
    create_collection(qdrant_url, document)
    with running_api(qdrant_url, document) as stack, httpx.Client(base_url=stack.api_url, timeout=20) as client:
        yield client
    httpx.delete(f"{qdrant_url}/collections/agent_memory_remote__1").raise_for_status()


MEMORIES, SEARCH = "/v1/agents/remote/memories", "/v1/agents/remote/search"
TEXT = {"user_id": "u", "content": "c"}


def test_embedder_outage_is_503_until_it_returns(embedder: tuple[FakeOpenAI, str], client: httpx.Client) -> None:
    service, _ = embedder
    service.faults = [failure(500)] * 30

    assert_unavailable(client.post(MEMORIES, json=TEXT), "/problems/embedder-unavailable")
    assert_unavailable(client.post(f"{MEMORIES}/batch", json={"memories": [TEXT]}), "/problems/embedder-unavailable")
    assert_unavailable(client.post(SEARCH, json={"user_id": "u", "query": "c"}), "/problems/embedder-unavailable")
    assert client.get("/v1/agents/remote").json()["memories"] == 0

    service.faults = []
    assert client.post(MEMORIES, json=TEXT).status_code == 201
    assert client.get("/v1/agents/remote").json()["memories"] == 1


def test_retry_after_of_embedder_is_passed_on(embedder: tuple[FakeOpenAI, str], client: httpx.Client) -> None:
    embedder[0].faults = [failure(429, retry_after="17")]

    answer = client.post(MEMORIES, json=TEXT)

    assert_unavailable(answer, "/problems/embedder-unavailable")
    assert answer.headers["retry-after"] == "17"


def test_refused_key_names_the_setting(embedder: tuple[FakeOpenAI, str], client: httpx.Client) -> None:
    embedder[0].faults = [failure(401)]

    answer = client.post(MEMORIES, json=TEXT)

    assert_unavailable(answer, "/problems/agent-misconfigured")
    assert "spec.embedding.secretRef" in answer.json()["detail"]


def test_model_of_other_size_stores_nothing(embedder: tuple[FakeOpenAI, str], client: httpx.Client) -> None:
    embedder[0].dimensions = 16

    answer = client.post(MEMORIES, json=TEXT)

    assert_unavailable(answer, "/problems/agent-misconfigured")
    assert "returns 16 dimensions, but the object declares 8" in answer.json()["detail"]
    assert client.get("/v1/agents/remote").json()["memories"] == 0


def test_text_refused_by_embedder_fails_alone(embedder: tuple[FakeOpenAI, str], client: httpx.Client) -> None:
    service, _ = embedder
    # After a first success, a 400 is about the text and not about the encoding of numbers.
    assert client.post(MEMORIES, json=TEXT | {"content": "first"}).status_code == 201
    # Fail the whole batch, then its first text alone; the second one is embedded.
    service.faults = [failure(400, "too long"), failure(400, "too long")]

    results = client.post(f"{MEMORIES}/batch", json={"memories": [TEXT, TEXT | {"content": "d"}]}).json()["results"]

    assert results[0]["error"]["status"] == 422
    assert results[1]["event"] == "ADD"


@pytest.mark.parametrize("key", ["k", None])
def test_lost_batch_can_be_sent_again_with_its_key(tmp_path: pathlib.Path, key: str | None) -> None:
    batch = {"memories": [BODY | {"content": "a"}, BODY | {"content": "b"}]}
    with dev_qdrant(tmp_path) as qdrant, serve_proxy(qdrant) as proxy:
        create_collection(qdrant, PROBE)
        with running_api(proxy.url, PROBE) as stack, httpx.Client(base_url=stack.api_url, timeout=20) as client:
            assert client.get("/v1/agents/probe").status_code == 200
            proxy.fail_with(Fault(cut="head", of="writes", times=1))
            headers = {"Idempotency-Key": key} if key else {}

            first, second = (client.post(f"{PROBES}/batch", json=batch, headers=headers) for _ in range(2))
            listed = client.get(PROBES, params={"user_id": BODY["user_id"]}).json()["results"]

    assert (first.status_code, first.json()["type"]) == (504, "/problems/outcome-unknown")
    assert [result["event"] for result in second.json()["results"]] == ["ADD", "ADD"]
    # Without a key the second is another request and stores the batch again.
    assert sorted(memory["content"] for memory in listed) == (["a", "b"] if key else ["a", "a", "b", "b"])


def test_malformed_metadata_is_503_and_names_the_field(tmp_path: pathlib.Path) -> None:
    with dev_qdrant(tmp_path / "qdrant") as qdrant_url:
        create_collection(qdrant_url, PROBE)
        path = f"{qdrant_url}/collections/agent_memory_probe__1"
        marker = httpx.get(path).json()["result"]["config"]["metadata"]["agentmemory"]
        marker["embedding"]["dimensions"] = "many"
        httpx.patch(path, json={"metadata": {"agentmemory": marker}}).raise_for_status()
        with running_api(qdrant_url, PROBE) as stack:
            answer = httpx.get(f"{stack.api_url}/v1/agents/probe")

    assert_unavailable(answer, "/problems/collection-missing")
    assert "agentmemory.embedding.dimensions has no valid value" in answer.json()["detail"]
