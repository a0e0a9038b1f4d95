"""Searches that a service over HTTP reranks."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from tests.support.spec.documents import ALL_PASS, agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.rerankers import FakeRerankService
from tests.support.zone_agents import Keys, zoned_document

KEY = {"name": "rerank", "key": "api-key"}
CONTENTS = ("apple", "banana", "cherry", "damson")
SEALED = "zebra: sealed"


@pytest.fixture(scope="module")
def secrets() -> dict[tuple[str, str, str], str]:
    return {("agents", name, "api-key"): f"key of {name}" for name in ("rerank", "rotated")}


@pytest.fixture(scope="module")
def reranked(
    qdrant_url: str, rerank_server: tuple[FakeRerankService, str], secrets: dict[tuple[str, str, str], str]
) -> Iterator[httpx.Client]:
    """Agents `remote`; `zoned` with a sealed memory; `flaky`; `rotated`; `keyless`, whose Secret does not exist."""
    rerank = {"provider": "http", "url": f"{rerank_server[1]}/rerank", "model": "m", "secretRef": KEY, "candidates": 5}
    embedding = {"provider": "wordllama", "dimensions": 64}
    missing, rotated = (rerank | {"secretRef": KEY | {"name": name}} for name in ("missing", "rotated"))
    documents = [
        agent_document("remote", embedding=embedding, scoring=ALL_PASS | {"rerank": rerank}),
        agent_document("flaky", embedding=embedding, scoring=ALL_PASS | {"rerank": rerank}),
        agent_document("rotated", embedding=embedding, scoring=ALL_PASS | {"rerank": rotated}),
        agent_document("keyless", embedding=embedding, scoring=ALL_PASS | {"rerank": missing}),
        zoned_document("zoned", scoring=ALL_PASS | {"rerank": rerank}),
    ]
    for document in documents:
        create_collection(qdrant_url, document)
    with (
        running_api(qdrant_url, *documents, secrets=secrets, zone_keys_of=Keys().of) as api,
        httpx.Client(base_url=api.api_url, timeout=20) as client,
    ):
        for document in documents:
            memories: list[dict[str, Any]] = [{"user_id": "ada", "content": content} for content in CONTENTS]
            if "zones" in document["spec"]:
                memories.append({"user_id": "ada", "content": SEALED, "zone": "PERSONAL"})
            path = f"/v1/agents/{document['metadata']['name']}/memories/batch"
            client.post(path, json={"memories": memories}).raise_for_status()
        yield client


def search(client: httpx.Client, agent: str, **options: Any) -> dict[str, Any]:
    body = {"user_id": "ada", "query": "fruit", "explain": True} | options
    answer: dict[str, Any] = client.post(f"/v1/agents/{agent}/search", json=body).raise_for_status().json()
    return answer


def test_results_are_reranked_and_explained(rerank_service: FakeRerankService, reranked: httpx.Client) -> None:
    answer = search(reranked, "remote")

    assert [found["content"] for found in answer["results"]] == sorted(CONTENTS, reverse=True)
    assert [found["explain"]["rerank"] for found in answer["results"]] == [100.0, 99.0, 98.0, 97.0]
    assert sorted(found["explain"]["rank_before"] for found in answer["results"]) == [1, 2, 3, 4]
    assert answer["warnings"] == []
    (body,) = rerank_service.bodies
    assert (body["query"], body["model"], set(body["documents"])) == ("fruit", "m", set(CONTENTS))
    assert rerank_service.keys == ["Bearer key of rerank"]


def test_sealed_text_is_not_sent(rerank_service: FakeRerankService, reranked: httpx.Client) -> None:
    answer = search(reranked, "zoned")

    ranks = {found["content"]: found["explain"]["rerank"] for found in answer["results"]}
    assert ranks == {SEALED: None, "apple": 97.0, "banana": 98.0, "cherry": 99.0, "damson": 100.0}
    assert set(rerank_service.bodies[0]["documents"]) == set(CONTENTS)


def test_failed_service_keeps_the_order_and_warns(rerank_service: FakeRerankService, reranked: httpx.Client) -> None:
    rerank_service.faults = [PlainTextResponse("private", 500) for _ in range(3)]

    answers = [search(reranked, "flaky") for _ in range(5)]

    for answer in answers:
        scores = [found["score"] for found in answer["results"]]
        (warning,) = answer["warnings"]
        assert (len(scores), scores) == (4, sorted(scores, reverse=True))
        assert "answered 500" in warning
        assert warning.endswith("; results are ordered by score")
        assert "private" not in warning
    assert ["not asked now" in answer["warnings"][0] for answer in answers] == [False] * 3 + [True] * 2
    assert len(rerank_service.keys) == 3


def test_refused_key_is_read_again(
    rerank_service: FakeRerankService, reranked: httpx.Client, secrets: dict[tuple[str, str, str], str]
) -> None:
    search(reranked, "rotated")
    secrets["agents", "rotated", "api-key"] = "new key"
    rerank_service.faults = [PlainTextResponse("", 401)]

    answer = search(reranked, "rotated")

    assert answer["warnings"] == []
    assert rerank_service.keys == ["Bearer key of rotated"] * 2 + ["Bearer new key"]


def test_missing_key_keeps_the_order_and_warns(rerank_service: FakeRerankService, reranked: httpx.Client) -> None:
    (warning,) = search(reranked, "keyless")["warnings"]

    assert "missing" in warning
    assert rerank_service.keys == []


def test_agent_shows_the_provider_without_url_and_key(reranked: httpx.Client) -> None:
    assert reranked.get("/v1/agents/remote").json()["rerank"] == {"provider": "http", "model": "m", "candidates": 5}
