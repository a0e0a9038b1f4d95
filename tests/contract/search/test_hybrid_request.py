"""One request scores the union of a dense and a sparse candidate list by both signals."""

import math
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import httpx
import pytest

DIMENSIONS, POINTS, CANDIDATES = 8, 60, 5
SUBJECTS = ["otter", "maple", "violin", "glacier", "lantern", "saffron"]
WORDS = ["quiet", "golden", "harbour", "winter", "letter", "bridge"]
TEXT = {"text": "golden otters", "model": "qdrant/bm25"}
MINE = {"must": [{"key": "user", "match": {"value": "u1"}}]}


def vector_of(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(DIMENSIONS)]


def point(number: int) -> dict[str, Any]:
    text = f"{WORDS[number % 6]} {SUBJECTS[number // 2 % 6]} and {WORDS[number * 5 % 6]}"
    vector = {"": vector_of(number), "bm25": {"text": text, "model": "qdrant/bm25"}}
    return {"id": number, "vector": vector, "payload": {"user": f"u{number % 2}"}}


Query: TypeAlias = Callable[[dict[str, Any]], dict[int, float]]
DENSE: dict[str, Any] = {"query": vector_of(-1)}
SPARSE: dict[str, Any] = {"query": TEXT, "using": "bm25"}


@pytest.fixture(scope="module")
def queries(qdrant_url: str) -> Iterator[Query]:
    """Function that queries a collection with dense and sparse vectors: request body to ordered scores by id."""
    path = f"/collections/hybrid-{uuid.uuid4().hex[:12]}"
    with httpx.Client(base_url=qdrant_url, headers={"accept-encoding": "identity"}) as http:

        def send(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            answer = http.request(method, path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]

        def scores(body: dict[str, Any]) -> dict[int, float]:
            found = send("POST", f"{path}/points/query", body)["points"]
            return {point["id"]: point["score"] for point in found}

        vectors = {"size": DIMENSIONS, "distance": "Cosine"}
        send("PUT", path, {"vectors": vectors, "sparse_vectors": {"bm25": {"modifier": "idf"}}})
        send("PUT", f"{path}/index?wait=true", {"field_name": "user", "field_schema": "keyword"})
        send("PUT", f"{path}/points?wait=true", {"points": [point(number) for number in range(POINTS)]})
        yield scores
        send("DELETE", path)


def union_by_both(filter_: dict[str, Any]) -> dict[str, Any]:
    nearest = [{**query, "limit": CANDIDATES, "filter": filter_} for query in (DENSE, SPARSE)]
    return {
        "prefetch": [{**query, "prefetch": nearest, "limit": 2 * CANDIDATES} for query in (DENSE, SPARSE)],
        "query": {
            "formula": {"sum": ["$score[0]", {"mult": [0.25, "$score[1]"]}]},
            "defaults": {"$score[0]": 0.0, "$score[1]": 0.0},
        },
        "limit": 2 * CANDIDATES,
    }


def first(found: dict[int, float]) -> set[int]:
    return set(list(found)[:CANDIDATES])


def test_union_is_scored_by_both_signals(queries: Query) -> None:
    dense = queries({**DENSE, "limit": POINTS, "filter": MINE})
    sparse = queries({**SPARSE, "limit": POINTS, "filter": MINE})

    both = queries(union_by_both(MINE))

    # Equal sparse scores may be cut anywhere: only scores above the lowest are certainly in the list.
    lowest = sorted(sparse.values(), reverse=True)[CANDIDATES - 1]
    certain = first(dense) | {number for number, score in sparse.items() if score > lowest}
    assert certain <= both.keys() <= first(dense) | {number for number, score in sparse.items() if score >= lowest}
    assert both == pytest.approx({number: dense[number] + 0.25 * sparse.get(number, 0.0) for number in both}, abs=1e-5)
    assert list(both.values()) == sorted(both.values(), reverse=True)
    assert any(number not in sparse for number in both)


def test_filter_applies_to_the_union(queries: Query) -> None:
    assert {number % 2 for number in queries(union_by_both(MINE))} == {1}


def test_idf_ignores_the_filter(queries: Query) -> None:
    everyone, mine = (
        queries({**SPARSE, "limit": POINTS}),
        queries({**SPARSE, "limit": POINTS, "filter": MINE}),
    )

    assert mine == pytest.approx({number: everyone[number] for number in mine})
    assert len(mine) < len(everyone)


def test_bm25_weight_matches_the_formula(queries: Query) -> None:
    """The found texts have two or three of the expected 256 words, each once: tf 1, k 1.2, b 0.75."""
    matching_count = sum("otter" in SUBJECTS[number // 2 % 6] for number in range(POINTS))
    idf = math.log(1 + (POINTS - matching_count + 0.5) / (matching_count + 0.5))
    found = queries({"query": {"text": "otter", "model": "qdrant/bm25"}, "using": "bm25", "limit": POINTS})

    expected = {idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * length / 256)) for length in (2, 3)}
    assert len(found) == matching_count
    assert all(any(score == pytest.approx(value, rel=1e-4) for value in expected) for score in found.values())


@pytest.mark.parametrize(
    "fusion", [{"fusion": "rrf"}, {"rrf": {"k": 60}}, {"rrf": {"k": 2, "weights": [3.0, 1.0]}}], ids=str
)
def test_rrf_matches_the_formula(queries: Query, fusion: dict[str, Any]) -> None:
    dense = list(queries({**DENSE, "limit": CANDIDATES}))
    other = list(queries({"query": 7, "limit": CANDIDATES}))
    k, weights = fusion.get("rrf", {}).get("k", 2), fusion.get("rrf", {}).get("weights", [1.0, 1.0])
    expected: dict[int, float] = {}
    for ranked, weight in zip((dense, other), weights, strict=True):
        for rank, number in enumerate(ranked):
            expected[number] = expected.get(number, 0.0) + 1 / ((rank + 1) / weight + k - 1)

    prefetch = [{**DENSE, "limit": CANDIDATES}, {"query": 7, "limit": CANDIDATES}]
    assert queries({"prefetch": prefetch, "query": fusion}) == pytest.approx(expected, rel=1e-4)
