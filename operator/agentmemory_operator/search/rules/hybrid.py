"""Search by meaning and by words in one request.

Candidates are the nearest memories and those that have the most and rarest of the query's words; their union is scored
by both signals, so that none counts as 0 for having been found by the other alone. `$score[0]` is the similarity,
`$score[1]` the BM25 score, in which the engine weighs words by how rare they are among the memories of who is searched,
or, before 1.19, in the collection. Source of the numbers: `docs/adr/0009`.

Where names of the query lead to memories (`entities/rules/activation.py`), those are a third list: with RRF one more
that is ranked, with Score `$score[2]` is the activation.

Rank fusion (RRF) over the lists i in which a memory is found, scaled so that the first of all lists has 1:

    fused = sum(weight_i / (k + rank_i)) * (k + 1) / sum(weight_i)

The engine's own fusion of several lists divides each rank by the weight of its list, which no single `k` undoes. So it
fuses each list alone: `$score[2]` and the following are 1 / (k + rank), and the formula weighs and adds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.filters import Selection, both, of_owners
from agentmemory_operator.search.rules.candidates import (
    CandidatePlan,
    Query,
    gate_of,
    similarity_formula,
    similarity_of,
)
from agentmemory_operator.search.rules.clues import (
    EVIDENCE_DEFAULTS,
    HALF_GAP,
    Clues,
    evidence_formulas,
    with_evidence_formula,
)
from agentmemory_operator.search.rules.score import ScoreTemplate, Signals, score_template
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula, product_formula, sum_formula
from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.presets.table import Fusion

ENTITY_WEIGHT = 0.5
"""Weight of the path along entities among ranks; those of meaning and words are 1 together."""

HALF_ACTIVATION, ENTITY_SHARE = 0.25, 0.2
"""Activation whose term is 0.5, and how much of what a match lacks it makes up. Source: `docs/adr/0026`."""

NOTHING_ALONG: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a memory and the question match.

    Attributes:
        keyword: 0..1; None where the search was by meaning alone.
        entities: the activation by the query's names; None where it has none that lead anywhere.
        evidence: what else tells that the memory answers the question, 0..1 by name; None where nothing does.
        fused: of all, what ranks in the similarity's place; the similarity itself where nothing is fused.
    """

    similarity: float
    keyword: float | None = None
    entities: float | None = None
    evidence: Mapping[str, float] | None = None
    fused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The engine's queries for the candidates of one search, and what their scores mean.

    Attributes:
        lists: the first holds every candidate by similarity, the second by words. With RRF one by rank follows for
            each path: meaning, words and, where there is an `along`, that. With Score only `along` follows.
        along: activation of the memories that the query's names lead to, the most activated first.
    """

    lists: tuple[Query, ...]
    distance: str
    fusion: Fusion | None = None
    along: Mapping[str, float] = field(default_factory=dict)

    def matches(self, found: Sequence[Sequence[Mapping[str, Any]]], clues: Clues | None) -> dict[str, Match]:
        """How each candidate matches, by id, nearest first.

        Args:
            found: the engine's answers to the lists.
            clues: what the query tells beside what it is about; None where memories have no evidence to compare.
        """
        scores = [{point["id"]: float(point["score"]) for point in points} for points in found]
        return {
            id_: self._match([of.get(id_, 0.0) for of in scores], self.along.get(id_, 0.0), clues) for id_ in scores[0]
        }

    def _match(self, scores: Sequence[float], activation: float, clues: Clues | None) -> Match:
        similarity = similarity_of(self.distance, scores[0])
        if self.fusion is None or clues is None:
            return Match(similarity=similarity, fused=similarity)
        keyword, ranks = keyword_of(scores[1], clues), scores[2:]
        if not self.along:
            fused = _fused(self.fusion, similarity, keyword, ranks, is_along=False)
            return Match(similarity=similarity, keyword=keyword, fused=fused)
        fused = _fused_along(self.fusion, similarity, keyword, ranks, activation)
        return Match(similarity=similarity, keyword=keyword, entities=activation, fused=fused)


def fusion_of(ranking: Ranking) -> Fusion | None:
    """How a search by words too ranks, None where words do not count; an expression names `keyword` itself."""
    if isinstance(ranking.model, CheckedExpression):
        return Fusion(method="None") if "keyword" in variables_of(ranking.model.root) else None
    return None if ranking.fusion.method == "None" else ranking.fusion


def ranks_evidence(fusion: Fusion | None) -> bool:
    """Whether evidence is a part of what ranks in the similarity's place; an expression names its terms itself."""
    return fusion is not None and fusion.method != "None"


def look_by_words(document: Query, among: Selection | None) -> Query:
    """The part of a query that looks by words.

    Args:
        document: the question's text, as the engine takes it for its words.
        among: whose memories tell how rare a word is; None for all of the collection.
    """
    params = {} if among is None else {"params": {"idf": {"corpus": of_owners(among)}}}
    return {"query": document, "using": KEYWORD_VECTOR, **params}


