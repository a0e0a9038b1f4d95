"""Choose the candidates of a search: Qdrant combines signals only for the points that a prefetch returns.

The nearest memories alone omit those that rank high because they are new, often used, or both. So large sets get up to
four further lists, each with the nearest memories of such a class. Smaller sets get longer lists, and small sets are
scored completely. The effort of the ranking determines the numbers. If the ranking sets `candidates`, there is one
list, of that length or `top_k` if larger. Qdrant's query limit shortens lists. Source of the numbers: `docs/adr/0006`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.memories.rules.filters import Filter, narrow
from agentmemory_operator.search.rules.candidate_classes import (
    ALL_MEMORIES,
    BY_HORIZON,
    BY_IDLENESS,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    BY_TIME,
    BY_TIME_AND_USE,
    BY_USE,
    MemoryClass,
)
from agentmemory_operator.search.rules.score_trees import KNOWLEDGE_TYPE
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import ACCESS_COUNT, AGE_DAYS, IDLE_DAYS, IMPORTANCE
from agentmemory_operator.spec.presets import NO_GATE
from agentmemory_operator.spec.presets.table import Effort

# Number of eligible memories below which all lists are longer, because the further classes contain too few memories.
SPARSE_BELOW = 20_000
ANY_NUMBER = 2**32


Query = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridBudget:
    """Numbers of memories in a search whose score depends only on vectors, keywords and evidence.

    Attributes:
        whole: If no more memories are eligible, all are scored.
        nearest, by_words: Lengths of the two lists otherwise.
        compares_words: True to compute the keyword score of every candidate; False takes it as 0 for those that the
            list by words omits.
    """

    whole: int
    nearest: int
    by_words: int
    compares_words: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Numbers of memories that a search of one effort scores. Each list has room for all results.

    Attributes:
        whole: If no more memories are eligible, all are scored: that takes less time than several lists.
        scored: Number that the lists divide otherwise.
        hybrid: Numbers for a score by vectors and keywords alone (`_scores_by_match`); None for the same.
    """

    whole: int
    scored: int
    hybrid: HybridBudget | None = None


