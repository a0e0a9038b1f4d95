"""Search by meaning and by words in one request.

Candidates are the nearest memories and those that have the most and rarest of the query's words; their union is scored
by both signals, so that none counts as 0 for having been found by the other alone. `$score[0]` is the similarity,
`$score[1]` the BM25 score, in which the engine weighs words by how rare they are in the collection; with RRF
`$score[2]` is the engine's rank fusion. Source of the numbers: `docs/adr/0009`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.search.rules.candidates import (
    CandidatePlan,
    Query,
    gate_of,
    similarity_formula,
    similarity_of,
)
from agentmemory_operator.search.rules.score import ScoreTemplate, score_template
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.tree import Formula, variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.presets.table import Fusion

HALF_SCORE = 10.0
"""BM25 score whose keyword term is 0.5: one to two rare words in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a memory and the question match.

    Attributes:
        keyword: 0..1; None where the search was by meaning alone.
        fused: of both, what ranks in the similarity's place; the similarity itself where nothing is fused.
    """

    similarity: float
    keyword: float | None = None
    fused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The engine's queries for the candidates of one search, and what their scores mean.

    Attributes:
        lists: the first holds every candidate by similarity, the second by words, the third by both ranks.
    """

    lists: tuple[Query, ...]
    distance: str
    fusion: Fusion | None = None

    def matches(self, found: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Match]:
        """How each candidate matches, by id, nearest first; `found` are the engine's answers to the lists."""
        scores = [{point["id"]: float(point["score"]) for point in points} for points in found]
        return {memory_id: self._match([of.get(memory_id, 0.0) for of in scores]) for memory_id in scores[0]}

    def _match(self, scores: Sequence[float]) -> Match:
        similarity = similarity_of(self.distance, scores[0])
        if self.fusion is None:
            return Match(similarity=similarity, fused=similarity)
        keyword = keyword_of(scores[1])
        ranks = scores[2] if len(scores) > 2 else 0.0
        return Match(similarity=similarity, keyword=keyword, fused=_fused(self.fusion, similarity, keyword, ranks))


def fusion_of(ranking: Ranking) -> Fusion | None:
    """How a search by words too ranks, None where words do not count; an expression names `keyword` itself."""
    if isinstance(ranking.model, CheckedExpression):
        return Fusion(method="None") if "keyword" in variables_of(ranking.model.root) else None
    return None if ranking.fusion.method == "None" else ranking.fusion


def ask_by_meaning(plan: CandidatePlan, vector: Sequence[float], *, distance: str) -> Question:
    """The queries of a search by similarity alone."""
    return Question(lists=(plan.query(vector, distance=distance),), distance=distance)


def ask_by_both(
    plan: CandidatePlan, vector: Sequence[float], document: Query, *, distance: str, fusion: Fusion
) -> Question:
    """The queries of a search by similarity and words.

    A memory is a candidate if it has the least similarity that is asked for, or one of the words.

    Args:
        document: the query's text, as the engine takes it for its words.
    """
    # All that the filter lets through are on each list, or each list adds its own.
    total = plan.limit if plan.is_exact else plan.limit * (len(plan.filters) + 1)
    by_words = {"query": document, "using": KEYWORD_VECTOR, "filter": plan.filters[0], "limit": plan.limit}
    union = [*_by_meaning(plan, vector, distance), by_words]
    lists: list[Query] = [
        {"prefetch": union, "query": vector, "params": plan.union_params, "limit": total},
        by_words if plan.is_exact else {"prefetch": union, "query": document, "using": KEYWORD_VECTOR, "limit": total},
    ]
    if fusion.method == "RRF":
        lists.append({"prefetch": union[-2:], "query": {"rrf": _rrf(fusion)}, "limit": total})
    return Question(lists=tuple(lists), distance=distance, fusion=fusion)


@lru_cache(maxsize=1024)
def scoring_of(ranking: Ranking, fusion: Fusion | None, *, distance: str, has_extremes: bool) -> ScoreTemplate:
    """The engine's query that scores the lists of a question, but for the time.

    Args:
        fusion: the question's.
        has_extremes: the server knows `min` and `max`.
    """
    similarity = similarity_formula(distance)
    if fusion is None:
        return score_template(ranking, distance=distance, similarity=similarity, has_extremes=has_extremes)
    return score_template(
        ranking,
        distance=distance,
        similarity=_fused_formula(fusion, similarity),
        keyword=KEYWORD_FORMULA,
        has_extremes=has_extremes,
        # Of a candidate that a list lacks.
        defaults={"$score[1]": 0.0, "$score[2]": 0.0},
    )


def keyword_of(score: float) -> float:
    """The keyword term of a BM25 score: 0 without a common word, towards 1 with many rare ones."""
    return 1.0 - math.pow(0.5, score / HALF_SCORE)


KEYWORD_FORMULA: Formula = {
    "sum": [1.0, {"neg": {"exp_decay": {"x": "$score[1]", "target": 0.0, "scale": HALF_SCORE, "midpoint": 0.5}}}]
}


def _by_meaning(plan: CandidatePlan, vector: Sequence[float], distance: str) -> list[Query]:
    gate = gate_of(distance, plan.min_similarity)
    bounds = {} if gate is None else {"score_threshold": gate}
    return [
        {"query": vector, "filter": filter_, "params": plan.leaf_params, "limit": plan.limit, **bounds}
        for filter_ in reversed(plan.filters)
    ]


def _fused(fusion: Fusion, similarity: float, keyword: float, ranks: float) -> float:
    weight = fusion.keyword_weight
    match fusion.method:
        case "Score":
            return (1 - weight) * similarity + weight * keyword
        case "RRF":
            return ranks / _best_rrf(fusion)
        case _:
            return similarity


def _fused_formula(fusion: Fusion, similarity: Formula) -> Formula:
    weight = fusion.keyword_weight
    match fusion.method:
        case "Score":
            return {"sum": [{"mult": [1 - weight, similarity]}, {"mult": [weight, KEYWORD_FORMULA]}]}
        case "RRF":
            return {"mult": [1 / _best_rrf(fusion), "$score[2]"]}
        case _:
            return similarity


def _rrf(fusion: Fusion) -> Query:
    return {"k": fusion.k, "weights": [1 - fusion.keyword_weight, fusion.keyword_weight]}


def _best_rrf(fusion: Fusion) -> float:
    """The rank fusion's score of what is first on both lists; the engine divides the rank by the weight."""
    weights = (1 - fusion.keyword_weight, fusion.keyword_weight)
    return sum(1 / (1 / weight + fusion.k - 1) for weight in weights)
