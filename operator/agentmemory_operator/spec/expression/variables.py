"""The variables of scoring expressions: their ranges, their values for a memory, and their formulas in Qdrant.

Sources of the ranges: `docs/scoring.md`, and the limits that the API enforces on memories.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agentmemory_operator.spec.expression.formulas import Formula
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.tree import (
    ByType,
    Case,
    Const,
    Decay,
    Expression,
    Ranges,
    Target,
    Values,
    Var,
    VarOrDefault,
)
from agentmemory_operator.spec.memory_types import MemoryType

DAY_MS = 86_400_000

SIMILARITY, KEYWORD = "similarity", "keyword"
AGE_DAYS, IDLE_DAYS, HALF_LIFE_DAYS = "ageDays", "idleDays", "halfLifeDays"
IMPORTANCE, ACCESS_COUNT, CONFIDENCE, DECAY_RATE = "importance", "accessCount", "confidence", "decayRate"
TYPE = "type"
TERSE, AUTHOR, TIME, ASKED, DATE = EVIDENCE = ("terse", "author", "time", "asked", "date")
"""Variables for evidence that a memory answers the question. `search/rules/query_features.py` defines each."""

DEFAULT_IMPORTANCE, DEFAULT_ACCESS_COUNT, DEFAULT_CONFIDENCE = 0.5, 0, 1.0
DEFAULT_DECAY_RATE = 0.01
MAX_DECAY_RATE = 10.0

# Half-life of a type that never fades, where the formula needs a number. Exact in float32.
NEVER_DAYS = float(2**40)
# Half-life and recency of memories whose type the object does not list, if it lists any.
UNLISTED_HALF_LIFE_DAYS, UNLISTED_RECENCY = 365.0, 0.5

# Rounding can make Qdrant's cosine slightly larger than 1. The inner product has no bound, so this bound is assumed.
SIMILARITIES: Mapping[str, Interval] = MappingProxyType(
    {"Cosine": Interval(-1.00001, 1.00001), "Euclid": Interval(0.0, 1.0), "Dot": Interval(-1e4, 1e4)}
)
_MAX_DAYS = 1e6
RANGES: Mapping[str, Interval] = MappingProxyType(
    {
        KEYWORD: Interval(0.0, 1.0),
        AGE_DAYS: Interval(0.0, _MAX_DAYS),
        IDLE_DAYS: Interval(0.0, _MAX_DAYS),
        IMPORTANCE: Interval(0.0, 1.0),
        ACCESS_COUNT: Interval(0.0, 1e9),
        CONFIDENCE: Interval(0.0, 1.0),
        DECAY_RATE: Interval(0.0, MAX_DECAY_RATE),
        **dict.fromkeys(EVIDENCE, Interval(0.0, 1.0)),
    }
)
NAMES = (SIMILARITY, *RANGES, HALF_LIFE_DAYS, TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInput:
    """Input of a score: fields of a memory, and its match with the query.

    Attributes:
        created_at, last_accessed_at: Unix milliseconds. If `last_accessed_at` is None, idle time counts from creation.
        keyword: Keyword score, 0..1.
        decay_rate: Decay rate of the memory itself, per day. None uses the model's rate, or 0 if the type does not
            fade.
        evidence: Values 0..1 by the name of the variable. A missing value counts as 0.
    """

    type: str
    similarity: float
    created_at: int
    importance: float = DEFAULT_IMPORTANCE
    access_count: int = DEFAULT_ACCESS_COUNT
    confidence: float = DEFAULT_CONFIDENCE
    decay_rate: float | None = None
    last_accessed_at: int | None = None
    tags: tuple[str, ...] = ()
    keyword: float = 0.0
    evidence: Mapping[str, float] = field(default_factory=dict)


def values_of(memory: ScoreInput, *, now_ms: int) -> Values:
    """Return the values of the variables for one memory. A time after `now_ms` counts as now."""
    last_ms = memory.created_at if memory.last_accessed_at is None else memory.last_accessed_at
    numbers: dict[str, float] = {
        **dict.fromkeys(EVIDENCE, 0.0),
        **memory.evidence,
        SIMILARITY: memory.similarity,
        KEYWORD: memory.keyword,
        AGE_DAYS: max(0, now_ms - memory.created_at) / DAY_MS,
        IDLE_DAYS: max(0, now_ms - last_ms) / DAY_MS,
        IMPORTANCE: memory.importance,
        ACCESS_COUNT: memory.access_count,
        CONFIDENCE: memory.confidence,
    }
    decay = {} if memory.decay_rate is None else {DECAY_RATE: memory.decay_rate}
    return Values(memory.type, numbers | decay, memory.tags)


# Defaults of the variables that points may lack. Without a default, a query fails at such a point.
DEFAULTS: Mapping[str, float] = MappingProxyType(
    {
        "importance": DEFAULT_IMPORTANCE,
        "accessCount": DEFAULT_ACCESS_COUNT,
        "confidence": DEFAULT_CONFIDENCE,
        # 0, because the formula itself adds the default if the point lacks the key.
        "decayRate": 0,
        "lastAccessedAt": 0,
    }
)
_PAYLOAD_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        IMPORTANCE: ("importance",),
        ACCESS_COUNT: ("accessCount",),
        CONFIDENCE: ("confidence",),
        DECAY_RATE: ("decayRate",),
        IDLE_DAYS: ("lastAccessedAt",),
    }
)


def payload_keys_of(names: Iterable[str]) -> frozenset[str]:
    """Return the optional payload keys from which Qdrant reads these variables."""
    return frozenset(key for name in names for key in _PAYLOAD_KEYS.get(name, ()))


def build_target(
    *,
    now: Formula,
    similarity: Formula,
    keyword: Formula,
    ranges: Ranges,
    has_extremes: bool = False,
    evidence: Mapping[str, Formula] = MappingProxyType({}),
) -> Target:
    """Return the context of a compilation.

    Args:
        now: Formula of the current time in Unix milliseconds. float32 cannot represent it: use `split_constant`.
        similarity, keyword: Formulas of these variables, from the scores of the prefetches.
        ranges: Bounds of the variables.
        has_extremes: True if the server supports `min` and `max`.
        evidence: Formulas of the evidence variables. A missing one is 0.
    """
    last_use = {"sum": ["lastAccessedAt", {"mult": [{"is_empty": {"key": "lastAccessedAt"}}, "createdAt"]}]}
    context = Target({}, has_extremes=has_extremes)
    variables = {
        **dict.fromkeys(EVIDENCE, 0.0),
        **evidence,
        SIMILARITY: similarity,
        KEYWORD: keyword,
        AGE_DAYS: _days_since("createdAt", now, context),
        IDLE_DAYS: _days_since(last_use, now, context),
        IMPORTANCE: "importance",
        ACCESS_COUNT: "accessCount",
        CONFIDENCE: "confidence",
        DECAY_RATE: "decayRate",
    }
    return Target(variables, ranges, has_extremes)


def _days_since(time: Formula, now: Formula, context: Target) -> Formula:
    """Return the formula of the days since a time. A time in the future counts as now."""
    elapsed = {"sum": [now, {"neg": time}]}
    # Divide by the milliseconds of a day, which float32 represents exactly.
    days = {"div": {"left": elapsed, "right": float(DAY_MS)}}
    if context.has_extremes:
        return {"max": [days, 0.0]}
    return {"mult": [0.5, {"sum": [days, {"abs": days}]}]}


def ranges_of(distance: str) -> Ranges:
    """Return the range of each variable over all memories. The collection's distance decides that of `similarity`."""
    return Ranges({**RANGES, SIMILARITY: SIMILARITIES[distance]})


