"""Decide which memories a cleanup removes, and for which reason: pure functions over rows.

A reason applies either to one row or to the row's surroundings:
- One row (`own_reason`): expired, past the time to live of its type, hidden for too long, decayed or pruned.
- A chain (`chain_removals`): the middle versions of a chain that is too long.
- A user (`value_rank`): the least valuable memories of a user above the cap.

Invariant: a cleanup makes no hidden memory visible, because removing a head also removes its earlier versions. The
exception is a head that ends with its session: earlier versions that outlast the session become visible again.

A pinned memory is never removed. The head of a chain with a pinned version is removed only if it ends with its session.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentmemory_operator.memories.rules.expiry import expired_condition, hidden_since_ms, is_expired_by_type, ttl_of
from agentmemory_operator.memories.rules.filters import NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED, Condition, Filter
from agentmemory_operator.memories.rules.links import LINK_KEYS, is_merged, predecessors
from agentmemory_operator.memories.rules.record import ORDER_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.search.rules.score_trees import build_priority
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Priority
from agentmemory_operator.spec.expression.variables import DAY_MS, UNLISTED_RECENCY, ScoreInput, values_of
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY, MemoryType, Ttl
from agentmemory_operator.spec.presets import Lifecycle, PruneCriteria

ROW_KEYS = (
    *("id", "agentId", "userId", "type", "createdAt", "rev", "importance", "accessCount", "lastAccessedAt"),
    *("confidence", "expiresAt", *LINK_KEYS, "pinned", "requestId", "identityId", ORDER_KEY),
    *("storedAt", SESSION_USED_KEY, TOMBSTONE_KEY, "pending"),
)
"""Payload keys that a cleanup reads. None of them contains text."""

IS_PINNED: Condition = {"key": "pinned", "match": {"value": True}}
IS_CHAIN_HEAD: Filter = {
    "must": [NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED],
    "must_not": [{"is_empty": {"key": "supersedesId"}}],
}

Row = Mapping[str, Any]
"""Payload with at least the keys in `ROW_KEYS`."""


class RemovalReason(StrEnum):
    """Reason for removing a memory. `docs/lifecycle.md` explains each."""

    EXPIRED = "expired"
    TTL = "ttl"
    SESSION = "session"
    HIDDEN = "hidden"
    DECAYED = "decayed"
    PRUNED = "pruned"
    CHAIN = "chain"
    OVER_CAP = "overCap"


UNLIMITED_REASONS = frozenset({RemovalReason.EXPIRED, RemovalReason.SESSION})
"""Reasons that do not count towards the removal limit. The author chose the end, and no call reads the memory now."""

SESSION_GRACE_MS = 600_000
"""Milliseconds between the end of a session and the removal of its memories.

