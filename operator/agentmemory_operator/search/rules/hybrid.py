"""Search by vectors and by keywords in one request.

Candidates are the nearest memories and those with the most and rarest words of the query. Their union is scored by both
signals, so a memory found by one signal does not count as 0 in the other. `$score[0]` is the similarity. `$score[1]` is
the BM25 score, in which rare words weigh more. From Qdrant 1.19 on, rarity is counted among the memories of the
searched users and scopes, before that in the whole collection. Source of the numbers: `docs/adr/0009`.

If names in the query are linked to memories (`entities/rules/activation.py`), those memories are a third list. With RRF
it is another ranked list. With Score, `$score[2]` is the activation.

Reciprocal rank fusion (RRF) is a sum over the lists i that contain a memory. It is 1 for a memory that is first in all
lists:

    fused = sum(weight_i / (k + rank_i)) * (k + 1) / sum(weight_i)

Qdrant's own fusion of several lists divides each rank by the weight of its list, which no choice of `k` corrects.
So Qdrant fuses each list separately: `$score[2]` and the following are 1 / (k + rank), and the formula adds them
with weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.filters import Selection, narrow, owners_filter
from agentmemory_operator.search.rules.candidates import (
    CandidatePlan,
    Query,
    score_threshold,
    similarity_formula,
    similarity_of,
)
from agentmemory_operator.search.rules.query_features import (
    EVIDENCE_DEFAULTS,
    HALF_SCORE_PLACEHOLDER,
    QueryFeatures,
    add_evidence_formula,
    evidence_formulas,
)
from agentmemory_operator.search.rules.score import ScoreTemplate, Signals, score_template
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula, product_formula, sum_formula
from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.presets.table import Fusion

ENTITY_WEIGHT = 0.5
"""Weight of the entity list in RRF. For comparison, the weights of vectors and keywords add up to 1."""

HALF_ACTIVATION, ENTITY_SHARE = 0.25, 0.2
"""Activation at which the entity term is 0.5, and the maximum share of the gap to a full match that the term closes.
Source: `docs/adr/0026`."""

NO_ACTIVATIONS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Match of a memory and the query.

    Attributes:
        keyword: 0..1; None if the search used no keywords.
        entities: Activation by the names in the query; None if they are linked to no memories.
        evidence: Evidence variables, 0..1, by name; None if they are not part of `fused`.
        fused: Combination of all signals, which ranks instead of the similarity; equal to it if nothing is combined.
    """

    similarity: float
    keyword: float | None = None
    entities: float | None = None
    evidence: Mapping[str, float] | None = None
    fused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQueries:
    """Qdrant's queries for the candidates of one search, and the meaning of their scores.

    Attributes:
        lists: First the query for every candidate with its similarity, the only query without `fusion`. Second, the
            BM25 scores of candidates that contain a word of the query. With RRF, a ranked list of each signal follows:
            vectors, keywords and, if there are `activations`, entities. Without RRF, only the entity list follows, if
            there are `activations`.
        activations: Activation of the memories linked to names in the query, highest first.
    """

    lists: tuple[Query, ...]
    distance: str
    fusion: Fusion | None = None
    activations: Mapping[str, float] = field(default_factory=dict)

    def matches(self, hits: Sequence[Sequence[Mapping[str, Any]]], features: QueryFeatures | None) -> dict[str, Match]:
        """Return the match of each candidate, by id, nearest first.

        Args:
            hits: Responses of Qdrant to the lists.
            features: Features of the query. None gives matches with the similarity only.
        """
        scores = [{point["id"]: float(point["score"]) for point in points} for points in hits]
        return {
            id_: self._match([values.get(id_, 0.0) for values in scores], self.activations.get(id_, 0.0), features)
            for id_ in scores[0]
        }

    def _match(self, scores: Sequence[float], activation: float, clues: QueryFeatures | None) -> Match:
        similarity = similarity_of(self.distance, scores[0])
        if self.fusion is None or clues is None:
            return Match(similarity=similarity, fused=similarity)
        keyword, ranks = keyword_term(scores[1], clues), scores[2:]
        if not self.activations:
            fused = _fused(self.fusion, similarity, keyword, ranks, is_along=False)
            return Match(similarity=similarity, keyword=keyword, fused=fused)
        fused = _fused_along(self.fusion, similarity, keyword, ranks, activation)
        return Match(similarity=similarity, keyword=keyword, entities=activation, fused=fused)


