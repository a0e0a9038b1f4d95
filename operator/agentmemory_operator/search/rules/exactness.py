"""Proof that no memory outside the candidate lists ranks among the best.

An exact list contains the nearest memories of a class. A memory that it omits is at most as near as the first memory
beyond the list; without such a memory, the list is complete. The thresholds of the classes divide the space of
variables into cells. In each cell, similarity, keyword score and variables are bounded, and therefore the score
(`Expression.bounds`).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.search.rules.candidate_classes import Box, MemoryClass
from agentmemory_operator.search.rules.candidates import CandidatePlan, Query, score_threshold, similarity_of
from agentmemory_operator.search.rules.hybrid import keyword_term, ranks_evidence
from agentmemory_operator.search.rules.query_features import QueryFeatures, add_evidence
from agentmemory_operator.search.rules.score import score_bounds, type_names_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.tree import Ranges
from agentmemory_operator.spec.expression.variables import KEYWORD, RANGES, SIMILARITY, ranges_of
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.spec.presets.table import Fusion

# The bounds hold for the oracle (`compute_score`). Qdrant's scores differ from the oracle's by up to 1e-5, relative
# to the score if that is above 1.
MARGIN = 2e-5
# Qdrant computes in float32, and two searches may sum in different orders.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class ListEnd:
    """End of a list of the nearest memories of a class.

    Attributes:
        similarity: Similarity of the first memory beyond the list; None if the list is complete.
    """

    class_: MemoryClass
    similarity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedMemories:
    """Bounds of the memories that no candidate list contains.

    Attributes:
        ends: End of each list by similarity.
        by_words: Keyword score of the first memory beyond the keyword list; None if that list is complete, or the
            search has no keyword list.
        fusion: None if the search uses no keywords.
        types: Types that the search is restricted to; empty is any.
    """

    ranking: Ranking
    distance: str
    ends: Sequence[ListEnd]
    by_words: float | None = None
    fusion: Fusion | None = None
    types: Sequence[str] = field(default_factory=tuple)

    def may_reach(self, floor: float) -> bool:
        """Return whether an unlisted memory may score above `floor`. False means that none can."""
        return any(
            self._score(ranges) > floor
            for name in (set(self.types) or type_names_of(self.ranking))
            for ranges in self._cells_of(name)
        )

    def _cells_of(self, type_name: str) -> Iterator[Ranges]:
        """Yield the ranges of the variables of unlisted memories of a type, cell by cell."""
        memory_type = {type_.name: type_ for type_ in self.ranking.types}.get(type_name)
        boxed = [(end, box) for end in self.ends if (box := end.class_.box(memory_type)) is not None]
        for cell in _cells([box for _, box in boxed]):
            matches = self._matches([end.similarity for end, box in boxed if _holds(box, cell)])
            if matches is not None:
                numbers = {**ranges_of(self.distance).numbers, **cell, **matches}
                yield Ranges(numbers, frozenset({type_name}))

    def _score(self, ranges: Ranges) -> float:
        # With RRF nothing can be proven: it scores by rank, and the ranks beyond the end of a list are unknown.
        if self.fusion is not None and self.fusion.method == "RRF":
            return math.inf
        return score_bounds(self.ranking, ranges).high

    def _matches(self, ends: Sequence[float | None]) -> Box | None:
        """Return the possible matches of memories omitted by lists with these ends; None if no memory is omitted."""
        range_ = ranges_of(self.distance).numbers[SIMILARITY]
        min_similarity = self.ranking.min_similarity
        lowest = range_.low if min_similarity <= NO_GATE else max(range_.low, min_similarity)
        ceiling = min((_above(end) for end in ends if end is not None), default=range_.high)
        if None in ends:
            # A complete list omits only memories below the minimum similarity, which match by keywords only.
            ceiling = min(ceiling, lowest)
        if self.by_words is None:
            if None in ends or ceiling < lowest:
                return None
            return self._fused(Interval(lowest, ceiling), Interval(0.0, 0.0))
        return self._fused(Interval(min(range_.low, ceiling), ceiling), Interval(0.0, _above(self.by_words)))

    def _fused(self, similarity: Interval, keyword: Interval) -> Box:
        if self.fusion is not None and self.fusion.method == "Score":
            weight = self.fusion.keyword_weight
            similarity = _scaled(similarity, 1 - weight).plus(_scaled(keyword, weight))
        if ranks_evidence(self.fusion):
            similarity = self._with_evidence(similarity)
        return {SIMILARITY: similarity, KEYWORD: keyword}

    def _with_evidence(self, fused: Interval) -> Interval:
        """Return bounds of the match for any evidence, because the evidence of unlisted memories is unknown."""
        weights = self.ranking.evidence
        low, high = (dict.fromkeys(weights.terms, number) for number in (0.0, 1.0))
        return Interval(add_evidence(fused.low, weights, low), add_evidence(fused.high, weights, high))


def build_end_queries(
    plan: CandidatePlan, vector: Sequence[float], *, distance: str, words: Query | None = None
) -> list[Query]:
    """Return the queries for the first memory beyond each list, the keyword list last.

    Args:
        words: As for `hybrid.build_hybrid_queries`; None if the search uses no keywords.
    """
    page: Query = {"limit": 1, "offset": plan.limit, "params": {"exact": True}}
    gate = score_threshold(distance, plan.min_similarity)
    bounds = {} if gate is None else {"score_threshold": gate}
    queries = [{"query": vector, "filter": filter_, **page, **bounds} for filter_ in plan.filters]
    if words is not None:
        params = {**words.get("params", {}), **page["params"]}
        queries.append({**words, "filter": plan.filters[0], **page, "offset": plan.word_limit, "params": params})
    return queries


def read_ends(plan: CandidatePlan, hits: Sequence[Sequence[Mapping[str, float]]], *, distance: str) -> list[ListEnd]:
    """Return the ends of the similarity lists, from Qdrant's response to `build_end_queries`."""
    return [
        ListEnd(class_, similarity_of(distance, points[0]["score"]) if points else None)
        for class_, points in zip(plan.classes, hits, strict=False)
    ]


