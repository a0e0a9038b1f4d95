"""Searches over every kind of compressed copies, on the real engine, with the parameters that go with each."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.search.rules.candidates import plan_candidates
from agentmemory_operator.spec.effective.settings import effective_ranking
from tests.support.spec.plans import desired_of, probe

POINTS, DIMENSIONS, WANTED = 800, 32, 20
METHODS = ["Scalar", "Product", "Binary", "Turbo"]


def unit(seed: int) -> list[float]:
    rng = random.Random(seed)
    vector = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector]


VECTORS = {number: unit(number) for number in range(POINTS)}
QUERY = unit(-1)
TRUE = {number: sum(a * b for a, b in zip(vector, QUERY, strict=True)) for number, vector in VECTORS.items()}


def spec_of(candidates: int = WANTED, **quantization: Any) -> dict[str, Any]:
    return {
        "embedding": {"provider": "none", "dimensions": DIMENSIONS},
        "index": {
            "quantization": quantization,
            "optimizers": {"indexingThresholdKB": 10},
            "hnsw": {"fullScanThresholdKB": 10},
        },
        "scoring": {"candidates": candidates, "minSimilarity": -1},
    }


@pytest.fixture(params=METHODS)
async def compressed(request: pytest.FixtureRequest, qdrant_url: str) -> AsyncIterator[tuple[str, str, str]]:
    """An indexed collection: its method, its URL and its name."""
    alias, store = f"agent_memory_q-{uuid.uuid4().hex[:12]}", QdrantCollections(qdrant_url)
    desired = desired_of(spec_of(type=request.param))
    done = await reconcile(alias, desired, store=store, last_physical=None, last_points=0)
    points = [{"id": number, "vector": vector, "payload": {}} for number, vector in VECTORS.items()]
    async with httpx.AsyncClient(base_url=qdrant_url, timeout=60) as http:
        (await http.put(f"/collections/{alias}/points?wait=true", json={"points": points})).raise_for_status()
    async with asyncio.timeout(60):
        while (seen := await store.observe(alias, done.observed.physical)) and (seen.is_busy or not seen.indexed):
            await asyncio.sleep(0.1)
    yield request.param, qdrant_url, alias
    await store.delete(done.observed.physical)
    await store.close()


async def scores(url: str, alias: str, spec: dict[str, Any]) -> dict[int, float]:
    """Return the candidates of one search of all points, by id."""
    plan = plan_candidates(effective_ranking(probe(spec)), {}, eligible=POINTS, top_k=10, now_ms=0)
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        answer = await http.post(f"/collections/{alias}/points/query", json=plan.query(QUERY, distance="Cosine"))
    answer.raise_for_status()
    return {point["id"]: point["score"] for point in answer.json()["result"]["points"]}


async def test_candidates_carry_the_similarity_of_the_vectors_themselves(compressed: tuple[str, str, str]) -> None:
    method, url, alias = compressed

    found = await scores(url, alias, spec_of(type=method))

    assert len(found) == WANTED
    assert found == pytest.approx({number: TRUE[number] for number in found}, abs=1e-5)


@pytest.mark.parametrize("compressed", ["Turbo"], indirect=True)
async def test_without_rescoring_they_carry_the_copies_similarity(compressed: tuple[str, str, str]) -> None:
    method, url, alias = compressed

    found = await scores(url, alias, spec_of(type=method, rescore=False))

    assert len(found) == WANTED
    assert max(abs(found[number] - TRUE[number]) for number in found) > 1e-5


@pytest.mark.parametrize("compressed", ["Binary"], indirect=True)
async def test_more_oversampling_loses_none_of_the_nearest(compressed: tuple[str, str, str]) -> None:
    """By one bit a number alone, 3 to 5 of the nearest are among the first 20, 15 to 18 of them among the first 320."""
    method, url, alias = compressed
    nearest = set(sorted(TRUE, key=TRUE.__getitem__)[-WANTED:])

    little = await scores(url, alias, spec_of(type=method, oversampling=1))
    much = await scores(url, alias, spec_of(2 * WANTED, type=method, oversampling=16))

    assert len(nearest & little.keys()) < WANTED
    # 640 of the 800 are rescored: the last of the nearest agrees with the query in 15 of 32 bits, as 569 of all do.
    assert nearest <= much.keys()
