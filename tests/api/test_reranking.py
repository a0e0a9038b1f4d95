"""Reranking by a cross-encoder over HTTP: a real model of a few bytes, for which blue outweighs two reds."""

import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.engine.tiny_model import CROSS_ENCODER, write_cross_encoder
from tests.support.spec.documents import ALL_PASS, agent_document
from tests.support.web.api_stack import create_collection, running_api

pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")

EMBEDDING = {"provider": "wordllama", "dimensions": 64}
READ = agent_document(
    "reread", embedding=EMBEDDING, scoring=ALL_PASS | {"rerank": {"model": CROSS_ENCODER, "candidates": 3}}
)
UNREAD = agent_document("unread", embedding=EMBEDDING, scoring=ALL_PASS | {"rerank": {"model": "my/own"}})


@pytest.fixture(scope="module")
def reranking(qdrant_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Agents `reread`, and `unread` with a model that does not exist."""
    models: pathlib.Path = write_cross_encoder(tmp_path_factory.mktemp("models"))
    for document in (READ, UNREAD):
        create_collection(qdrant_url, document)
    with (
        running_api(qdrant_url, READ, UNREAD, models=models) as running,
        httpx.Client(base_url=running.api_url, timeout=20) as client,
    ):
        for agent in ("reread", "unread"):
            memories = [{"user_id": "ada", "content": content} for content in ("red", "red red", "blue", "sky")]
            client.post(f"/v1/agents/{agent}/memories/batch", json={"memories": memories}).raise_for_status()
        yield client


def search(client: httpx.Client, agent: str, **options: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/agents/{agent}/search", json={"user_id": "ada", "query": "red"} | options)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def test_first_results_are_reranked_and_explained(reranking: httpx.Client) -> None:
    answer = search(reranking, "reread", explain=True)

    explained = [found["explain"] for found in answer["results"]]
    numbers = [terms["rerank"] for terms in explained]
    assert numbers[:3] == sorted(numbers[:3], reverse=True)
    assert numbers[3] is None
    assert {terms["rank_before"] for terms in explained} == {1, 2, 3, 4}
    assert answer["warnings"] == []
    assert min(found["score"] for found in answer["results"][:3]) >= answer["results"][3]["score"]


def test_missing_model_keeps_order_and_warns(reranking: httpx.Client) -> None:
    answer = search(reranking, "unread", explain=True)

    scores = [found["score"] for found in answer["results"]]
    assert (len(scores), scores) == (4, sorted(scores, reverse=True))
    (warning,) = answer["warnings"]
    assert warning.startswith("spec.scoring.rerank.model: ")
    assert "'my/own'" in warning
    assert [found["explain"]["rerank"] for found in answer["results"]] == [None] * 4


def test_agent_shows_its_reranker(reranking: httpx.Client, client: httpx.Client) -> None:
    rerankers = [reranking.get(f"/v1/agents/{agent}").json()["rerank"] for agent in ("reread", "unread")]

    provider = {"provider": "fastembed"}
    assert rerankers == [
        provider | {"model": CROSS_ENCODER, "candidates": 3},
        provider | {"model": "my/own", "candidates": 30},
    ]
    assert client.get("/v1/agents/words").json()["rerank"] is None
