"""Classes of memories that may rank high without being among the nearest: as conditions, and as boxes of variables."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentmemory_operator.memories.rules.filters import Condition
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.variables import (
    ACCESS_COUNT,
    AGE_DAYS,
    DAY_MS,
    DEFAULT_IMPORTANCE,
    IDLE_DAYS,
    IMPORTANCE,
    RANGES,
)
from agentmemory_operator.spec.memory_types import MemoryType

Box = Mapping[str, Interval]
"""Ranges of some variables. Variables that are absent are unrestricted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClass:
    """Conditions that the memories of a class must all meet. The defaults allow every memory.

    Attributes:
        recency: Minimum recency by the half-life of the type, 0..1. All memories of a type that does not decay have it.
        importance, accesses: Minimum importance, 0..1, and minimum number of accesses.
        age_days, idle_days: Maximum days since creation, and since the last access. Infinity allows any.
        type_names: Only these types; empty is any.
    """

    recency: float = 0.0
    age_days: float = math.inf
    idle_days: float = math.inf
    importance: float = 0.0
    accesses: int = 0
    type_names: tuple[str, ...] = ()

    def condition(self, types: Sequence[MemoryType], now_ms: int) -> Condition:
        """Return the filter condition for the memories that belong to the class at `now_ms`."""
        # Add no condition on recency if no types are listed: then nothing decays, and all memories are new.
        must: list[Condition] = [self._is_new(types, now_ms)] if self.recency and types else []
        must.extend(self._is_recent(now_ms))
        if self.importance:
            must.append(self._is_important())
        if self.accesses:
            must.append({"key": "accessCount", "range": {"gte": self.accesses}})
        if self.type_names:
            must.append({"key": "type", "match": {"any": list(self.type_names)}})
        return {"must": must}

    def box(self, type_: MemoryType | None) -> Box | None:
        """Return a box in which all memories of a type belong to the class.

        None if the class excludes the type, or requires a recency and the half-life of the type is unknown.

        Args:
            type_: None for a type that the object does not list.
        """
        name = None if type_ is None else type_.name
        if (self.recency and type_ is None) or (self.type_names and name not in self.type_names):
            return None
        box = {
            AGE_DAYS: Interval(0.0, self._oldest_ms(type_) / DAY_MS),
            IDLE_DAYS: Interval(0.0, _ms(self.idle_days) / DAY_MS),
            IMPORTANCE: Interval(self.importance, RANGES[IMPORTANCE].high),
            ACCESS_COUNT: Interval(self.accesses, RANGES[ACCESS_COUNT].high),
        }
        return {variable: interval for variable, interval in box.items() if interval != RANGES[variable]}

    def _is_recent(self, now_ms: int) -> Iterator[Condition]:
        if math.isfinite(self.age_days):
            yield _is_since("createdAt", now_ms - _ms(self.age_days))
        if math.isfinite(self.idle_days):
            since_ms = now_ms - _ms(self.idle_days)
            # Idle time counts from the last access, else from creation. So it never exceeds the age, and a recent
            # creation suffices.
            yield {"should": [_is_since("lastAccessedAt", since_ms), _is_since("createdAt", since_ms)]}

    def _is_important(self) -> Condition:
        is_enough: Condition = {"key": "importance", "range": {"gte": self.importance}}
        if self.importance > DEFAULT_IMPORTANCE:
            return is_enough
        return {"should": [is_enough, {"is_empty": {"key": "importance"}}]}

    def _is_new(self, types: Sequence[MemoryType], now_ms: int) -> Condition:
        names_by_half_life: dict[float | None, list[str]] = defaultdict(list)
        for type_ in types:
            names_by_half_life[type_.half_life_days].append(type_.name)
        return {"should": [self._is_new_of(names, days, now_ms) for days, names in names_by_half_life.items()]}

    def _is_new_of(self, names: list[str], half_life_days: float | None, now_ms: int) -> Condition:
        is_of_type: Condition = {"key": "type", "match": {"any": names}}
        if half_life_days is None:
            return is_of_type
        since_ms = now_ms - self._faded_ms(half_life_days)
        return {"must": [is_of_type, _is_since("createdAt", since_ms)]}

    def _oldest_ms(self, type_: MemoryType | None) -> float:
        if not self.recency or type_ is None or type_.half_life_days is None:
            return _ms(self.age_days)
        return min(_ms(self.age_days), self._faded_ms(type_.half_life_days))

    def _faded_ms(self, half_life_days: float) -> int:
        return int(math.log2(1 / self.recency) * half_life_days * DAY_MS)


def _is_since(key: str, time_ms: int) -> Condition:
    return {"key": key, "range": {"gte": time_ms}}


def _ms(days: float) -> int:
    return int(min(days, RANGES[AGE_DAYS].high) * DAY_MS)


ALL_MEMORIES = MemoryClass()

# Classes that may rank high, by the variables that the score depends on. Source of the numbers: `docs/adr/0006`.
BY_TIME = (MemoryClass(recency=0.9),)
BY_USE = (MemoryClass(importance=0.75, accesses=3),)
BY_TIME_AND_USE = (
    MemoryClass(recency=0.9),
    MemoryClass(recency=0.5, importance=0.5, accesses=3),
    MemoryClass(recency=0.85, importance=0.6, accesses=5),
    MemoryClass(recency=0.97, importance=0.7, accesses=3),
)
BY_IDLENESS = (MemoryClass(idle_days=10), MemoryClass(idle_days=30))
BY_IDLENESS_AND_ACCESSES = (MemoryClass(idle_days=30, accesses=3), MemoryClass(idle_days=20, accesses=20))
BY_IDLENESS_AND_IMPORTANCE = (
    MemoryClass(idle_days=5, importance=0.5),
    MemoryClass(idle_days=15, importance=0.7),
    MemoryClass(idle_days=2, importance=0.5),
)
BY_HORIZON = (MemoryClass(age_days=1), MemoryClass(age_days=7), MemoryClass(age_days=7, importance=0.6))
