"""Size estimates compared with the files of real segments."""

import asyncio
import pathlib
import random
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.collections.rules.estimate import DISTINCT_KEYWORDS, estimate, layout_of
from qdrant_devserver.server import create_app
from tests.support.spec.plans import ALIAS, desired_of
from tests.support.web.http_server import serve

MEMORIES, DIMENSIONS = 3_000, 64
WORDS = [f"word{number}" for number in range(2_000)]


def memory(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a point with a content of about 200 characters."""
    identifier = f"00000000-0000-0000-0000-{number:012d}"
    payload = {
        "id": identifier,
        "userId": f"user-{rng.randrange(100)}",
        "content": " ".join(rng.choices(WORDS, k=24)),
        "type": rng.choice(["fact", "task", "episodic"]),
        "tags": ["a"],
        "importance": rng.random(),
        "accessCount": rng.randrange(5),
        "createdAt": 1_795_000_000_000 - rng.randrange(10**10),
        "updatedAt": 1_795_000_000_000,
        "rev": 1,
    }
    return {"id": identifier, "vector": [rng.gauss(0, 1) for _ in range(DIMENSIONS)], "payload": payload}


def size_on_disk(folder: pathlib.Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


KINDS: dict[str, dict[str, Any]] = {
    "None": {"quantization": {"type": "None"}},
    "Scalar": {"quantization": {"type": "Scalar"}},
    "Turbo": {"quantization": {"type": "Turbo"}},
    "keywords": {"quantization": {"type": "None"}, "keyword": {"enabled": True}},
}


@pytest.mark.parametrize(
    "kind", ["Scalar", "keywords", *(pytest.param(kind, marks=pytest.mark.faults) for kind in ("None", "Turbo"))]
)
async def test_files_are_within_25_percent_of_estimate(on_disk: pathlib.Path, kind: str) -> None:
    index = KINDS[kind] | {"optimizers": {"indexingThresholdKB": 100}}
    desired = desired_of({"embedding": {"provider": "none", "dimensions": DIMENSIONS}, "index": index})
    with serve(create_app(on_disk)) as url:
        store = QdrantCollections(url)
        outcome = await reconcile(ALIAS, desired, store=store, last_physical=None, last_points=0)
        await _fill(url, has_keyword=desired.has_keyword)
        await _wait_until_indexed(store, outcome.observed.physical, kinds=2 if desired.has_keyword else 1)
        await store.close()

    assert size_on_disk(on_disk) == pytest.approx(estimate(layout_of(desired), MEMORIES).disk, rel=0.25)


def keywords_of(rng: random.Random) -> dict[str, Any]:
    """Return a keyword vector with common and rare words."""
    words: set[int] = set()
    while len(words) < DISTINCT_KEYWORDS:
        words.add(int(20_000 ** rng.random()))
    return {"indices": sorted(words), "values": [1.0] * DISTINCT_KEYWORDS}


async def _fill(url: str, *, has_keyword: bool) -> None:
    rng = random.Random(7)
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        for start in range(0, MEMORIES, 500):
            points = [memory(number, rng) for number in range(start, start + 500)]
            for point in points if has_keyword else ():
                point["vector"] = {"": point["vector"], KEYWORD_VECTOR: keywords_of(rng)}
            answer = await http.put(f"/collections/{ALIAS}/points?wait=true", json={"points": points})
            answer.raise_for_status()


async def _wait_until_indexed(store: QdrantCollections, physical: str, *, kinds: int) -> None:
    async with asyncio.timeout(500):
        while True:
            observed = await store.observe(ALIAS, physical)
            if observed and not observed.is_busy and observed.indexed >= MEMORIES * (kinds - 0.1):
                return
            await asyncio.sleep(0.2)
