"""The variables of scoring expressions: what they are, between what they lie, and how the engine gets them.

Sources of the ranges: `docs/scoring.md`, and the bounds that the API holds memories to.
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
    OwnOr,
    Ranges,
    Target,
    Values,
    Var,
)
from agentmemory_operator.spec.memory_types import MemoryType

DAY_MS = 86_400_000

SIMILARITY, KEYWORD = "similarity", "keyword"
AGE_DAYS, IDLE_DAYS, HALF_LIFE_DAYS = "ageDays", "idleDays", "halfLifeDays"
IMPORTANCE, ACCESS_COUNT, CONFIDENCE, DECAY_RATE = "importance", "accessCount", "confidence", "decayRate"
TYPE = "type"
TERSE, AUTHOR, TIME, ASKED, DATE = EVIDENCE = ("terse", "author", "time", "asked", "date")
"""Evidence that a memory answers the question: `search/rules/clues.py` says what each is."""

DEFAULT_IMPORTANCE, DEFAULT_ACCESS_COUNT, DEFAULT_CONFIDENCE = 0.5, 0, 1.0
DEFAULT_DECAY_RATE = 0.01
MAX_DECAY_RATE = 10.0

# In place of the half-life of a type that never fades; a number must stand there. float32 holds it.
NEVER_DAYS = float(2**40)
# Nobody says how fast a type that the object no longer lists ages.
UNLISTED_HALF_LIFE_DAYS, UNLISTED_RECENCY = 365.0, 0.5

# The engine's cosine goes a little beyond 1 by rounding; the inner product has no bound of its own.
SIMILARITIES: Mapping[str, Interval] = MappingProxyType(
    {"Cosine": Interval(-1.00001, 1.00001), "Euclid": Interval(0.0, 1.0), "Dot": Interval(-1e4, 1e4)}
)
_LONGEST_DAYS = 1e6
RANGES: Mapping[str, Interval] = MappingProxyType(
    {
        KEYWORD: Interval(0.0, 1.0),
        AGE_DAYS: Interval(0.0, _LONGEST_DAYS),
        IDLE_DAYS: Interval(0.0, _LONGEST_DAYS),
        IMPORTANCE: Interval(0.0, 1.0),
        ACCESS_COUNT: Interval(0.0, 1e9),
        CONFIDENCE: Interval(0.0, 1.0),
        DECAY_RATE: Interval(0.0, MAX_DECAY_RATE),
        **dict.fromkeys(EVIDENCE, Interval(0.0, 1.0)),
    }
)
NAMES = (SIMILARITY, *RANGES, HALF_LIFE_DAYS, TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What of a memory, and of its match with the query, the score depends on.

    Attributes:
        created_at, last_accessed_at: Unix milliseconds; a memory that was never accessed is idle since it was created.
        keyword: keyword score, 0..1.
        decay_rate: the memory's own, a day; None is that of its type.
        evidence: numbers 0..1 by the name of the variable; what is not named is 0.
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


def values_of(memory: Scored, *, now_ms: int) -> Values:
    """The variables' values for one memory."""
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
    own = {} if memory.decay_rate is None else {DECAY_RATE: memory.decay_rate}
    return Values(memory.type, numbers | own, memory.tags)


# A variable that a point lacks fails the whole query unless it has a default.
DEFAULTS: Mapping[str, float] = MappingProxyType(
    {
        "importance": DEFAULT_IMPORTANCE,
        "accessCount": DEFAULT_ACCESS_COUNT,
        "confidence": DEFAULT_CONFIDENCE,
        # What a point lacks of these is added by a condition beside them.
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
    """The optional payload keys from which the engine reads these variables."""
    return frozenset(key for name in names for key in _PAYLOAD_KEYS.get(name, ()))


def target_of(
    *,
    now: Formula,
    similarity: Formula,
    keyword: Formula,
    ranges: Ranges,
    has_extremes: bool = False,
    evidence: Mapping[str, Formula] = MappingProxyType({}),
) -> Target:
    """The target of a compilation.

    Args:
        now: Unix milliseconds, of a time that float32 does not hold: `split_constant`.
        similarity, keyword: the formulas that give them from the scores of the prefetches.
        has_extremes: the server knows `min` and `max`.
        evidence: the formulas of its variables; those that are not named are 0.
    """
    last = {"sum": ["lastAccessedAt", {"mult": [{"is_empty": {"key": "lastAccessedAt"}}, "createdAt"]}]}
    plain = Target({}, has_extremes=has_extremes)
    variables = {
        **dict.fromkeys(EVIDENCE, 0.0),
        **evidence,
        SIMILARITY: similarity,
        KEYWORD: keyword,
        AGE_DAYS: _days_since("createdAt", now, plain),
        IDLE_DAYS: _days_since(last, now, plain),
        IMPORTANCE: "importance",
        ACCESS_COUNT: "accessCount",
        CONFIDENCE: "confidence",
        DECAY_RATE: "decayRate",
    }
    return Target(variables, ranges, has_extremes)


def _days_since(time: Formula, now: Formula, plain: Target) -> Formula:
    """The days since a time as a formula; a time in the future is now."""
    elapsed = {"sum": [now, {"neg": time}]}
    # The day is a constant that float32 holds exactly.
    days = {"div": {"left": elapsed, "right": float(DAY_MS)}}
    if plain.has_extremes:
        return {"max": [days, 0.0]}
    return {"mult": [0.5, {"sum": [days, {"abs": days}]}]}


def ranges_of(distance: str) -> Ranges:
    """The range of each variable over all memories, in a collection with this distance."""
    return Ranges({**RANGES, SIMILARITY: SIMILARITIES[distance]})


def variable(name: str, types: Sequence[MemoryType]) -> Expression:
    """The expression that a variable's name stands for."""
    if name == HALF_LIFE_DAYS:
        return half_life_of(types)
    return decay_rate_of(types, Const(DEFAULT_DECAY_RATE)) if name == DECAY_RATE else Var(name)


def half_life_of(types: Sequence[MemoryType]) -> Expression:
    """The half-life of the memory's type in days."""
    return _by_half_life(types, lambda days: Const(NEVER_DAYS if days is None else days), UNLISTED_HALF_LIFE_DAYS)


def recency_of(types: Sequence[MemoryType], age: Expression) -> Expression:
    """The recency by the half-life of the memory's type; types of equal half-life share a term."""
    return _by_half_life(types, lambda days: Const(1.0) if days is None else Decay(age, Const(days)), UNLISTED_RECENCY)


def decay_rate_of(types: Sequence[MemoryType], rate: Expression) -> Expression:
    """The memory's own decay rate, else `rate`, and 0 for a type that does not fade."""
    return OwnOr(DECAY_RATE, unless_kept(types, Const(0.0), rate))


def unless_kept(types: Sequence[MemoryType], kept: Expression, fading: Expression) -> Expression:
    """`fading`, and `kept` for the types that do not fade; without listed types `kept` alone."""
    if not types:
        return kept
    names = tuple(type_.name for type_ in types if type_.half_life_days is None)
    return ByType((Case(names, kept),), fading) if names else fading


def _by_half_life(
    types: Sequence[MemoryType], value: Callable[[float | None], Expression], unlisted: float
) -> Expression:
    if not types:
        return value(None)
    names: dict[float | None, list[str]] = defaultdict(list)
    for type_ in types:
        names[type_.half_life_days].append(type_.name)
    return ByType(tuple(Case(tuple(each), value(days)) for days, each in names.items()), Const(unlisted))
