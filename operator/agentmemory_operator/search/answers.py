"""Answer of a search: its results with their terms, and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.ports.base import Json
from agentmemory_operator.search.results import Neighbours
from agentmemory_operator.search.rules.hybrid import Match
from agentmemory_operator.search.rules.score import ScoreTerms
from agentmemory_operator.search.rules.time_spans import TimeSpan
from agentmemory_operator.spec.effective.settings import Ranking


class SearchHit(NamedTuple):
    """Result of a search: a memory with its score.

    Attributes:
        terms: Terms of the score; None unless `explain` or `terms` was requested.
        match: Match of the memory and the query; None if `terms` is None. Without keywords, only the similarity.
        rank_before: Rank by similarity among the candidates, from 1; None unless their matches were read.
        rerank: Score of the cross-encoder; None if it did not read this result.
    """

    record: MemoryRecord
    score: float
    terms: ScoreTerms | None = None
    match: Match | None = None
    rank_before: int | None = None
    rerank: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCounts:
    """Candidates of a search; only with `explain`.

    Attributes:
        scored: Number of candidates that Qdrant scored. They have the minimum similarity, or were found by words or
            names.
        below_threshold: Number of candidates, found by full scans if allowed, that only the threshold removes.
        eligible: Number of memories that the filters select.
        is_exact: True if it is proven that no other eligible memory belongs in the results. False if nothing can be
            proven, for example because the strict mode forbids full scans.
    """

    scored: int
    below_threshold: int
    eligible: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """Results, best first, with the figures of the search.

    Attributes:
        generation: Generation of the object whose ranking was used.
        ranking: Ranking that was used, including `weights`, `min_similarity` and `min_priority` of the request.
        has_terms: True if similarity, recency and utility were requested.
        total_candidates: Number of memories that competed: those the filters select, limited to those Qdrant
            scores. May lag 10 s behind writes of other processes.
        removed_by_threshold: Number of results, within `top_k`, that the thresholds on score and similarity removed.
        threshold: Minimum score; minus infinity if there is none.
        duration_ms: Duration of embedding, requests to Qdrant and reranking, without reading neighbours.
        candidates: Figures of the candidates; None without `explain`.
        time_spans: Times that the query names, also where `date` does not count; empty for an agent without keywords
            or a search without a query; None without `explain`.
        neighbours: Neighbours of results; None unless requested.
        left_out: Points that the cap of their sessions left out before `top_k` was reached; None without `explain`.
        warnings: Reasons why this search is expensive, with the remedy, was not reranked, or has few results.
    """

    results: tuple[SearchHit, ...]
    generation: int
    ranking: Ranking
    has_terms: bool
    total_candidates: int
    removed_by_threshold: int
    threshold: float
    duration_ms: float
    candidates: CandidateCounts | None = None
    time_spans: tuple[TimeSpan, ...] | None = None
    neighbours: Neighbours | None = None
    left_out: Sequence[Json] | None = None
    warnings: tuple[str, ...] = ()