def fusion_of(ranking: Ranking) -> Fusion | None:
    """Return how a search with keywords combines its signals; None if keywords do not count in the ranking.

    An expression uses `keyword` as a variable, so nothing is fused before it.
    """
    if isinstance(ranking.model, CheckedExpression):
        return Fusion(method="None") if "keyword" in variables_of(ranking.model.root) else None
    return None if ranking.fusion.method == "None" else ranking.fusion


def ranks_evidence(fusion: Fusion | None) -> bool:
    """Return whether evidence is part of the fused match; an expression uses its variables directly."""
    return fusion is not None and fusion.method != "None"


def build_keyword_query(document: Query, selection: Selection | None) -> Query:
    """Return Qdrant's query by keywords, without a filter and a limit.

    Args:
        document: Text of the query, in the form that Qdrant computes its keyword vector from.
        selection: Selection of users and scopes that determine the rarity of a word; None for the whole collection.
    """
    params = {} if selection is None else {"params": {"idf": {"corpus": owners_filter(selection)}}}
    return {"query": document, "using": KEYWORD_VECTOR, **params}


def build_hybrid_queries(
    plan: CandidatePlan,
    vector: Sequence[float],
    words: Query,
    *,
    distance: str,
    fusion: Fusion,
    activations: Mapping[str, float] = NO_ACTIVATIONS,
) -> CandidateQueries:
    """Return the queries of a search by vectors and keywords.

    Candidates are the nearest memories with the minimum similarity, those that match the words best, and the most
    activated ones. The plan has the lengths of these lists.

    Args:
        words: See `build_keyword_query`.
        activations: See `CandidateQueries`; entries beyond the limit of the plan are omitted.
    """
    activations = dict(islice(activations.items(), plan.limit))
    entity_lists = [_along_names(plan, activations, fusion)] if activations else []
    total = plan.union_size(len(activations))
    by_words = {**words, "filter": plan.filters[0], "limit": plan.word_limit}
    by_meaning = _by_meaning(plan, vector, distance)
    union = [*by_meaning, by_words, *entity_lists]
    lists: list[Query] = [
        # Use the vector list alone if it contains all memories: then the other lists add no candidates.
        by_meaning[0]
        if plan.is_exact and plan.allows_exact and score_threshold(distance, plan.min_similarity) is None
        else {"prefetch": union, "query": vector, "params": plan.union_params, "limit": total},
        {**words, "prefetch": union, "limit": total} if plan.compares_words and not plan.is_exact else by_words,
    ]
    if fusion.method == "RRF":
        # Of the vector lists, RRF ranks only the last, which is not narrowed to a class of memories.
        lists.extend(_by_rank(ranked, fusion.k) for ranked in union[len(plan.filters) - 1 :])
    else:
        lists.extend(entity_lists)
    return CandidateQueries(lists=tuple(lists), distance=distance, fusion=fusion, activations=activations)


@lru_cache(maxsize=1024)
def build_scoring_template(
    ranking: Ranking,
    fusion: Fusion | None,
    *,
    distance: str,
    has_extremes: bool,
    has_activations: bool = False,
    has_clues: bool = False,
) -> ScoreTemplate:
    """Return Qdrant's query that scores the lists of a search, with placeholders for time and query features.

    Args:
        fusion: Fusion of the search; None if it uses no keywords.
        has_activations: True if names in the query are linked to memories.
        has_extremes: True if the server supports `min` and `max`.
        has_clues: True if the query has features.
    """
    similarity = similarity_formula(distance)
    formulas = evidence_formulas(ranking.evidence.assistant) if has_clues else {}
    defaults = EVIDENCE_DEFAULTS if has_clues else {}
    make = partial(score_template, ranking, distance=distance, has_extremes=has_extremes)
    if fusion is None:
        return make(Signals(similarity=similarity, evidence=formulas, defaults=defaults))
    fused = _fused_formula(fusion, similarity, is_along=has_activations)
    # A candidate that is not on a list has the score 0 there.
    missing_scores = dict.fromkeys(("$score[1]", "$score[2]", *_rank_shares(fusion, has_activations)), 0.0)
    if ranks_evidence(fusion):
        fused = add_evidence_formula(fused, ranking.evidence, formulas)
    return make(
        Signals(
            similarity=fused,
            keyword=_saturating("$score[1]", HALF_SCORE_PLACEHOLDER),
            evidence=formulas,
            defaults={**missing_scores, **defaults},
        )
    )