BUDGETS: Mapping[Effort, Budget] = {
    "Fast": Budget(
        whole=2_000, scored=600, hybrid=HybridBudget(whole=300, nearest=100, by_words=200, compares_words=False)
    ),
    "Balanced": Budget(whole=3_000, scored=1_500, hybrid=HybridBudget(whole=1_500, nearest=200, by_words=200)),
    "Exact": Budget(whole=3_000, scored=3_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """Plan for one or more lists of the nearest memories, one per filter. The union of the lists is scored.

    Attributes:
        classes: Class of memories of each list.
        limit: Maximum length of each list by similarity, and of the list of memories linked to names.
        word_limit: Maximum length of the list by words.
        compares_words: See `HybridBudget`.
        is_exact: True if the only list contains all memories that match the filter.
        min_similarity: Minimum similarity of a candidate; -1 or less sets no minimum.
        search_ef: `hnsw_ef` of index searches; None for Qdrant's default.
        rescore: True to score candidates by the original vectors, False by the quantized ones.
        oversampling: Factor, at least 1, of the number of quantized candidates that are rescored.
        is_thorough: True if lists are created by a full scan instead of the index.
        allows_exact: False if the collection's strict mode forbids full scans. An index search by the original vectors
            replaces them, and nothing is proven.
    """

    classes: tuple[MemoryClass, ...] = (ALL_MEMORIES,)
    filters: tuple[Filter, ...]
    limit: int
    word_limit: int
    compares_words: bool = True
    is_exact: bool
    min_similarity: float
    search_ef: int | None
    rescore: bool = True
    oversampling: float = 1.0
    is_thorough: bool = False
    allows_exact: bool = True

    @property
    def total(self) -> int:
        """Maximum number of candidates by similarity. Keyword and entity lists may add more."""
        return self.limit * len(self.filters)

    def union_size(self, linked: int) -> int:
        """Return the maximum number of candidates of a search by vectors and keywords.

        Args:
            linked: Number of memories linked to names in the query.
        """
        # If the plan is exact, all lists are parts of the same set of at most `limit` memories. Otherwise they may be
        # disjoint.
        return self.limit if self.is_exact else self.total + self.word_limit + linked

    def with_full_scans(self) -> "CandidatePlan":
        """Return the plan with lists by full scans, which are much more expensive.

        If the strict mode forbids them, the lists are index searches by the original vectors.
        """
        return replace(self, is_thorough=True, rescore=True, compares_words=True)

    def query(self, vector: Sequence[float], *, distance: str) -> Query:
        """Return Qdrant's query for the candidates.

        One filter becomes one search. It is a full scan if `is_exact` or `is_thorough`, else an index search. Several
        filters become prefetches, whose union is scored again.

        Scores are those of the original vectors. Only an index search without `rescore`, or the union of several lists
        without it, uses the scores of the quantized vectors.
        """
        threshold = score_threshold(distance, self.min_similarity)
        bounds = {"limit": self.total} | ({} if threshold is None else {"score_threshold": threshold})
        if len(self.filters) == 1:
            params = self._whole if self.is_exact else self._params(rescore=self.rescore)
            return {"query": vector, "filter": self.filters[0], "params": params, **bounds}
        lists = [
            {
                "query": vector,
                "filter": filter_,
                # The union is rescored below: rescoring a list pays only if oversampling reads more than it keeps.
                "params": self._params(rescore=self.rescore and self.oversampling > 1),
                "limit": self.limit,
            }
            for filter_ in self.filters
        ]
        return {"prefetch": lists, "query": vector, "params": self.union_params, **bounds}

    @property
    def leaf_params(self) -> dict[str, Any]:
        """Parameters of one list of a union: a full scan if `is_exact` or `is_thorough`, else an index search.

        An index search is rescored only with oversampling, because the union is rescored too.
        """
        return self._whole if self.is_exact else self._params(rescore=self.rescore and self.oversampling > 1)

    @property
    def union_params(self) -> dict[str, Any]:
        """Parameters for scoring the union of the lists, by the original vectors if `rescore` is set."""
        return self._whole if self.rescore else {"quantization": {"rescore": False}}

    @property
    def _whole(self) -> dict[str, Any]:
        """Parameters of a full scan by the original vectors; of an index search if the strict mode forbids it."""
        if self.allows_exact:
            return {"exact": True}
        # Search by the index without quantized vectors. Qdrant fully scans up to the full-scan threshold anyway.
        return ({} if self.search_ef is None else {"hnsw_ef": self.search_ef}) | {"quantization": {"ignore": True}}

    def _params(self, *, rescore: bool) -> dict[str, Any]:
        """Parameters of an index search, or of a full scan if `is_thorough`.

        `rescore` is always sent, because Qdrant's default depends on the quantization method.
        """
        if self.is_thorough:
            return self._whole
        quantization: dict[str, Any] = {"rescore": rescore}
        if rescore and self.oversampling > 1:
            quantization["oversampling"] = self.oversampling
        return ({} if self.search_ef is None else {"hnsw_ef": self.search_ef}) | {"quantization": quantization}


def plan_candidates(  # noqa: PLR0913 # each is a property of one search
    ranking: Ranking, filter_: Filter, *, eligible: int, top_k: int, now_ms: int, fetched: int = 0, extra_lists: int = 0
) -> CandidatePlan:
    """Choose the candidates of one search.

    Args:
        eligible: Number of memories that match the filter.
        top_k: Maximum number of results. It decides whether the query limit leaves room for further classes.
        fetched: Number of results to request from Qdrant, if above `top_k`. Each list is at least as long, unless the
            query limit is lower.
        extra_lists: Number of keyword and entity lists. They share the query limit, unless all memories are scored.
    """
    max_limit, budget = ranking.max_query_limit or ANY_NUMBER, BUDGETS[ranking.effort]
    beyond = _classes_beyond_similarity(ranking) if ranking.candidates is None else ()
    hybrid = budget.hybrid if extra_lists and ranking.candidates is None and _scores_by_match(ranking) else None
    whole = ranking.candidates or (hybrid or budget).whole
    limit = word_limit = min(max(whole, top_k, fetched), max_limit)
    classes: tuple[MemoryClass, ...] = (ALL_MEMORIES,)
    if eligible > limit:
        # Lists shorter than `top_k` would lose results of a search by similarity.
        classes = (ALL_MEMORIES, *beyond) if max_limit // (1 + len(beyond) + extra_lists) >= top_k else classes
        count = len(classes) + extra_lists
        longer = min(budget.scored // count * max(SPARSE_BELOW, eligible) // eligible, budget.scored)
        lengths = (hybrid.nearest, hybrid.by_words) if hybrid else (ranking.candidates or longer,) * 2
        limit, word_limit = (min(max(length, top_k, fetched), max_limit // count) for length in lengths)
    return CandidatePlan(
        classes=classes,
        filters=(filter_, *(narrow(filter_, class_.condition(ranking.types, now_ms)) for class_ in classes[1:])),
        limit=limit,
        word_limit=word_limit,
        compares_words=hybrid is None or hybrid.compares_words,
        is_exact=eligible <= limit,
        min_similarity=ranking.min_similarity,
        search_ef=ranking.search_ef,
        rescore=ranking.rescore,
        oversampling=ranking.oversampling,
    )


def similarity_formula(distance: str) -> Formula:
    """Return `similarity_of` as a formula over Qdrant's score."""
    return {"div": {"left": 1.0, "right": {"sum": [1.0, "$score"]}}} if distance == "Euclid" else "$score"


def similarity_of(distance: str, engine_score: float) -> float:
    """Return the similarity, larger for nearer: Qdrant's score, or 1 / (1 + distance) for Euclid."""
    return 1 / (1 + engine_score) if distance == "Euclid" else engine_score


def score_threshold(distance: str, min_similarity: float) -> float | None:
    """Return Qdrant's score threshold for a minimum similarity, for Euclid a maximum distance.

    None if every memory reaches the minimum: at -1 or below, and for Euclid at 0 or below.
    """
    if min_similarity <= NO_GATE:
        return None
    if distance != "Euclid":
        return min_similarity
    return 1 / min_similarity - 1 if min_similarity > 0 else None


def _scores_by_match(ranking: Ranking) -> bool:
    """Return whether the score depends on the match with the query only; False for each expression."""
    weights, boosts = ranking.weights, {type_.boost for type_ in ranking.types}
    others = (ranking.model, weights.recency, weights.utility, ranking.confidence_share, boosts - {1.0})
    return not any(others)


def _classes_beyond_similarity(ranking: Ranking) -> tuple[MemoryClass, ...]:
    match ranking.model:
        case None:
            return _CLASSES[ranking.weights.recency > 0, ranking.weights.utility > 0]
        case Confidence():
            return BY_IDLENESS_AND_ACCESSES
        case Importance():
            return BY_IDLENESS_AND_IMPORTANCE
        case Priority():
            has_bank = not ranking.types or any(type_.name == KNOWLEDGE_TYPE for type_ in ranking.types)
            return (*BY_HORIZON, MemoryClass(type_names=(KNOWLEDGE_TYPE,))) if has_bank else BY_HORIZON
        case CheckedExpression(root=root):
            return _classes_for(variables_of(root))


def _classes_for(names: frozenset[str]) -> tuple[MemoryClass, ...]:
    by_use = not names.isdisjoint((IMPORTANCE, ACCESS_COUNT))
    if IDLE_DAYS in names:
        return BY_IDLENESS_AND_IMPORTANCE if IMPORTANCE in names else BY_IDLENESS
    return _CLASSES[AGE_DAYS in names, by_use]


_CLASSES = {(True, True): BY_TIME_AND_USE, (True, False): BY_TIME, (False, True): BY_USE, (False, False): ()}
"""Classes by two properties of the score: dependence on age, and dependence on importance or accesses."""
