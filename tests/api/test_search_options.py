"""Options of responses (terms, weights, fields, compact format), and sources of memories."""

import json
from typing import Any

import httpx
import pytest

MEMORIES, SEARCH = "/v1/agents/probe/memories", "/v1/agents/probe/search"
VECTOR = [0.5] * 8


def store(client: httpx.Client, user: str, **memory: Any) -> dict[str, Any]:
    answer = client.post(MEMORIES, json={"user_id": user, "content": "c", "vector": VECTOR} | memory)
    assert answer.status_code == 201, answer.text
    stored: dict[str, Any] = answer.json()
    return stored


def search(client: httpx.Client, user: str, **options: Any) -> dict[str, Any]:
    answer = client.post(SEARCH, json={"user_id": user, "vector": VECTOR} | options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_terms_are_added_to_results(client: httpx.Client, user: str) -> None:
    store(client, user, content="what was asked")

    [found] = search(client, user, terms=True)["results"]

    assert found.keys() >= {"score", "similarity", "recency", "utility"}
    assert "explain" not in found
    assert "similarity" not in search(client, user)["results"][0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"similarity": 0.5, "recency": 0.5, "utility": 0.1}, "must add up to 1"),
        ({"similarity": 1, "recency": 0}, "required"),
        ({"similarity": 1.5, "recency": -0.5, "utility": 0}, "less than or equal to 1"),
    ],
)
def test_weights_must_be_valid(client: httpx.Client, user: str, weights: dict[str, float], message: str) -> None:
    answer = client.post(SEARCH, json={"user_id": user, "vector": VECTOR, "weights": weights})

    assert answer.status_code == 422
    assert message in answer.text
    assert "weights" in answer.json()["errors"][0]["field"]


def test_response_has_only_requested_fields(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user, content="what was asked", metadata={"n": 0.123456, "none": None})["id"]
    options = {"fields": ["id", "content"]}

    [found] = search(client, user, **options)["results"]
    listed = client.get(MEMORIES, params=[("user_id", user), ("fields", "id"), ("fields", "content")]).json()
    got = client.get(f"{MEMORIES}/{memory_id}", params={"user_id": user, "fields": "id"}).json()

    assert found.keys() == {"id", "content", "score"}
    assert listed["results"] == [{"id": memory_id, "content": "what was asked"}]
    assert got == {"id": memory_id}


def test_unknown_field_suggests_the_nearest(client: httpx.Client, user: str) -> None:
    answer = client.get(MEMORIES, params={"user_id": user, "fields": "importence"})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "memories have no field 'importence': did you mean importance?"


def test_compact_drops_nulls_and_rounds(client: httpx.Client, user: str) -> None:
    """The caller's metadata is returned unchanged."""

    memory_id = store(
        client, user, content="what was asked", importance=0.123456, metadata={"n": 0.123456, "none": None}
    )["id"]
    form = {"user_id": user, "format": "compact"}

    [found] = search(client, user, format="compact", terms=True)["results"]
    [listed] = client.get(MEMORIES, params=form).json()["results"]
    got = client.get(f"{MEMORIES}/{memory_id}", params=form).json()

    for memory in (found, listed, got):
        assert None not in memory.values()
        assert memory["importance"] == 0.1235
        assert memory["metadata"] == {"n": 0.123456, "none": None}
    assert found["score"] == round(found["score"], 4)


@pytest.mark.parametrize("source", ["conversation", "tool_result", "reflection", "distillation", "x-crm"])
def test_known_or_custom_source_is_accepted(client: httpx.Client, user: str, source: str) -> None:
    store(client, user, source=source)

    assert search(client, user)["results"][0]["source"] == source


@pytest.mark.parametrize("source", ["banana", "x-", "x-a b", "Conversation"])
def test_unknown_source_is_refused(client: httpx.Client, user: str, source: str) -> None:
    answer = client.post(MEMORIES, json={"user_id": user, "content": "c", "source": source})

    assert answer.status_code == 422
    assert "x- and a name of your own" in answer.json()["errors"][0]["message"]


def test_legacy_source_is_imported_and_read(client: httpx.Client, user: str) -> None:
    line = {"content": "told long ago", "source": "a wiki page", "vector": VECTOR}
    answer = client.post(
        f"{MEMORIES.removesuffix('/memories')}/import",
        params={"user_id": user},
        content=json.dumps(line),
        headers={"content-type": "application/x-ndjson"},
    )

    assert answer.json()["counts"]["imported"] == 1, answer.text
    [memory] = client.get(MEMORIES, params={"user_id": user}).json()["results"]
    assert memory["source"] == "a wiki page"