def keyword_term(score: float, features: QueryFeatures) -> float:
    """Return the keyword term of a BM25 score: 0 without a common word, approaching 1 for many rare ones."""
    return 1.0 - math.pow(0.5, score / features.half_score)


def _saturating(variable: str, half: Formula, maximum: float = 1.0) -> Formula:
    """Return a formula that is 0 at 0, half of `maximum` at `half`, and approaches `maximum`."""
    decay = {"exp_decay": {"x": variable, "target": 0.0, "scale": half, "midpoint": 0.5}}
    return sum_formula(maximum, product_formula(-maximum, decay))


def _along_names(plan: CandidatePlan, levels: Mapping[str, float], fusion: Fusion) -> Query:
    """Return the query that lists the memories linked to names, scored by rank with RRF, else by activation."""
    is_rrf = fusion.method == "RRF"
    weights = {id_: float(len(levels) - rank) if is_rrf else value for rank, (id_, value) in enumerate(levels.items())}
    terms = [{"mult": [value, {"has_id": [id_]}]} for id_, value in weights.items()]
    candidates = {"filter": narrow(plan.filters[0], {"has_id": list(levels)}), "limit": len(levels)}
    return {"prefetch": [candidates], "query": {"formula": {"sum": terms}}, "limit": len(levels)}


def _by_meaning(plan: CandidatePlan, vector: Sequence[float], distance: str) -> list[Query]:
    gate = score_threshold(distance, plan.min_similarity)
    bounds = {} if gate is None else {"score_threshold": gate}
    return [
        {"query": vector, "filter": filter_, "params": plan.leaf_params, "limit": plan.limit, **bounds}
        for filter_ in reversed(plan.filters)
    ]


def _fused(fusion: Fusion, similarity: float, keyword: float, ranks: Sequence[float], *, is_along: bool) -> float:
    weight = fusion.keyword_weight
    match fusion.method:
        case "Score":
            return (1 - weight) * similarity + weight * keyword
        case "RRF":
            shares = _rank_shares(fusion, is_along).values()
            return sum(share * rank for share, rank in zip(shares, ranks, strict=True))
        case _:
            return similarity


def _fused_along(fusion: Fusion, similarity: float, keyword: float, ranks: Sequence[float], activation: float) -> float:
    fused = _fused(fusion, similarity, keyword, ranks, is_along=True)
    if fusion.method == "RRF":
        return fused
    return fused + ENTITY_SHARE * (1.0 - math.pow(0.5, activation / HALF_ACTIVATION)) * (1.0 - fused)


def _fused_formula(fusion: Fusion, similarity: Formula, *, is_along: bool) -> Formula:
    weight = fusion.keyword_weight
    match fusion.method:
        case "Score":
            keyword = _saturating("$score[1]", HALF_SCORE_PLACEHOLDER, weight)
            fused = sum_formula(product_formula(1 - weight, similarity), keyword)
            if not is_along:
                return fused
            gap_to_one: Formula = {"sum": [1.0, {"neg": fused}]}
            return {"sum": [fused, {"mult": [ENTITY_SHARE, _saturating("$score[2]", HALF_ACTIVATION), gap_to_one]}]}
        case "RRF":
            return {"sum": [{"mult": [share, score]} for score, share in _rank_shares(fusion, is_along).items()]}
        case _:
            return similarity


def _by_rank(ranked: Query, k: int) -> Query:
    """Return the query that scores a list by 1 / (k + rank), with ranks from 1. Qdrant's RRF counts ranks from 0."""
    return {"prefetch": [ranked], "query": {"rrf": {"k": k + 1}}, "limit": ranked["limit"]}


def _rank_shares(fusion: Fusion, is_along: bool) -> dict[str, float]:
    """Return the factor of 1 / (k + rank) in `fused`, by the variable of each ranked list; empty without RRF."""
    if fusion.method != "RRF":
        return {}
    weights = [1 - fusion.keyword_weight, fusion.keyword_weight, *([ENTITY_WEIGHT] if is_along else [])]
    scale = (fusion.k + 1) / sum(weights)
    return {f"$score[{index}]": weight * scale for index, weight in enumerate(weights, start=2)}