def ask_by_both(
    plan: CandidatePlan,
    vector: Sequence[float],
    words: Query,
    *,
    distance: str,
    fusion: Fusion,
    along: Mapping[str, float] = NOTHING_ALONG,
) -> Question:
    """The queries of a search by similarity and words.

    A memory is a candidate if it has the least similarity that is asked for, one of the words, or an activated name.

    Args:
        words: see `look_by_words`.
        along: see `Question`; what the plan has no room for is left out.
    """
    along = dict(islice(along.items(), plan.limit))
    named = [_along_names(plan, along, fusion)] if along else []
    # All that the filter lets through are on each list, or each list adds its own.
    total = plan.limit if plan.is_exact else plan.limit * (len(plan.filters) + 1) + len(along)
    by_words = {**words, "filter": plan.filters[0], "limit": plan.limit}
    by_meaning = _by_meaning(plan, vector, distance)
    union = [*by_meaning, by_words, *named]
    lists: list[Query] = [
        # Where the one list by meaning holds all that there is, the others add nothing to it.
        by_meaning[0]
        if plan.is_exact and plan.allows_exact and gate_of(distance, plan.min_similarity) is None
        else {"prefetch": union, "query": vector, "params": plan.union_params, "limit": total},
        by_words if plan.is_exact else {**words, "prefetch": union, "limit": total},
    ]
    if fusion.method == "RRF":
        # Of those by meaning the list of the nearest, which is the last.
        lists.extend(_by_rank(ranked, fusion.k) for ranked in union[len(plan.filters) - 1 :])
    else:
        lists.extend(named)
    return Question(lists=tuple(lists), distance=distance, fusion=fusion, along=along)


@lru_cache(maxsize=1024)
def scoring_of(
    ranking: Ranking,
    fusion: Fusion | None,
    *,
    distance: str,
    has_extremes: bool,
    is_along: bool = False,
    has_clues: bool = False,
) -> ScoreTemplate:
    """The engine's query that scores the lists of a question, but for the time and the question's clues.

    Args:
        fusion: the question's.
        is_along: the query's names lead to memories.
        has_extremes: the server knows `min` and `max`.
        has_clues: the question has some.
    """
    similarity = similarity_formula(distance)
    formulas = evidence_formulas(ranking.evidence.assistant) if has_clues else {}
    defaults = EVIDENCE_DEFAULTS if has_clues else {}
    make = partial(score_template, ranking, distance=distance, has_extremes=has_extremes)
    if fusion is None:
        return make(Signals(similarity=similarity, evidence=formulas, defaults=defaults))
    fused = _fused_formula(fusion, similarity, is_along=is_along)
    # The scores of a candidate that is not on a list.
    lacking = dict.fromkeys(("$score[1]", "$score[2]", *_rank_shares(fusion, is_along)), 0.0)
    if ranks_evidence(fusion):
        fused = with_evidence_formula(fused, ranking.evidence, formulas)
    return make(
        Signals(
            similarity=fused,
            keyword=_towards_one("$score[1]", HALF_GAP),
            evidence=formulas,
            defaults={**lacking, **defaults},
        )
    )


def keyword_of(score: float, clues: Clues) -> float:
    """The keyword term of a BM25 score: 0 without a common word, towards 1 with many rare ones."""
    return 1.0 - math.pow(0.5, score / clues.half_score)


def _towards_one(variable: str, half: Formula, most: float = 1.0) -> Formula:
    """0 at 0, half of `most` at `half`, towards `most` beyond."""
    decay = {"exp_decay": {"x": variable, "target": 0.0, "scale": half, "midpoint": 0.5}}
    return sum_formula(most, product_formula(-most, decay))


def _along_names(plan: CandidatePlan, along: Mapping[str, float], fusion: Fusion) -> Query:
    """The query for the memories along the query's names: by rank, which is of no other one's, or by activation."""
    of_rank = fusion.method == "RRF"
    worth = {id_: float(len(along) - place) if of_rank else value for place, (id_, value) in enumerate(along.items())}
    terms = [{"mult": [value, {"has_id": [id_]}]} for id_, value in worth.items()]
    among = {"filter": both(plan.filters[0], {"has_id": list(along)}), "limit": len(along)}
    return {"prefetch": [among], "query": {"formula": {"sum": terms}}, "limit": len(along)}


def _by_meaning(plan: CandidatePlan, vector: Sequence[float], distance: str) -> list[Query]:
    gate = gate_of(distance, plan.min_similarity)
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
            keyword = _towards_one("$score[1]", HALF_GAP, weight)
            fused = sum_formula(product_formula(1 - weight, similarity), keyword)
            if not is_along:
                return fused
            lacking: Formula = {"sum": [1.0, {"neg": fused}]}
            return {"sum": [fused, {"mult": [ENTITY_SHARE, _towards_one("$score[2]", HALF_ACTIVATION), lacking]}]}
        case "RRF":
            return {"sum": [{"mult": [share, score]} for score, share in _rank_shares(fusion, is_along).items()]}
        case _:
            return similarity


def _by_rank(ranked: Query, k: int) -> Query:
    """The query that scores a list by 1 / (k + rank), rank from 1; the engine's own is 1 / (k + rank - 1)."""
    return {"prefetch": [ranked], "query": {"rrf": {"k": k + 1}}, "limit": ranked["limit"]}


def _rank_shares(fusion: Fusion, is_along: bool) -> dict[str, float]:
    """The factor of 1 / (k + rank) in `fused`, by the variable of each ranked list; none without RRF."""
    if fusion.method != "RRF":
        return {}
    weights = [1 - fusion.keyword_weight, fusion.keyword_weight, *([ENTITY_WEIGHT] if is_along else [])]
    scale = (fusion.k + 1) / sum(weights)
    return {f"$score[{place}]": weight * scale for place, weight in enumerate(weights, start=2)}
