"""The combined score of a memory: by the oracle, as the engine's query, and between what it lies.

The weighted model: score = boost * (wSimilarity * similarity + wRecency * recency + wUtility * utility), with

    recency = 0.5 ** (ageDays / halfLifeDays)                          age from createdAt, in the future counts as 0
    utility = min(importance * (1 + log10(1 + accessCount)) / norm, 1)

and, where the object asks for it, times 1 - confidenceShare + confidenceShare * confidence.

A type that does not decay has recency 1. A type that the object no longer lists goes on answering with a recency of
0.5: nobody says how fast it ages, so it ranks neither as new nor as forgotten. The other models: `score_trees`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from types import MappingProxyType

import orjson

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.score_trees import boost_of, combined, priority_of, terms_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import Formula, split_constant
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.models import Priority, name_of
from agentmemory_operator.spec.expression.tree import Case, Ranges, TypeIn, TypeNotIn, nodes_of, variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import (
    DEFAULT_CONFIDENCE,
    DEFAULTS,
    SIMILARITY,
    Scored,
    payload_keys_of,
    ranges_of,
    target_of,
    values_of,
    variable,
)


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON that goes into a request as it stands."""

    text: str


NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
NO_GAPS: Mapping[str, Formula] = MappingProxyType({})

UNLISTED = ""
"""In place of the name of every type that a score does not tell from others."""

# Begins what stands where a search's own parts are to stand. Nothing else in a formula holds a control character.
_GAP = "\x00"
_NOW = f"{_GAP}now"
_GAPS = re.compile(r'"\\u0000(\w+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """The parts of one score.

    Attributes:
        terms: the model's own by name; of an expression, the parts of its sum by their text.
        variables: of an expression, the number of each variable that it names.
        age_days: since createdAt, never negative.
        half_life_days: of the memory's type; None when it does not decay or is not in the object's list.
        boost: of the memory's type.
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


def score(memory: Scored, ranking: Ranking, *, now_ms: int) -> ScoreTerms:
    """The score and its parts; the engine's score equals it within 1e-5."""
    values = values_of(memory, now_ms=now_ms)
    listed = {type_.name: type_ for type_ in ranking.types}.get(memory.type)
    names = variables_of(ranking.model.root) if isinstance(ranking.model, CheckedExpression) else ()
    return ScoreTerms(
        model=name_of(ranking.model),
        similarity=memory.similarity,
        keyword=memory.keyword,
        terms={name: term.evaluate(values) for name, term in terms_of(ranking).items()},
        variables={name: variable(name, ranking.types).evaluate(values) for name in sorted(names)},
        age_days=values.numbers["ageDays"],
        half_life_days=listed.half_life_days if listed else None,
        boost=boost_of(ranking).evaluate(values),
        score=combined(ranking).evaluate(values),
    )


LEAST_SHARE = 0.05
"""Share of the similarity from which a score, which is float32, tells it to within 1e-5."""


def tells_similarity(ranking: Ranking) -> bool:
    """Whether the similarity behind a score can be told from it."""
    is_plain = ranking.model is None and not ranking.confidence_share
    return is_plain and ranking.weights.similarity >= LEAST_SHARE


def similarity_behind(found: float, memory: Scored, ranking: Ranking, *, now_ms: int) -> float:
    """The similarity of a memory that scored `found`, where scores tell it; that of `memory` does not count.

    The weighted score is a line over the similarity, so two of its points give it.
    """
    tree, values = combined(ranking), values_of(memory, now_ms=now_ms)
    low, high = (
        tree.evaluate(replace(values, numbers={**values.numbers, SIMILARITY: similarity})) for similarity in (0.0, 1.0)
    )
    return (found - low) / (high - low)


def scored(
    record: MemoryRecord, *, similarity: float = 0.0, keyword: float = 0.0, evidence: Mapping[str, float] = NO_NUMBERS
) -> Scored:
    """What a memory is scored by."""
    return Scored(
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


def priority(record: MemoryRecord, model: Priority, *, now_ms: int) -> float:
    """A memory's priority."""
    return priority_of(model).evaluate(values_of(scored(record), now_ms=now_ms))


def score_query(
    ranking: Ranking,
    *,
    now_ms: int,
    distance: str,
    similarity: Formula = "$score",
    keyword: Formula = 0.0,
    has_extremes: bool = False,
) -> Formula:
    """The engine's query that scores prefetched points by the ranking.

    Args:
        distance: the collection's.
        similarity, keyword: the formulas that give them from the scores of the prefetches; keyword must lie in 0..1.
        has_extremes: the server knows `min` and `max`.
    """
    signals = Signals(similarity=similarity, keyword=keyword)
    template = score_template(ranking, signals, distance=distance, has_extremes=has_extremes)
    return orjson.loads(template.at(now_ms).text)


@dataclass(frozen=True, slots=True)
class ScoreTemplate:
    """A query of the engine as JSON with gaps: all else is the same for every search by a ranking.

    Attributes:
        parts: texts, and between two of them the name of a gap.
    """

    parts: tuple[str, ...]

    def at(self, now_ms: int, gaps: Mapping[str, Formula] = NO_GAPS) -> JsonText:
        """The query at a time.

        Args:
            gaps: what stands in the others, by name.
        """
        filled = {name: orjson.dumps(formula).decode() for name, formula in gaps.items()}
        filled["now"] = orjson.dumps(split_constant(now_ms)).decode()
        return JsonText("".join(filled[part] if place % 2 else part for place, part in enumerate(self.parts)))


def gap(name: str) -> Formula:
    """What stands in a formula where a search puts its own."""
    return f"{_GAP}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The formulas of what a memory's match with the question gives.

    Attributes:
        similarity, keyword: from the scores of the prefetches; keyword must lie in 0..1.
        evidence: of its variables; those that are not named are 0.
        defaults: of what a candidate may lack.
    """

    similarity: Formula = "$score"
    keyword: Formula = 0.0
    evidence: Mapping[str, Formula] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)


def score_template(ranking: Ranking, signals: Signals, *, distance: str, has_extremes: bool = False) -> ScoreTemplate:
    """`score_query` but for the time, and for what stands in the gaps of the signals."""
    tree = combined(ranking)
    target = target_of(
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
    """Between what the scores lie of all memories whose variables lie in the ranges.

    Proof by intervals: no such memory scores above `high` by the oracle. The engine's score may lie 1e-5 beyond, so
    compare with that margin. `ranges_of` gives the ranges of all memories; `Ranges.limited` narrows one variable.
    """
    tree = combined(ranking)
    # Type by type: what one type's boost, half-life and cases come to never mixes with another's.
    possible = type_names_of(ranking) if ranges.types is None else ranges.types
    return reduce(Interval.union, (tree.bounds(Ranges(ranges.numbers, frozenset({name}))) for name in sorted(possible)))


def type_names_of(ranking: Ranking) -> frozenset[str]:
    """Every type that the score tells from others; the empty name stands for all the rest."""
    return frozenset({UNLISTED, *(type_.name for type_ in ranking.types), *_named_types(ranking)})


@lru_cache(maxsize=1024)
def _named_types(ranking: Ranking) -> frozenset[str]:
    named = (node.names for node in nodes_of(combined(ranking)) if isinstance(node, TypeIn | TypeNotIn | Case))
    return frozenset(name for names in named for name in names)
