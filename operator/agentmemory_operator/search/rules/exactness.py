"""Proof that no memory outside the lists of candidates ranks among the best.

A list that was searched exactly names the nearest of its class: what it leaves out is at most as near as the first
memory beyond it, and where there is none it leaves out nothing. The classes' thresholds cut the space of variables into
cells; in each cell similarity, keyword score and variables are bounded, and so is the score (`Expression.bounds`).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.search.rules.candidate_classes import Box, MemoryClass
from agentmemory_operator.search.rules.candidates import CandidatePlan, Query, gate_of, similarity_of
from agentmemory_operator.search.rules.clues import Clues, with_evidence
from agentmemory_operator.search.rules.hybrid import keyword_of, ranks_evidence
from agentmemory_operator.search.rules.score import score_bounds, type_names_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.tree import Ranges
from agentmemory_operator.spec.expression.variables import KEYWORD, RANGES, SIMILARITY, ranges_of
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.spec.presets.table import Fusion

# The engine's scores lie up to 1e-5 beside the oracle's, which the bound is of; relative to scores above 1.
MARGIN = 2e-5
# The engine compares vectors in float32, and may add up two searches in different orders.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class ListEnd:
    """Where a list of the nearest of a class ends.

    Attributes:
        similarity: of the first memory beyond the list; None where the list holds all that are near enough.
    """

    class_: MemoryClass
    similarity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What is known of the memories that no list names.

    Attributes:
        by_words: keyword score of the first memory beyond the list by words; None where that holds every memory with
            one of the words, or there is no such list.
        fusion: None where words do not count.
        clues: the question's.
        types: the only types that were asked for; empty is any.
    """

    ranking: Ranking
    distance: str
    ends: Sequence[ListEnd]
    by_words: float | None = None
    fusion: Fusion | None = None
    clues: Clues | None = None
    types: Sequence[str] = field(default_factory=tuple)

    def may_reach(self, floor: float) -> bool:
        """Whether the oracle may give one of them more than `floor`; False is certain."""
        return any(
            self._score(ranges) > floor
            for name in (set(self.types) or type_names_of(self.ranking))
            for ranges in self._cells_of(name)
        )

    def _cells_of(self, type_name: str) -> Iterator[Ranges]:
        """Yield between what the variables of unseen memories of a type lie, cell by cell."""
        listed = {type_.name: type_ for type_ in self.ranking.types}.get(type_name)
        boxed = [(end, box) for end in self.ends if (box := end.class_.box(listed)) is not None]
        for cell in _cells([box for _, box in boxed]):
            matches = self._matches([end.similarity for end, box in boxed if _holds(box, cell)])
            if matches is not None:
                numbers = {**ranges_of(self.distance).numbers, **cell, **matches}
                yield Ranges(numbers, frozenset({type_name}))

    def _score(self, ranges: Ranges) -> float:
        # Ranks below the end of a list are not known.
        if self.fusion is not None and self.fusion.method == "RRF":
            return math.inf
        return score_bounds(self.ranking, ranges).high

    def _matches(self, ends: Sequence[float | None]) -> Box | None:
        """How memories may match that are left out by lists ending so; None where there are none."""
        range_ = ranges_of(self.distance).numbers[SIMILARITY]
        gate = self.ranking.min_similarity
        least = range_.low if gate <= NO_GATE else max(range_.low, gate)
        ceiling = min((_above(end) for end in ends if end is not None), default=range_.high)
        if None in ends:
            # Only memories that are not near enough are left out, and those count only for their words.
            ceiling = min(ceiling, least)
        if self.by_words is None:
            if None in ends or ceiling < least:
                return None
            return self._fused(Interval(least, ceiling), Interval(0.0, 0.0))
        return self._fused(Interval(min(range_.low, ceiling), ceiling), Interval(0.0, _above(self.by_words)))

    def _fused(self, similarity: Interval, keyword: Interval) -> Box:
        if self.fusion is not None and self.fusion.method == "Score":
            weight = self.fusion.keyword_weight
            similarity = _scaled(similarity, 1 - weight).plus(_scaled(keyword, weight))
        if ranks_evidence(self.fusion):
            similarity = self._with_evidence(similarity)
        return {SIMILARITY: similarity, KEYWORD: keyword}

    def _with_evidence(self, fused: Interval) -> Interval:
        """Nothing is known of the evidence of what was not seen."""
        weights = self.ranking.evidence
        low, high = (dict.fromkeys(weights.terms, number) for number in (0.0, 1.0))
        return Interval(with_evidence(fused.low, weights, low), with_evidence(fused.high, weights, high))


def ask_ends(plan: CandidatePlan, vector: Sequence[float], *, distance: str, words: Query | None = None) -> list[Query]:
    """The queries for the first memory beyond each list, the one by words last.

    Args:
        words: as for `hybrid.ask_by_both`.
    """
    beyond: Query = {"limit": 1, "offset": plan.limit, "params": {"exact": True}}
    gate = gate_of(distance, plan.min_similarity)
    bounds = {} if gate is None else {"score_threshold": gate}
    queries = [{"query": vector, "filter": filter_, **beyond, **bounds} for filter_ in plan.filters]
    if words is not None:
        params = {**words.get("params", {}), **beyond["params"]}
        queries.append({**words, "filter": plan.filters[0], **beyond, "params": params})
    return queries


def read_ends(plan: CandidatePlan, found: Sequence[Sequence[Mapping[str, float]]], *, distance: str) -> list[ListEnd]:
    """Where the lists by similarity end, from the engine's answers to `ask_ends`."""
    return [
        ListEnd(class_, similarity_of(distance, points[0]["score"]) if points else None)
        for class_, points in zip(plan.classes, found, strict=False)
    ]


def read_words_end(
    plan: CandidatePlan, found: Sequence[Sequence[Mapping[str, float]]], clues: Clues | None
) -> float | None:
    """The keyword score beyond the list by words, None where there is none."""
    beyond = found[len(plan.filters) :]
    return keyword_of(beyond[0][0]["score"], clues) if clues and beyond and beyond[0] else None


def is_settled(unseen: Unseen, scores: Sequence[float], *, top_k: int, threshold: float) -> bool:
    """Whether nothing unseen can enter an answer.

    Args:
        scores: of the best `top_k` candidates, best first; fewer are all there are.
    """
    floor = max(threshold, scores[-1]) if 0 < top_k <= len(scores) else threshold
    return not unseen.may_reach(floor - MARGIN * max(1.0, abs(floor)))


def _cells(boxes: Sequence[Box]) -> Iterator[dict[str, Interval]]:
    """Yield cells that together hold every memory, each wholly inside or, in some variable, beyond each box."""
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
