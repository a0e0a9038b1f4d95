"""The estimate against the files of real segments."""

import asyncio
import pathlib
import random
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.devserver import create_app
from agentmemory_operator.domain.estimate import estimate, layout_of
from agentmemory_operator.services.reconcile import reconcile
from tests.support.http_server import serve
from tests.support.plans import ALIAS, desired_of

MEMORIES, DIMENSIONS = 6_000, 64
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


@pytest.mark.parametrize(
    "quantization", [{"type": "None"}, {"type": "Scalar"}, {"type": "Turbo"}], ids=lambda spec: spec["type"]
)
async def test_the_files_of_a_collection_are_within_a_quarter_of_the_estimate(
    tmp_path: pathlib.Path, quantization: dict[str, Any]
) -> None:
    index = {"quantization": quantization, "optimizers": {"indexingThresholdKB": 100}}
    desired = desired_of({"embedding": {"provider": "none", "dimensions": DIMENSIONS}, "index": index})
    with serve(create_app(tmp_path)) as url:
        store = QdrantCollections(url)
        done = await reconcile(ALIAS, desired, store=store, last_physical=None, last_points=0)
        await _fill(url)
        await _indexed(store, done.observed.physical)
        await store.close()

    assert size_on_disk(tmp_path) == pytest.approx(estimate(layout_of(desired), MEMORIES).disk, rel=0.25)


async def _fill(url: str) -> None:
    rng = random.Random(7)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for start in range(0, MEMORIES, 500):
            points = [memory(number, rng) for number in range(start, start + 500)]
            answer = await http.put(f"/collections/{ALIAS}/points?wait=true", json={"points": points})
            answer.raise_for_status()


async def _indexed(store: QdrantCollections, physical: str) -> None:
    async with asyncio.timeout(90):
        while True:
            observed = await store.observe(ALIAS, physical)
            if observed and not observed.is_busy and observed.indexed >= MEMORIES * 0.9:
                return
            await asyncio.sleep(0.2)
