"""Which memories the engine scores: it combines signals only for candidates that a prefetch names.

The nearest alone miss what ranks high for being new, much used, or both in some measure. So large sets get up to four
more lists, each the nearest of such a class; all are longer where the set is smaller, and sets up to 3,000 are scored
whole. Source of the numbers: `docs/adr/0006`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.memories.rules.filters import Filter, both
from agentmemory_operator.search.rules.candidate_classes import (
    BY_HORIZON,
    BY_IDLENESS,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    BY_TIME,
    BY_TIME_AND_USE,
    BY_USE,
    EVERYTHING,
    MemoryClass,
)
from agentmemory_operator.search.rules.score_trees import KNOWLEDGE_TYPE
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula
from agentmemory_operator.spec.expression.models import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import ACCESS_COUNT, AGE_DAYS, IDLE_DAYS, IMPORTANCE
from agentmemory_operator.spec.presets import NO_GATE

# What the engine scores: sets up to this size whole, larger ones by lists that share it.
SCORED = 3_000
# Below this size the classes beyond the nearest hold too little to fill their lists: all lists are longer instead.
SPARSE = 20_000
ANY_NUMBER = 2**32


Query = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """Lists of nearest memories, one for each filter; their union is scored.

    Attributes:
        classes: of what memories each list holds the nearest.
        limit: of each list.
        is_exact: the one list holds everything that the filter lets through.
        is_thorough: lists are made by comparing everything, not by the index.
        allows_exact: the collection's strict mode lets searches compare everything; else the index is asked for what
            comes nearest to that, and nothing is proven.
    """

    classes: tuple[MemoryClass, ...] = (EVERYTHING,)
    filters: tuple[Filter, ...]
    limit: int
    is_exact: bool
    min_similarity: float
    search_ef: int | None
    rescore: bool = True
    oversampling: float = 1.0
    is_thorough: bool = False
    allows_exact: bool = True

    @property
    def total(self) -> int:
        """How many candidates there may be."""
        return self.limit * len(self.filters)

    def searched_exactly(self) -> "CandidatePlan":
        """The plan whose lists miss nothing that belongs on them; far dearer."""
        return replace(self, is_thorough=True, rescore=True)

    def query(self, vector: Sequence[float], *, distance: str) -> Query:
        """The engine's query for the candidates.

        They are scored by the vectors themselves; without `rescore` by the compressed copies, except in a small set,
        which is compared whole.
        """
        gate = gate_of(distance, self.min_similarity)
        bounds = {"limit": self.total} | ({} if gate is None else {"score_threshold": gate})
        if len(self.filters) == 1:
            params = self._whole if self.is_exact else self._params(rescore=self.rescore)
            return {"query": vector, "filter": self.filters[0], "params": params, **bounds}
        lists = [
            {
                "query": vector,
                "filter": filter_,
                # All of them are compared again below: it is worth doing here only where more are looked at than kept.
                "params": self._params(rescore=self.rescore and self.oversampling > 1),
                "limit": self.limit,
            }
            for filter_ in self.filters
        ]
        return {"prefetch": lists, "query": vector, "params": self.union_params, **bounds}

    @property
    def leaf_params(self) -> dict[str, Any]:
        """The parameters of one list whose memories are compared again above it."""
        return self._whole if self.is_exact else self._params(rescore=self.rescore and self.oversampling > 1)

    @property
    def union_params(self) -> dict[str, Any]:
        """The parameters of the comparison of all that the lists hold."""
        return self._whole if self.rescore else {"quantization": {"rescore": False}}

    @property
    def _whole(self) -> dict[str, Any]:
        """The parameters of a search that compares everything by the vectors themselves, as far as it may."""
        if self.allows_exact:
            return {"exact": True}
        # Of so few points the engine compares all by itself, unless they are more than the full-scan threshold.
        return ({} if self.search_ef is None else {"hnsw_ef": self.search_ef}) | {"quantization": {"ignore": True}}

    def _params(self, *, rescore: bool) -> dict[str, Any]:
        """The parameters of a search in the index; always explicit, the engine's default differs by method."""
        if self.is_thorough:
            return self._whole
        quantization: dict[str, Any] = {"rescore": rescore}
        if rescore and self.oversampling > 1:
            quantization["oversampling"] = self.oversampling
        return ({} if self.search_ef is None else {"hnsw_ef": self.search_ef}) | {"quantization": quantization}


def plan_candidates(
    ranking: Ranking, filter_: Filter, *, eligible: int, top_k: int, now_ms: int, beside: int = 0
) -> CandidatePlan:
    """The candidates for one search.

    Args:
        eligible: how many memories the filter lets through.
        beside: lists that are asked for besides those by similarity, where not everything is scored.
    """
    most = ranking.max_query_limit or ANY_NUMBER
    classes: tuple[MemoryClass, ...] = (EVERYTHING,)
    limit = min(max(ranking.candidates or SCORED, top_k), most)
    if eligible > limit:
        limit = min(limit, most // (1 + beside))
    if ranking.candidates is None and eligible > limit:
        lists = (EVERYTHING, *_classes_beyond_similarity(ranking))
        # Lists too short for the answer would lose what similarity alone finds.
        classes = lists if most // (len(lists) + beside) >= top_k else classes
        count = len(classes) + beside
        limit = min(max(min(SCORED // count * max(SPARSE, eligible) // eligible, SCORED), top_k), most // count)
    return CandidatePlan(
        classes=classes,
        filters=(filter_, *(both(filter_, class_.condition(ranking.types, now_ms)) for class_ in classes[1:])),
        limit=limit,
        is_exact=eligible <= limit,
        min_similarity=ranking.min_similarity,
        search_ef=ranking.search_ef,
        rescore=ranking.rescore,
        oversampling=ranking.oversampling,
    )


def similarity_formula(distance: str) -> Formula:
    """The similarity as a formula of the engine's score."""
    return {"div": {"left": 1.0, "right": {"sum": [1.0, "$score"]}}} if distance == "Euclid" else "$score"


def similarity_of(distance: str, engine_score: float) -> float:
    """The similarity, larger for nearer: the engine's score, but 1 / (1 + distance) for Euclid."""
    return 1 / (1 + engine_score) if distance == "Euclid" else engine_score


def gate_of(distance: str, min_similarity: float) -> float | None:
    """The engine's bound for a least similarity, None for none; for Euclid it is the largest distance."""
    if min_similarity <= NO_GATE:
        return None
    if distance != "Euclid":
        return min_similarity
    return 1 / min_similarity - 1 if min_similarity > 0 else None


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
"""By whether a score depends on how new a memory is, and on how important or much used."""
