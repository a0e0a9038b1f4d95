"""Keyword search over HTTP."""

from typing import Any

import httpx
import pytest


def store_all(client: httpx.Client, user: str, *contents: str) -> None:
    memories = [{"user_id": user, "content": content, "session_id": "s"} for content in contents]
    client.post("/v1/agents/keywords/memories/batch", json={"memories": memories}).raise_for_status()


def search(client: httpx.Client, agent: str = "keywords", **query: Any) -> httpx.Response:
    return client.post(f"/v1/agents/{agent}/search", json=query)


def test_neighbouring_memories_match_by_context(client: httpx.Client, user: str) -> None:
    """A memory's keyword text includes the memories before it."""

    store_all(
        client, user, "Where did you buy that lamp?", "On the flea market.", "It rains again.", "Time for supper."
    )

    results = search(client, user_id=user, query="lamps", explain=True).json()["results"]

    assert {found["content"] for found in results[:3]} == {
        "Where did you buy that lamp?",
        "On the flea market.",
        "It rains again.",
    }
    explained = results[0]["explain"]
    assert 0 < explained["keyword"] < 1
    assert explained["fused"] == pytest.approx(explained["keyword"])
    weighted = sum(explained["weights"][name] * explained[term] for name, term in TERMS.items())
    assert explained["boost"] * weighted == pytest.approx(results[0]["score"], abs=1e-5)


TERMS = {"similarity": "fused", "recency": "recency", "utility": "utility"}


def test_agent_shows_keyword_settings(client: httpx.Client) -> None:
    settings = [client.get(f"/v1/agents/{agent}").json()["keyword"] for agent in ("keywords", "words")]

    assert settings == [{"language": "english", "method": "Score", "keyword_weight": 1.0, "k": 60}, None]
