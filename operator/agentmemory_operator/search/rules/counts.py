"""What there is to count of an agent's memories, as filters: each stored memory is in one state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentmemory_operator.memories.rules.expiry import past_condition
from agentmemory_operator.memories.rules.filters import (
    IS_PENDING,
    NOT_DELETED,
    NOT_PENDING,
    NOT_SUPERSEDED,
    Condition,
    Filter,
    equals,
)
from agentmemory_operator.search.rules.score_trees import EFFECTIVE_CONFIDENCE, terms_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DEFAULT_CONFIDENCE, Scored, values_of
from agentmemory_operator.spec.memory_types import MemoryType

State = Literal["active", "superseded", "hidden", "expired", "pending"]
STATES: tuple[State, ...] = ("active", "superseded", "hidden", "expired", "pending")

DECAY_KEYS = ("type", "createdAt", "confidence", "lastAccessedAt")
"""What of a payload says how much of a memory's confidence is left."""

HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts of an agent's memories, or of a user's.

    Attributes:
        types: by type, then by state; only what there is.
        decayed: active memories whose confidence has faded below .5; None where the scoring model knows no such thing,
            or they are too many to look at.
        oldest, newest: createdAt of active memories, Unix milliseconds; None where there is none.
    """

    types: Mapping[str, Mapping[State, int]]
    decayed: int | None
    oldest: int | None
    newest: int | None

    def of_state(self, state: State) -> int:
        """How many memories of any type are in the state."""
        return sum(counts.get(state, 0) for counts in self.types.values())


def state_filters(user_id: str | None, types: Sequence[MemoryType], now_ms: int) -> dict[State, Filter]:
    """The filter of each state: every memory that is no tombstone passes one of them.

    Args:
        user_id: None is every user.
        types: of the object.
    """
    owned = [] if user_id is None else [equals("userId", user_id)]
    stored = [*owned, NOT_DELETED, NOT_PENDING]
    expired = _any_of([{"key": "expiresAt", "range": {"lte": now_ms}}, *_past(types, now_ms, removes=True)])
    hidden = _any_of(_past(types, now_ms, removes=False))
    present = [*stored, _none_of(expired)]
    seen = [*present, _none_of(hidden)]
    return {
        "active": {"must": [*seen, NOT_SUPERSEDED]},
        "superseded": {"must": [*seen, _none_of(NOT_SUPERSEDED)]},
        "hidden": {"must": [*present, hidden]},
        "expired": {"must": [*stored, expired]},
        "pending": {"must": [*owned, NOT_DELETED, IS_PENDING]},
    }


def count_decayed(payloads: Iterable[Mapping[str, Any]], ranking: Ranking, now_ms: int) -> int:
    """How many memories' effective confidence is below .5; the scoring model has one."""
    effective = terms_of(ranking)[EFFECTIVE_CONFIDENCE]
    values = (
        values_of(
            Scored(
                type=payload["type"],
                similarity=0.0,
                created_at=payload["createdAt"],
                confidence=payload.get("confidence", DEFAULT_CONFIDENCE),
                last_accessed_at=payload.get("lastAccessedAt"),
            ),
            now_ms=now_ms,
        )
        for payload in payloads
    )
    return sum(effective.evaluate(value) < HALF for value in values)


def _past(types: Sequence[MemoryType], now_ms: int, *, removes: bool) -> list[Condition]:
    mortal = [(type_.name, type_.ttl) for type_ in types if type_.ttl and type_.ttl.ends]
    return [past_condition(name, ttl, now_ms) for name, ttl in mortal if ttl.removes == removes]


def _any_of(conditions: Sequence[Condition]) -> Condition:
    """The condition that one of them holds; of none that no memory meets."""
    return {"should": list(conditions)} if conditions else {"has_id": []}


def _none_of(condition: Condition) -> Condition:
    return {"must_not": [condition]}
