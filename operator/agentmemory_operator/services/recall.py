"""Search: one engine request that finds candidates, scores them by the object's ranking and returns the best."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.domain.records import MemoryRecord
from agentmemory_operator.domain.scoring import Terms
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.directory import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to look for. Exactly one of `query` and `vector`.

    Attributes:
        top_k: 1..10,000; None is the object's `limit`.
        threshold: on the combined score; None is the object's `scoreThreshold`.
        tags: a memory must carry all of them.
        explain: also return the terms of each score, at the price of a second engine request.
    """

    user_id: str
    query: str | None = None
    vector: Sequence[float] | None = None
    top_k: int | None = None
    threshold: float | None = None
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    session_id: str | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One result.

    Attributes:
        terms: only with `explain`.
        rank_before: place by similarity alone among the candidates, from 1; only with `explain`.
    """

    record: MemoryRecord
    score: float
    terms: Terms | None = None
    rank_before: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """How far the engine looked; only with `explain`.

    Attributes:
        scored: memories that the engine scored.
        eligible: memories that the filters let through.
        is_exact: every eligible memory was scored, so the answer is the true best.
    """

    scored: int
    eligible: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """Results, best first, and how they came about.

    Attributes:
        generation: of the object whose ranking was used.
        total_candidates: memories that competed: those the filters let through, at most as many as the engine scores.
        removed_by_threshold: results that the answer would hold besides, were there no threshold.
        took_ms: embedding and engine together.
    """

    results: tuple[Found, ...]
    generation: int
    total_candidates: int
    removed_by_threshold: int
    took_ms: float
    candidates: Candidates | None = None


class Recall:
    """Answers searches; notes what was returned in the access counts."""

    def __init__(self, clock: Clock, access_counts: AccessCounts) -> None:
        self._clock = clock
        self._access_counts = access_counts

    async def search(self, agent: Agent, request: SearchRequest) -> SearchAnswer:
        """Return the memories that rank best.

        Raises:
            RequestInvalid: the vector does not fit, a query without embedder, an unknown type.
            StoreUnavailable, EmbedderUnavailable: try again.
        """
        raise NotImplementedError