def read_keyword_end(
    plan: CandidatePlan, hits: Sequence[Sequence[Mapping[str, float]]], features: QueryFeatures | None
) -> float | None:
    """Return the keyword score, 0..1, of the first memory beyond the keyword list.

    None if there is no such memory, no keyword list, or no query features.
    """
    keyword_lists = hits[len(plan.filters) :]
    return (
        keyword_term(keyword_lists[0][0]["score"], features)
        if features and keyword_lists and keyword_lists[0]
        else None
    )


def is_proven_complete(unlisted: UnlistedMemories, scores: Sequence[float], *, top_k: int, threshold: float) -> bool:
    """Return whether it is proven that no unlisted memory belongs in the results.

    Args:
        scores: Scores of the best `top_k` candidates, best first; fewer if there are no more.
    """
    floor = max(threshold, scores[-1]) if 0 < top_k <= len(scores) else threshold
    return not unlisted.may_reach(floor - MARGIN * max(1.0, abs(floor)))


def _cells(boxes: Sequence[Box]) -> Iterator[dict[str, Interval]]:
    """Yield cells that together contain every memory. Each box contains a cell completely or shares only a border."""
    cuts: dict[str, set[float]] = {}
    for box in boxes:
        for name, interval in box.items():
            inner = {interval.low, interval.high} - {RANGES[name].low, RANGES[name].high}
            cuts.setdefault(name, set()).update(inner)
    axes = [_axis(RANGES[name], cuts[name]) for name in cuts]
    for intervals in itertools.product(*axes):
        yield dict(zip(cuts, intervals, strict=True))


def _axis(range_: Interval, cuts: set[float]) -> list[Interval]:
    ends = sorted({range_.low, range_.high, *(cut for cut in cuts if range_.low < cut < range_.high)})
    return [Interval(low, high) for low, high in itertools.pairwise(ends)]


def _holds(box: Box, cell: Box) -> bool:
    return all(interval.low <= cell[name].low and cell[name].high <= interval.high for name, interval in box.items())


def _above(score: float) -> float:
    return score + _ROUNDING * max(1.0, abs(score))


def _scaled(interval: Interval, factor: float) -> Interval:
    return interval.times(Interval(factor, factor))
