"""States of stored memories, as filters for counting; each memory has exactly one state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentmemory_operator.memories.rules.expiry import expired_condition
from agentmemory_operator.memories.rules.filters import (
    IS_PENDING,
    NOT_DELETED,
    NOT_PENDING,
    NOT_SUPERSEDED,
    Condition,
    Filter,
    equals,
)
from agentmemory_operator.search.rules.score_trees import EFFECTIVE_CONFIDENCE, build_terms
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DEFAULT_CONFIDENCE, ScoreInput, values_of
from agentmemory_operator.spec.memory_types import MemoryType

State = Literal["active", "superseded", "hidden", "expired", "pending"]
STATES: tuple[State, ...] = ("active", "superseded", "hidden", "expired", "pending")

DECAY_KEYS = ("type", "createdAt", "confidence", "lastAccessedAt")
"""Payload keys that the effective confidence depends on."""

DECAYED_BELOW = 0.5

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Period:
    """Active memories that were created within some whole days.

    Attributes:
        start_ms: Start of the first day in UTC, Unix milliseconds.
    """

    start_ms: int
    days: int
    memories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts of the memories of an agent, or of a user.

    Attributes:
        types: Counts by type, then by state; zero counts are omitted.
        decayed: Number of active memories with an effective confidence below 0.5; None if the scoring model is not
            Confidence, or more than 10,000 memories are active.
        oldest, newest: Smallest and largest createdAt of active memories, Unix milliseconds; None if there are none.
    """

    types: Mapping[str, Mapping[State, int]]
    decayed: int | None
    oldest: int | None
    newest: int | None

    def of_state(self, state: State) -> int:
        """Return the number of memories of all types in a state."""
        return sum(counts.get(state, 0) for counts in self.types.values())


def state_filters(user_id: str | None, types: Sequence[MemoryType], now_ms: int) -> dict[State, Filter]:
    """Return the filter of each state; every memory of these users matches exactly one.

    Args:
        user_id: None selects all users.
        types: Types whose rules end memories, see `Ranking.endings`.
    """
    owned = [] if user_id is None else [equals("userId", user_id)]
    stored = [*owned, NOT_DELETED, NOT_PENDING]
    expired = _any_of([{"key": "expiresAt", "range": {"lte": now_ms}}, *_past(types, now_ms, removes=True)])
    hidden = _any_of(_past(types, now_ms, removes=False))
    present = [*stored, _none_of(expired)]
    visible = [*present, _none_of(hidden)]
    return {
        "active": {"must": [*visible, NOT_SUPERSEDED]},
        "superseded": {"must": [*visible, _none_of(NOT_SUPERSEDED)]},
        "hidden": {"must": [*present, hidden]},
        "expired": {"must": [*stored, expired]},
        "pending": {"must": [*owned, NOT_DELETED, IS_PENDING]},
    }


def split_days(oldest: int, newest: int, max_periods: int) -> tuple[range, int]:
    """Return the starts of equally long periods that contain two times, and their length in days.

    Args:
        oldest, newest: Unix milliseconds.
    """
    first, last = oldest // DAY_MS, newest // DAY_MS
    days = -(-(last - first + 1) // max_periods)
    return range(first * DAY_MS, (last + 1) * DAY_MS, days * DAY_MS), days


def count_decayed(payloads: Iterable[Mapping[str, Any]], ranking: Ranking, now_ms: int) -> int:
    """Count memories with an effective confidence below 0.5. The scoring model must be Confidence.

    Args:
        payloads: Payloads with the keys `DECAY_KEYS`; `type` and `createdAt` are required.
    """
    effective = build_terms(ranking)[EFFECTIVE_CONFIDENCE]
    values = (
        values_of(
            ScoreInput(
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
    return sum(effective.evaluate(value) < DECAYED_BELOW for value in values)


def _past(types: Sequence[MemoryType], now_ms: int, *, removes: bool) -> list[Condition]:
    expiring = [(type_.name, type_.ttl) for type_ in types if type_.ttl and type_.ttl.expires]
    return [expired_condition(name, ttl, now_ms) for name, ttl in expiring if ttl.removes == removes]


def _any_of(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that at least one of some conditions holds. No memory meets it if there are none."""
    return {"should": list(conditions)} if conditions else {"has_id": []}


def _none_of(condition: Condition) -> Condition:
    return {"must_not": [condition]}
