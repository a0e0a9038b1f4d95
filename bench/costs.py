"""`python -m bench.candidates --engine`: latency of searches by a candidate plan on an engine."""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates, similarity_formula
from agentmemory_operator.search.rules.score import score_query
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import (
    ACCESS_COUNT,
    AGE_DAYS,
    CONFIDENCE,
    DAY_MS,
    IDLE_DAYS,
    IMPORTANCE,
)
from bench.clients import Client
from bench.datasets import Dataset, Floats
from bench.measures import LOAD_BATCH, TOP_K, latency_of
from bench.progress import log_progress
from bench.stacks import Stack, running

Json = dict[str, Any]
Numbers = Mapping[str, NDArray[np.float64]]

SLUG = "bench-costs"


@dataclass(frozen=True, slots=True)
class Cost:
    """Median latencies in milliseconds.

    Attributes:
        plan: Of a search as the product sends it.
        nearest: Of a search with as many candidates in a single list of the nearest.
    """

    plan: float
    nearest: float


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with users of different sizes: user N owns the first N memories."""

    stack: Stack
    data: Dataset
    sizes: Sequence[int]
    now_ms: int

    def load(self, numbers: Numbers) -> None:
        """Write every memory, with the payload that its score depends on."""
        log_progress(f"loading {len(self.data):,} memories")
        path = f"/collections/{self.data.alias}/points?wait=true"
        with Client(self.stack.qdrant_url) as qdrant:
            for start in range(0, len(self.data), LOAD_BATCH):
                points = self.data.points(start, start + LOAD_BATCH)
                for row, point in enumerate(points, start):
                    point["payload"] |= self._payload(numbers, row)
                qdrant.call("PUT", path, {"points": points})
        self.stack.wait_indexed(self.data.alias)

    def cost(self, ranking: Ranking, size: int, questions: Sequence[Floats]) -> Cost:
        """Return the latencies of the questions of the user with `size` memories, by both plans in turn."""
        filter_ = visible_filter(Selection(user_id=_user(size)), self.now_ms, ranking.types)
        plan = plan_candidates(ranking, filter_, eligible=size, top_k=TOP_K, now_ms=self.now_ms)
        plans = plan, replace(plan, filters=plan.filters[:1], classes=plan.classes[:1], limit=plan.total)
        took: tuple[list[float], list[float]] = [], []
        with Client(self.stack.qdrant_url) as qdrant:
            for question in questions:
                for current_plan, durations in zip(plans, took, strict=True):
                    durations.append(qdrant.timed(self._request(qdrant, ranking, current_plan, question))[1])
        return Cost(*(latency_of(latencies).p50 for latencies in took))

    def _request(self, qdrant: Client, ranking: Ranking, plan: CandidatePlan, question: Floats) -> bytes:
        body = {
            "prefetch": plan.query(question, distance="Cosine"),  # type: ignore[arg-type] # orjson takes the array
            "query": score_query(
                ranking, now_ms=self.now_ms, distance="Cosine", similarity=similarity_formula("Cosine")
            ),
            "limit": TOP_K,
            "with_payload": True,
        }
        return qdrant.prepare("POST", f"/collections/{self.data.alias}/points/query", body)

    def _payload(self, numbers: Numbers, row: int) -> Json:
        idle_ms = int(numbers[IDLE_DAYS][row] * DAY_MS)
        return {
            "userId": [_user(size) for size in self.sizes if row < size],
            "createdAt": self.now_ms - int(numbers[AGE_DAYS][row] * DAY_MS),
            "lastAccessedAt": self.now_ms - idle_ms,
            "importance": float(numbers[IMPORTANCE][row]),
            "accessCount": int(numbers[ACCESS_COUNT][row]),
            "confidence": float(numbers[CONFIDENCE][row]),
        }


@contextlib.contextmanager
def engine_for(data: Dataset, sizes: Sequence[int], qdrant_url: str | None) -> Iterator[Engine]:
    """Run an engine while the context is open. None of its memories is expired or superseded."""
    data = replace(data, slug=SLUG).all_visible()
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-costs-") as folder,
        running(Path(folder), [SLUG], qdrant_url) as stack,
    ):
        stack.wait_ready(SLUG)
        yield Engine(stack, data, sizes, time.time_ns() // 1_000_000)


def _user(size: int) -> str:
    return f"first-{size}"
