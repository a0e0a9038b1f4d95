"""Results that a cross-encoder reads again, over HTTP: a real one of a few bytes, for which blue is worth two reds."""

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
def reading(qdrant_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Agents `reread`, and `unread`, whose model is not there."""
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


def search(client: httpx.Client, agent: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/agents/{agent}/search", json={"user_id": "ada", "query": "red"} | asked)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def test_the_first_are_in_the_order_of_the_model_and_explained(reading: httpx.Client) -> None:
    answer = search(reading, "reread", explain=True)

    explained = [found["explain"] for found in answer["results"]]
    numbers = [terms["rerank"] for terms in explained]
    assert numbers[:3] == sorted(numbers[:3], reverse=True)
    assert numbers[3] is None
    assert {terms["rank_before"] for terms in explained} == {1, 2, 3, 4}
    assert answer["warnings"] == []
    assert min(found["score"] for found in answer["results"][:3]) >= answer["results"][3]["score"]


def test_a_model_that_is_not_there_leaves_the_order_of_the_scores_and_says_so(reading: httpx.Client) -> None:
    answer = search(reading, "unread", explain=True)

    scores = [found["score"] for found in answer["results"]]
    assert (len(scores), scores) == (4, sorted(scores, reverse=True))
    (warning,) = answer["warnings"]
    assert warning.startswith("spec.scoring.rerank.model: ")
    assert "'my/own'" in warning
    assert [found["explain"]["rerank"] for found in answer["results"]] == [None] * 4


def test_an_agent_says_what_reads_again(reading: httpx.Client, client: httpx.Client) -> None:
    told = [reading.get(f"/v1/agents/{agent}").json()["rerank"] for agent in ("reread", "unread")]

    assert told == [{"model": CROSS_ENCODER, "candidates": 3}, {"model": "my/own", "candidates": 30}]
    assert client.get("/v1/agents/words").json()["rerank"] is None