A use may be recorded up to half a minute late, by a process with a different clock.
"""


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """Settings of one object that a cleanup applies, at a fixed time.

    Attributes:
        lifecycle: Lifecycle settings of the object.
        types: Memory types of the object. Empty if it accepts any type.
        now_ms: Time at which the rules apply, Unix milliseconds; the same for the whole run.
        priority: Parameters of the priority score that pruning uses.
        unlisted: Types that end with their session if the object accepts any type.
    """

    lifecycle: Lifecycle
    types: tuple[MemoryType, ...]
    now_ms: int
    priority: Priority = field(default_factory=Priority)
    unlisted: tuple[MemoryType, ...] = ()

    @property
    def types_with_ttl(self) -> tuple[MemoryType, ...]:
        """Memory types whose time to live applies: `types`, or `unlisted` if there are none."""
        return self.types or self.unlisted


def build_rules(lifecycle: Lifecycle, ranking: Ranking, now_ms: int) -> CleanupRules:
    """Build the rules of an object at a time.

    The priority comes from the object's ranking model; any other model gives the default parameters.
    """
    model = ranking.model
    priority = model if isinstance(model, Priority) else Priority()
    return CleanupRules(lifecycle, ranking.types, now_ms, priority, ranking.unlisted)


def own_reason(row: Row, rules: CleanupRules) -> RemovalReason | None:
    """Return the reason to remove a row regardless of its chain, or None to keep it. A pinned row has none."""
    if row.get("pinned"):
        return None
    expires_at = row.get("expiresAt")
    if expires_at is not None and expires_at <= rules.now_ms:
        return RemovalReason.EXPIRED
    ttl = ttl_of(row, rules.types_with_ttl)
    if ttl is not None and (reason := _ended(row, ttl, rules)):
        return reason
    if _recency(row, rules) < (rules.lifecycle.decay_floor or 0):
        return RemovalReason.DECAYED
    prune = rules.lifecycle.prune
    return RemovalReason.PRUNED if prune is not None and _is_pruned(row, prune, rules) else None


def candidate_filter(rules: CleanupRules, *, heads: bool) -> Filter:
    """Build the filter for rows that may have a reason of their own.

    It matches every such row and possibly others. `own_reason` decides about each.

    Args:
        heads: True for memories without a successor, False for earlier versions.
    """
    floor = rules.lifecycle.decay_floor
    should: list[Condition] = [{"key": "expiresAt", "range": {"lte": rules.now_ms}}]
    for type_ in rules.types_with_ttl:
        if type_.ttl and type_.ttl.expires:
            should.extend(_ended_condition(type_.name, type_.ttl, rules))
    for type_ in rules.types:
        if type_.half_life_days and floor:
            days = type_.half_life_days * math.log2(1 / floor)
            should.append({"must": [{"key": "type", "match": {"value": type_.name}}, _created_by(rules.now_ms, days)]})
    if rules.lifecycle.prune:
        should.append(_created_by(rules.now_ms, rules.lifecycle.prune.older_than_days))
    head_condition = NOT_SUPERSEDED if heads else {"must_not": [NOT_SUPERSEDED]}
    return {"must": [NOT_DELETED, NOT_PENDING, head_condition, {"should": should}], "must_not": [IS_PINNED]}


def removable_chain(chain: Sequence[Row]) -> Sequence[Row]:
    """Return the rows to remove together with a head.

    Args:
        chain: Versions, oldest first.

    Returns:
        The whole chain, or nothing if one of its versions is pinned.
    """
    return () if any(row.get("pinned") for row in chain) else chain


def lasting_length(chain: Sequence[Row], rules: CleanupRules) -> int:
    """Return the length of a chain without the newest versions that are removed for `RemovalReason.SESSION`.

    Args:
        chain: Versions, oldest first.
    """
    length = len(chain)
    while length and own_reason(chain[length - 1], rules) is RemovalReason.SESSION:
        length -= 1
    return length


def surplus_versions(chain: Sequence[Row], rules: CleanupRules) -> list[Row]:
    """Return the middle versions of a chain that exceeds the maximum length.

    The newest versions stay. With a limit of 3 or more, the first version stays too. Predecessors of a merge do not
    count towards the length and stay, so that the merge can be undone. Pinned versions stay.

    Args:
        chain: Versions, oldest first.
    """
    max_length = rules.lifecycle.max_chain_length
    merged = {before_id for row in chain if is_merged(row) for before_id in predecessors(row)}
    chain = [row for row in chain if row["id"] not in merged]
    if max_length is None or len(chain) <= max_length:
        return []
    newest = max_length - 1 if max_length > 2 else max_length
    middle = chain[max_length - newest : len(chain) - newest]
    return [row for row in middle if not row.get("pinned")]


def value_rank(row: Row, rules: CleanupRules) -> tuple[int, float, int, str]:
    """Return the sort key of a row among those of its user, least valuable first.

    Order: earlier versions, then hidden memories, then visible ones. Within each group by importance * (1 + log10(1 +
    accesses)) * recency, then by age and id.
    """
    ttl = ttl_of(row, rules.types_with_ttl)
    group = 0 if row.get("supersededById") else 1 if is_expired_by_type(row, ttl, rules.now_ms) else 2
    utility = row.get("importance", 0.5) * (1 + math.log10(1 + row.get("accessCount", 0)))
    return group, utility * _recency(row, rules), row["createdAt"], row["id"]


def chain_removals(chain: Sequence[Row], rules: CleanupRules) -> Iterator[tuple[Row, RemovalReason]]:
    """Yield the rows of a chain to remove, oldest first, each with its reason.

    A memory without other versions is a chain of one. Versions that outlast the session of their successors stay and
    become visible again, as if a call had ended the session.
    """
    reasons = {row["id"]: own_reason(row, rules) for row in chain}
    lasting_count = lasting_length(chain, rules)
    if 0 < lasting_count < len(chain):
        yield from chain_removals(chain[:lasting_count], rules)
        yield from ((row, RemovalReason.SESSION) for row in chain[lasting_count:])
        return
    head_reason = reasons[chain[-1]["id"]]
    if head_reason and removable_chain(chain):
        for row in chain:
            yield row, reasons[row["id"]] or head_reason
        return
    reasons[chain[-1]["id"]] = None
    remaining = [row for row in chain if reasons[row["id"]] is None]
    reasons |= {row["id"]: RemovalReason.CHAIN for row in surplus_versions(remaining, rules)}
    yield from ((row, reason) for row in chain if (reason := reasons[row["id"]]))


def surplus_of(count: int, rules: CleanupRules) -> int:
    """Return the number of memories that a user has above the cap; 0 without a cap.

    Args:
        count: Number of memories of the user.
    """
    return max(0, count - (rules.lifecycle.max_memories_per_user or count))


def count_limited(counts: Mapping[RemovalReason, int]) -> int:
    """Count the removals that the limit of one run applies to: all except those for `UNLIMITED_REASONS`."""
    return sum(number for reason, number in counts.items() if reason not in UNLIMITED_REASONS)


MIN_ALLOWANCE = 10
"""Removals that are allowed in any run, because a percentage of few memories would allow none."""


def removal_allowance(total: int, lifecycle: Lifecycle) -> int:
    """Return the number of memories that one run may remove without an approval.

    Args:
        total: Number of memories of the agent.
    """
    return max(MIN_ALLOWANCE, total * lifecycle.max_removal_percent // 100)


def _recency(row: Row, rules: CleanupRules) -> float:
    listed = next((type_ for type_ in rules.types if type_.name == row["type"]), None)
    if listed is None:
        return UNLISTED_RECENCY if rules.types else 1.0
    if listed.half_life_days is None:
        return 1.0
    return math.pow(0.5, max(0, rules.now_ms - row["createdAt"]) / DAY_MS / listed.half_life_days)


def _is_pruned(row: Row, prune: PruneCriteria, rules: CleanupRules) -> bool:
    if rules.now_ms - row["createdAt"] <= prune.older_than_days * DAY_MS:
        return False
    type_confidence = next((type_.confidence for type_ in rules.types if type_.name == row["type"]), None)
    confidence = row.get("confidence", type_confidence)
    if confidence is not None and confidence >= prune.confidence_below:
        return False
    memory = ScoreInput(
        type=row["type"],
        similarity=0.0,
        created_at=row["createdAt"],
        importance=row.get("importance", 0.5),
        access_count=row.get("accessCount", 0),
    )
    return build_priority(rules.priority).evaluate(values_of(memory, now_ms=rules.now_ms)) < prune.priority_below


def _ended(row: Row, ttl: Ttl, rules: CleanupRules) -> RemovalReason | None:
    """Return the removal reason given by the time to live of the row's type, or None."""
    if not is_expired_by_type(row, ttl, _ended_by_ms(ttl, rules)):
        return None
    if ttl.removes:
        return RemovalReason.TTL if ttl.days is not None else RemovalReason.SESSION
    days = rules.lifecycle.remove_hidden_days
    is_due = days is not None and hidden_since_ms(row, ttl) <= rules.now_ms - round(days * DAY_MS)
    return RemovalReason.HIDDEN if is_due else None


