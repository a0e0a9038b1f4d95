"""Searches over each kind of quantized vectors on a real engine."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.search.rules.candidates import plan_candidates
from agentmemory_operator.spec.effective.settings import effective_ranking
from tests.support.spec.plans import desired_of, probe

POINTS, DIMENSIONS, LIMIT = 800, 32, 20
METHODS = ["Scalar", "Product", "Binary", "Turbo"]


def unit(seed: int) -> list[float]:
    rng = random.Random(seed)
    vector = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector]


VECTORS = {number: unit(number) for number in range(POINTS)}
QUERY = unit(-1)
SIMILARITIES = {number: sum(a * b for a, b in zip(vector, QUERY, strict=True)) for number, vector in VECTORS.items()}


def spec_of(candidates: int = LIMIT, **quantization: Any) -> dict[str, Any]:
    return {
        "embedding": {"provider": "none", "dimensions": DIMENSIONS},
        "index": {
            "quantization": quantization,
            "optimizers": {"indexingThresholdKB": 10},
            "hnsw": {"fullScanThresholdKB": 10},
        },
        "scoring": {"candidates": candidates, "minSimilarity": -1},
    }


@pytest.fixture(scope="module", params=METHODS)
def compressed(request: pytest.FixtureRequest, qdrant_url: str) -> Iterator[tuple[str, str, str]]:
    """An indexed collection: quantization method, URL and name."""
    alias = f"agent_memory_q-{uuid.uuid4().hex[:12]}"
    physical = asyncio.run(fill(qdrant_url, alias, request.param))
    yield request.param, qdrant_url, alias
    httpx.delete(f"{qdrant_url}/collections/{physical}", timeout=30).raise_for_status()


async def fill(qdrant_url: str, alias: str, method: str) -> str:
    """Create a collection with points, and wait until it is indexed; return its name."""
    store = QdrantCollections(qdrant_url)
    desired = desired_of(spec_of(type=method))
    done = await reconcile(alias, desired, store=store, last_physical=None, last_points=0)
    points = [{"id": number, "vector": vector, "payload": {}} for number, vector in VECTORS.items()]
    async with httpx.AsyncClient(base_url=qdrant_url, timeout=60) as http:
        (await http.put(f"/collections/{alias}/points?wait=true", json={"points": points})).raise_for_status()
    async with asyncio.timeout(60):
        while (observed := await store.observe(alias, done.observed.physical)) and (
            observed.is_busy or not observed.indexed
        ):
            await asyncio.sleep(0.1)
    await store.close()
    return done.observed.physical


async def scores(url: str, alias: str, spec: dict[str, Any]) -> dict[int, float]:
    """Return the scores of the candidates of one search over all points, by id."""
    plan = plan_candidates(effective_ranking(probe(spec)), {}, eligible=POINTS, top_k=10, now_ms=0)
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        answer = await http.post(f"/collections/{alias}/points/query", json=plan.query(QUERY, distance="Cosine"))
    answer.raise_for_status()
    return {point["id"]: point["score"] for point in answer.json()["result"]["points"]}


async def test_candidates_have_full_precision_similarity(compressed: tuple[str, str, str]) -> None:
    method, url, alias = compressed

    found = await scores(url, alias, spec_of(type=method))

    assert len(found) == LIMIT
    assert found == pytest.approx({number: SIMILARITIES[number] for number in found}, abs=1e-5)


@pytest.mark.parametrize("compressed", ["Turbo"], indirect=True)
async def test_rescore_off_uses_quantized_similarity(compressed: tuple[str, str, str]) -> None:
    method, url, alias = compressed

    found = await scores(url, alias, spec_of(type=method, rescore=False))

    assert len(found) == LIMIT
    assert max(abs(found[number] - SIMILARITIES[number]) for number in found) > 1e-5


@pytest.mark.parametrize("compressed", ["Binary"], indirect=True)
async def test_oversampling_finds_all_nearest(compressed: tuple[str, str, str]) -> None:
    """With one bit per number, 3 to 5 of the nearest are among the first 20 and 15 to 18 among the first 320."""
    method, url, alias = compressed
    nearest = set(sorted(SIMILARITIES, key=SIMILARITIES.__getitem__)[-LIMIT:])

    without_oversampling = await scores(url, alias, spec_of(type=method, oversampling=1))
    with_oversampling = await scores(url, alias, spec_of(2 * LIMIT, type=method, oversampling=16))

    assert len(nearest & without_oversampling.keys()) < LIMIT
    # 640 of 800 are rescored. The last of the nearest agrees with the query in 15 of 32 bits, as do 569 points.
    assert nearest <= with_oversampling.keys()
