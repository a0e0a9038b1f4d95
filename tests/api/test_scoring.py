"""Scoring models over HTTP: the terms of `explain` yield the score, and the agent shows the model in use."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.spec.documents import ALL_PASS, agent_document
from tests.support.web.api_stack import create_collection, running_api

TYPES = [
    {"name": "fact", "halfLifeDays": 365},
    {"name": "rule", "decay": False, "boost": 1.5},
    {"name": "semantic", "halfLifeDays": 90},
]
TEXT = "0.6*similarity + 0.3*decay(ageDays, halfLifeDays) - (idleDays + decayRate)/1e6 + 0.1*tag('x')"
SCORING: dict[str, dict[str, Any]] = {
    "weighted": {"weights": {"similarity": 0.5, "recency": 0.4, "utility": 0.1}, "utilityNorm": 2},
    "doubted": {"weights": {"similarity": 0.5, "recency": 0.4, "utility": 0.1}, "confidenceShare": 0.6},
    "confidence": {"model": "Confidence", "confidence": {"maxBoost": 3}},
    "priority": {"model": "Priority", "priority": {"minPriority": 0.2}, "horizons": {"hourly": 0.2, "yearly": 0}},
    "importance": {"model": "Importance"},
    "expression": {"model": "Expression", "expression": TEXT},
}
REJECTED = {"model": "Expression", "expression": "0.6*similarty"}
ACCEPTED = {
    "scoring": {"generation": 2},
    "effective": {"scoring": {"model": "Expression", "expression": "2 * similarity", "limit": 1}},
}


MEMORIES = [
    {"content": "new", "vector": [1.0] * 8, "importance": 0.9, "confidence": 0.7, "decay_rate": 0.3},
    {"content": "old", "vector": [1.0] * 7 + [0.2], "created_at": "2025-01-01T00:00:00Z", "tags": ["x"]},
    {"content": "kept", "vector": [1.0] * 6 + [0.0] * 2, "type": "rule", "created_at": "2026-01-01T00:00:00Z"},
    {"content": "known", "vector": [1.0] * 5 + [0.0] * 3, "type": "semantic", "created_at": "2024-01-01T00:00:00Z"},
]


@pytest.fixture(scope="module")
def client(qdrant_url: str) -> Iterator[httpx.Client]:
    """An API with an agent per model, and one with a rejected expression, all with the same memories."""
    documents = [agent_document(f"by-{name}", types=TYPES, scoring=ALL_PASS | SCORING[name]) for name in SCORING]
    documents.append(agent_document("by-rejected", types=TYPES, scoring=ALL_PASS | REJECTED) | {"status": ACCEPTED})
    for document in documents:
        create_collection(qdrant_url, document)
    with running_api(qdrant_url, *documents) as stack, httpx.Client(base_url=stack.api_url, timeout=20) as client:
        batch = {"memories": [memory | {"user_id": "u"} for memory in MEMORIES]}
        for document in documents:
            stored = client.post(f"/v1/agents/{document['metadata']['name']}/memories/batch", json=batch)
            assert not [result for result in stored.json()["results"] if "error" in result], stored.text
        yield client


def explained(client: httpx.Client, agent: str) -> list[dict[str, Any]]:
    body = {"user_id": "u", "vector": [1.0] * 8, "explain": True}
    answer = client.post(f"/v1/agents/{agent}/search", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def product_of(explain: dict[str, Any]) -> float:
    """Return the score of the terms by the formula in docs/scoring.md."""
    terms, similarity, boost = explain["terms"], explain["similarity"], explain["boost"]
    match explain["model"]:
        case "Weighted":
            named = ("similarity", "recency", "utility")
            factor = 1.0 if explain["confidence_factor"] is None else explain["confidence_factor"]
            return float(boost * factor * sum(explain["weights"][name] * explain[name] for name in named))
        case "Confidence":
            return float(boost * similarity * terms["effective_confidence"] * terms["access_boost"])
        case "Priority":
            return float(boost * terms["horizon"] * (0.5 * similarity + 0.5 * terms["priority"]))
        case "Importance":
            return float(boost * similarity * terms["relevance"])
    return float(boost * sum(terms.values()))


@pytest.mark.parametrize("name", SCORING)
def test_explained_terms_yield_the_score(client: httpx.Client, name: str) -> None:
    found = explained(client, f"by-{name}")

    assert len(found) == (2 if name == "priority" else 4)
    for memory in found:
        explain = memory["explain"]
        assert memory["score"] == pytest.approx(product_of(explain), abs=1e-5)
        assert memory["score"] == pytest.approx(explain["score"], abs=1e-5)
        assert explain["model"] == SCORING[name].get("model", "Weighted")


def test_low_confidence_lowers_the_score_if_configured(client: httpx.Client) -> None:
    factors = {memory["content"]: memory["explain"]["confidence_factor"] for memory in explained(client, "by-doubted")}

    assert factors["new"] == pytest.approx(0.4 + 0.6 * 0.7)
    assert factors["old"] == 1.0


def test_explain_shows_variables_and_summands(client: httpx.Client) -> None:
    explain = explained(client, "by-expression")[0]["explain"]

    assert list(explain["terms"]) == [
        "0.6*similarity",
        "0.3*decay(ageDays, halfLifeDays)",
        "- (idleDays + decayRate)/1e6",
        "0.1*tag('x')",
    ]
    assert set(explain["variables"]) == {"similarity", "ageDays", "idleDays", "decayRate"}


def test_agent_shows_the_model_in_use(client: httpx.Client) -> None:
    shown = {name: client.get(f"/v1/agents/by-{name}").json() for name in SCORING}

    models = {name: scoring.get("model", "Weighted") for name, scoring in SCORING.items()}
    assert {name: each["model"] for name, each in shown.items()} == models
    assert (shown["weighted"]["confidence_share"], shown["doubted"]["confidence_share"]) == (None, 0.6)
    assert shown["weighted"]["weights"] == SCORING["weighted"]["weights"]
    assert shown["expression"]["expression"] == TEXT
    assert shown["expression"]["weights"] is None
    assert shown["confidence"]["confidence"] == {"daily_factor": 0.98, "access_boost": 0.3, "max_boost": 3}
    assert shown["priority"]["horizons"]["hourly"] == 0.2
    assert shown["importance"]["importance"] == {"daily_rate": 0.01, "idle_factor": 0.1, "unimportant_factor": 1.0}


def test_rejected_expression_keeps_the_accepted_one(client: httpx.Client) -> None:
    shown = client.get("/v1/agents/by-rejected").json()
    found = client.post("/v1/agents/by-rejected/search", json={"user_id": "u", "vector": [1.0] * 8})

    assert shown["expression"] == "2 * similarity"
    assert shown["scoring_fault"].startswith('character 5: "similarty" is not a variable')
    assert shown["generation"] == found.json()["generation"] == 2
    assert found.headers["x-agentmemory-generation"] == "2"