def _ended_condition(name: str, ttl: Ttl, rules: CleanupRules) -> Iterator[Condition]:
    """Yield the condition for rows that `_ended` may remove. Yield nothing if hidden rows of the type are kept."""
    if ttl.removes:
        yield expired_condition(name, ttl, _ended_by_ms(ttl, rules))
    elif rules.lifecycle.remove_hidden_days is not None:
        yield expired_condition(name, ttl, rules.now_ms - round(rules.lifecycle.remove_hidden_days * DAY_MS))


def _ended_by_ms(ttl: Ttl, rules: CleanupRules) -> int:
    return rules.now_ms - (SESSION_GRACE_MS if ttl.days is None else 0)


def _created_by(now_ms: int, days: float) -> Condition:
    """Build the condition for rows at least `days` old. It may match rows up to 2 ms younger: `own_reason` decides."""
    return {"key": "createdAt", "range": {"lte": now_ms - math.floor(days * DAY_MS) + 1}}


def as_row(payload: Payload) -> Row | None:
    """Return a payload as a row, or None for a tombstone and for a point that this project did not write.

    A point without id, user, type, creation time or revision was not written by this project.
    """
    is_stored = {"id", "userId", "type", "createdAt", "rev"} <= payload.keys() and TOMBSTONE_KEY not in payload
    return payload if is_stored else None
