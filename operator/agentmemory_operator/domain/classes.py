"""Classes of memories that may rank high without being among the nearest, as conditions and as boxes of variables."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentmemory_operator.domain.filters import Condition
from agentmemory_operator.domain.intervals import Interval
from agentmemory_operator.domain.taxonomy import MemoryType
from agentmemory_operator.domain.variables import ACCESS_COUNT, AGE_DAYS, DAY_MS, DEFAULT_IMPORTANCE, IMPORTANCE, RANGES

Box = Mapping[str, Interval]
"""Between what some variables lie; the others have any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClass:
    """Memories that are at least this new, important and used; of a type that does not fade, all are new."""

    recency: float = 0.0
    importance: float = 0.0
    accesses: int = 0

    def condition(self, types: Sequence[MemoryType], now_ms: int) -> Condition:
        """Return the condition that holds for the memories of the class."""
        must: list[Condition] = [self._is_new(types, now_ms)] if self.recency else []
        if self.importance:
            must.append(self._is_important())
        if self.accesses:
            must.append({"key": "accessCount", "range": {"gte": self.accesses}})
        return {"must": must}

    def box(self, type_: MemoryType | None) -> Box | None:
        """Return a box all of whose memories of a type are in the class, None where it has no such memories.

        Args:
            type_: None is a type that the object does not list.
        """
        if self.recency and type_ is None:
            return None
        box: dict[str, Interval] = {}
        if self.recency and type_ is not None and type_.half_life_days is not None:
            box[AGE_DAYS] = Interval(0.0, self._oldest_ms(type_.half_life_days) / DAY_MS)
        if self.importance:
            box[IMPORTANCE] = Interval(self.importance, RANGES[IMPORTANCE].high)
        if self.accesses:
            box[ACCESS_COUNT] = Interval(self.accesses, RANGES[ACCESS_COUNT].high)
        return box

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
        since_ms = now_ms - self._oldest_ms(half_life_days)
        return {"must": [is_of_type, {"key": "createdAt", "range": {"gte": since_ms}}]}

    def _oldest_ms(self, half_life_days: float) -> int:
        return int(math.log2(1 / self.recency) * half_life_days * DAY_MS)


EVERYTHING = MemoryClass()
NEW = MemoryClass(recency=0.9)
USED = MemoryClass(importance=0.75, accesses=3)
RATHER_NEW_AND_USED = MemoryClass(recency=0.5, importance=0.5, accesses=3)
NEW_AND_MUCH_USED = MemoryClass(recency=0.85, importance=0.6, accesses=5)