def variable(name: str, types: Sequence[MemoryType]) -> Expression:
    """Return the expression of a variable. Half-life and decay rate depend on the listed types."""
    if name == HALF_LIFE_DAYS:
        return half_life_of(types)
    return decay_rate_of(types, Const(DEFAULT_DECAY_RATE)) if name == DECAY_RATE else Var(name)


def half_life_of(types: Sequence[MemoryType]) -> Expression:
    """Return the expression of the half-life of the memory's type, in days.

    It is 2**40 for a type that does not decay or if no types are listed, and 365 for an unlisted type otherwise.
    """
    return _by_half_life(types, lambda days: Const(NEVER_DAYS if days is None else days), UNLISTED_HALF_LIFE_DAYS)


def recency_of(types: Sequence[MemoryType], age: Expression) -> Expression:
    """Return the expression of the recency by the half-life of the memory's type.

    It is 1 for a type that does not decay or if no types are listed, and 0.5 for an unlisted type otherwise. Types with
    the same half-life share a term.
    """
    return _by_half_life(types, lambda days: Const(1.0) if days is None else Decay(age, Const(days)), UNLISTED_RECENCY)


def decay_rate_of(types: Sequence[MemoryType], rate: Expression) -> Expression:
    """Return the expression of the decay rate: the memory's own, else 0 for a type that does not fade, else `rate`.

    Without listed types, no type fades.
    """
    return VarOrDefault(DECAY_RATE, by_fading(types, Const(0.0), rate))


def by_fading(types: Sequence[MemoryType], steady: Expression, fading: Expression) -> Expression:
    """Return `steady` for the types that do not fade and `fading` for others. Without listed types it is `steady`."""
    if not types:
        return steady
    names = tuple(type_.name for type_ in types if type_.half_life_days is None)
    return ByType((Case(names, steady),), fading) if names else fading


def _by_half_life(
    types: Sequence[MemoryType], value: Callable[[float | None], Expression], unlisted: float
) -> Expression:
    if not types:
        return value(None)
    names: dict[float | None, list[str]] = defaultdict(list)
    for type_ in types:
        names[type_.half_life_days].append(type_.name)
    return ByType(tuple(Case(tuple(type_names), value(days)) for days, type_names in names.items()), Const(unlisted))
