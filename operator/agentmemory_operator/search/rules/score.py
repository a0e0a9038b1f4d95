"""The combined score of a memory: computed in Python (the oracle), as Qdrant's query, and its bounds.

The weighted model: score = boost * (wSimilarity * similarity + wRecency * recency + wUtility * utility), with

    recency = 0.5 ** (ageDays / halfLifeDays)                          age from createdAt, in the future counts as 0
    utility = min(importance * (1 + log10(1 + accessCount)) / norm, 1)

and, if the object sets it, multiplied by 1 - confidenceShare + confidenceShare * confidence.

A type that does not decay has recency 1, and so has every type if the object lists none. Otherwise memories of an
unlisted type have recency 0.5: their half-life is unknown, so they rank between new and old memories. `score_trees`
contains the other models.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from types import MappingProxyType

import orjson

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.score_trees import build_boost, build_priority, build_score_tree, build_terms
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula, split_constant
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.scoring_parameters import Priority, model_name
from agentmemory_operator.spec.expression.tree import Case, Ranges, TypeIn, TypeNotIn, nodes_of, variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import (
    DEFAULT_CONFIDENCE,
    DEFAULTS,
    SIMILARITY,
    ScoreInput,
    build_target,
    payload_keys_of,
    ranges_of,
    values_of,
    variable,
)


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON that is inserted into a request unchanged."""

    text: str


NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
NO_PLACEHOLDERS: Mapping[str, Formula] = MappingProxyType({})

OTHER_TYPES = ""
"""Represents every type name that the score does not distinguish."""

# Prefix of a placeholder for a value of the search. No other string in a formula contains a control character.
_GAP = "\x00"
_NOW = f"{_GAP}now"
_GAPS = re.compile(r'"\\u0000(\w+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """The terms of one score.

    Attributes:
        similarity: Similarity to the query; if the search fuses signals, the fused match.
        keyword: Keyword score, 0..1; 0 without keywords.
        terms: The model's own terms by name; for an expression, the terms of its sum by their text.
        variables: For an expression, the value of each variable in it.
        age_days: Days since createdAt, never negative.
        half_life_days: Half-life of the memory's type; None if it does not decay or the object does not list the type.
        boost: Boost of the memory's type.
    """

    model: str
    similarity: float
    keyword: float
    terms: Mapping[str, float]
    variables: Mapping[str, float] = field(default_factory=dict)
    age_days: float
    half_life_days: float | None
    boost: float
    score: float


def compute_score(memory: ScoreInput, ranking: Ranking, *, now_ms: int) -> ScoreTerms:
    """Compute the score and its terms. Qdrant's score differs by at most 1e-5, relative to scores above 1."""
    values = values_of(memory, now_ms=now_ms)
    memory_type = {type_.name: type_ for type_ in ranking.types}.get(memory.type)
    names = variables_of(ranking.model.root) if isinstance(ranking.model, CheckedExpression) else ()
    return ScoreTerms(
        model=model_name(ranking.model),
        similarity=memory.similarity,
        keyword=memory.keyword,
        terms={name: term.evaluate(values) for name, term in build_terms(ranking).items()},
        variables={name: variable(name, ranking.types).evaluate(values) for name in sorted(names)},
        age_days=values.numbers["ageDays"],
        half_life_days=memory_type.half_life_days if memory_type else None,
        boost=build_boost(ranking).evaluate(values),
        score=build_score_tree(ranking).evaluate(values),
    )


MIN_SIMILARITY_WEIGHT = 0.05
"""Minimum weight of the similarity at which a score, a float32, determines it to within 1e-5."""


def determines_similarity(ranking: Ranking) -> bool:
    """Return whether a score determines the similarity.

    It does for the weighted sum without a confidence share, if the similarity has a weight of at least 0.05.
    """
    is_plain = ranking.model is None and not ranking.confidence_share
    return is_plain and ranking.weights.similarity >= MIN_SIMILARITY_WEIGHT


def solve_similarity(score: float, memory: ScoreInput, ranking: Ranking, *, now_ms: int) -> float:
    """Compute the similarity of a memory from its `score`; only for a ranking with `determines_similarity`.

    The similarity in `memory` is ignored. The weighted score is linear in the similarity, so two of its points
    determine it.
    """
    tree, values = build_score_tree(ranking), values_of(memory, now_ms=now_ms)
    low, high = (
        tree.evaluate(replace(values, numbers={**values.numbers, SIMILARITY: similarity})) for similarity in (0.0, 1.0)
    )
    return (score - low) / (high - low)


def score_inputs(
    record: MemoryRecord, *, similarity: float = 0.0, keyword: float = 0.0, evidence: Mapping[str, float] = NO_NUMBERS
) -> ScoreInput:
    """Return the fields of a memory that its score depends on, with its match. A missing confidence counts as 1."""
    return ScoreInput(
        type=record.type,
        similarity=similarity,
        keyword=keyword,
        evidence=evidence,
        created_at=record.created_at,
        importance=record.importance,
        access_count=record.access_count,
        confidence=DEFAULT_CONFIDENCE if record.confidence is None else record.confidence,
        decay_rate=record.decay_rate,
        last_accessed_at=record.last_accessed_at,
        tags=record.tags,
    )


def compute_priority(record: MemoryRecord, model: Priority, *, now_ms: int) -> float:
    """Return a memory's priority, 0..1: its recency, frequency and importance, independent of the query."""
    return build_priority(model).evaluate(values_of(score_inputs(record), now_ms=now_ms))


def score_query(
    ranking: Ranking,
    *,
    now_ms: int,
    distance: str,
    similarity: Formula = "$score",
    keyword: Formula = 0.0,
    has_extremes: bool = False,
) -> Formula:
    """Return Qdrant's query that scores prefetched points by the ranking.

    Args:
        distance: Distance of the collection.
        similarity, keyword: Formulas over the scores of the prefetches; the value of `keyword` must be in 0..1.
        has_extremes: True if the server supports `min` and `max`.
    """
    signals = Signals(similarity=similarity, keyword=keyword)
    template = score_template(ranking, signals, distance=distance, has_extremes=has_extremes)
    return orjson.loads(template.render(now_ms).text)


@dataclass(frozen=True, slots=True)
class ScoreTemplate:
    """A query for Qdrant as JSON. All searches with a ranking share it, except for the values of its placeholders.

    Attributes:
        parts: Texts, alternating with the names of placeholders.
    """

    parts: tuple[str, ...]

    def render(self, now_ms: int, gaps: Mapping[str, Formula] = NO_PLACEHOLDERS) -> JsonText:
        """Return the query for the current time `now_ms`, with all placeholders replaced.

        Args:
            gaps: Values of the other placeholders, by name.
        """
        filled = {name: orjson.dumps(formula).decode() for name, formula in gaps.items()}
        filled["now"] = orjson.dumps(split_constant(now_ms)).decode()
        return JsonText("".join(filled[part] if index % 2 else part for index, part in enumerate(self.parts)))


def placeholder(name: str) -> Formula:
    """Return a placeholder in a formula, which `ScoreTemplate.render` replaces by the value of this name."""
    return f"{_GAP}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Formulas of the match between a memory and the query.

    Attributes:
        similarity, keyword: Formulas over the scores of the prefetches; the value of `keyword` must be in 0..1.
        evidence: Formulas of the evidence variables; omitted ones are 0.
        defaults: Values of keys that a candidate may lack.
    """

    similarity: Formula = "$score"
    keyword: Formula = 0.0
    evidence: Mapping[str, Formula] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)


def score_template(ranking: Ranking, signals: Signals, *, distance: str, has_extremes: bool = False) -> ScoreTemplate:
    """Return `score_query` with placeholders for the time and for the values of the search."""
    tree = build_score_tree(ranking)
    target = build_target(
        now=_NOW,
        similarity=signals.similarity,
        keyword=signals.keyword,
        ranges=ranges_of(distance),
        has_extremes=has_extremes,
        evidence=signals.evidence,
    )
    keys = sorted(payload_keys_of(variables_of(tree)))
    query = {"formula": tree.compile(target), "defaults": {key: DEFAULTS[key] for key in keys} | dict(signals.defaults)}
    return ScoreTemplate(tuple(_GAPS.split(orjson.dumps(query).decode())))


def score_bounds(ranking: Ranking, ranges: Ranges) -> Interval:
    """Return bounds of the scores of all memories with variables in the ranges.

    Proof by interval arithmetic: the oracle scores no such memory above `high`. Qdrant's score may exceed it by
    1e-5, relative to scores above 1, so compare with that margin. `ranges_of` returns the ranges of all memories;
    `Ranges.with_interval` replaces that of one variable.
    """
    tree = build_score_tree(ranking)
    # Bound each type separately, because boost, half-life and cases of one type never combine with those of another.
    possible = type_names_of(ranking) if ranges.types is None else ranges.types
    return reduce(Interval.union, (tree.bounds(Ranges(ranges.numbers, frozenset({name}))) for name in sorted(possible)))


def type_names_of(ranking: Ranking) -> frozenset[str]:
    """Return the types that the score distinguishes, and the empty name, which represents every other type."""
    return frozenset({OTHER_TYPES, *(type_.name for type_ in ranking.types), *_named_types(ranking)})


@lru_cache(maxsize=1024)
def _named_types(ranking: Ranking) -> frozenset[str]:
    groups = (node.names for node in nodes_of(build_score_tree(ranking)) if isinstance(node, TypeIn | TypeNotIn | Case))
    return frozenset(name for names in groups for name in names)
