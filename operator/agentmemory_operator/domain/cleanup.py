"""What a cleanup removes, and why: pure decisions over rows.

A row stands for itself (expired, past the time of its type, decayed, pruned), or goes for what stands around it: the
middle of a chain that is too long, the least valuable of a user who has too many. Where a head goes, its earlier
versions go with it: a cleanup never lets a memory answer that did not answer before. A pinned memory stays, and so does
the head of a chain that holds one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentmemory_operator.domain.effective import Ranking
from agentmemory_operator.domain.expiry import is_past, past_condition, ttl_of
from agentmemory_operator.domain.filters import NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED, Condition, Filter
from agentmemory_operator.domain.presets import Lifecycle, Prune
from agentmemory_operator.domain.records import ORDER_KEY, Payload
from agentmemory_operator.domain.scoring_models import Priority
from agentmemory_operator.domain.taxonomy import MemoryType
from agentmemory_operator.domain.trees import priority_of
from agentmemory_operator.domain.variables import DAY_MS, UNLISTED_RECENCY, Scored, values_of

ROW_KEYS = (
    *("id", "agentId", "userId", "type", "createdAt", "rev", "importance", "accessCount", "lastAccessedAt"),
    *("confidence", "expiresAt", "supersedesId", "supersededById", "pinned", "requestId", "identityId", ORDER_KEY),
)
"""What of a payload a cleanup reads; no text."""

IS_PINNED: Condition = {"key": "pinned", "match": {"value": True}}
IS_CHAIN_HEAD: Filter = {
    "must": [NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED],
    "must_not": [{"is_empty": {"key": "supersedesId"}}],
}

Row = Mapping[str, Any]
"""A payload, of it at least `ROW_KEYS`."""


class Removal(StrEnum):
    """Why a memory goes; `docs/lifecycle.md` explains each."""

    EXPIRED = "expired"
    TTL = "ttl"
    DECAYED = "decayed"
    PRUNED = "pruned"
    CHAIN = "chain"
    OVER_CAP = "overCap"


UNBRAKED = frozenset({Removal.EXPIRED})
"""What its author wanted gone, and nobody could read any more: the brake does not count it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """By what a cleanup decides: the object's figures, at one time.

    Attributes:
        now_ms: Unix milliseconds, the same for the whole run.
        priority: figures of the priority that pruning asks.
    """

    lifecycle: Lifecycle
    types: tuple[MemoryType, ...]
    now_ms: int
    priority: Priority = field(default_factory=Priority)


def rules_of(lifecycle: Lifecycle, ranking: Ranking, now_ms: int) -> Rules:
    """Return the rules of an object; the priority is that by which it ranks, else the design's."""
    model = ranking.model
    return Rules(lifecycle, ranking.types, now_ms, model if isinstance(model, Priority) else Priority())


def own_reason(row: Row, rules: Rules) -> Removal | None:
    """Return why a row goes whatever stands around it, None where it does not."""
    if row.get("pinned"):
        return None
    end = row.get("expiresAt")
    if end is not None and end <= rules.now_ms:
        return Removal.EXPIRED
    ttl = ttl_of(row, rules.types)
    if ttl is not None and ttl.removes and is_past(row, ttl, rules.now_ms):
        return Removal.TTL
    if _recency(row, rules) < (rules.lifecycle.decay_floor or 0):
        return Removal.DECAYED
    prune = rules.lifecycle.prune
    return Removal.PRUNED if prune is not None and _is_pruned(row, prune, rules) else None


def candidates(rules: Rules, *, heads: bool) -> Filter:
    """Return the filter of the heads, or of the earlier versions, that may have a reason of their own.

    Each that has one is among them.
    """
    floor = rules.lifecycle.decay_floor
    should: list[Condition] = [{"key": "expiresAt", "range": {"lte": rules.now_ms}}]
    for type_ in rules.types:
        if type_.ttl and type_.ttl.removes and type_.ttl.days:
            should.append(past_condition(type_.name, type_.ttl, rules.now_ms))
        if type_.half_life_days and floor:
            days = type_.half_life_days * math.log2(1 / floor)
            should.append({"must": [_is_type(type_.name), _created_by(rules.now_ms, days)]})
    if rules.lifecycle.prune:
        should.append(_created_by(rules.now_ms, rules.lifecycle.prune.older_than_days))
    place = NOT_SUPERSEDED if heads else {"must_not": [NOT_SUPERSEDED]}
    return {"must": [NOT_DELETED, NOT_PENDING, place, {"should": should}], "must_not": [IS_PINNED]}


def with_chain(chain: Sequence[Row]) -> Sequence[Row]:
    """Return what goes where the head of a chain (oldest first) goes: all of it, or nothing where one is pinned."""
    return () if any(row.get("pinned") for row in chain) else chain


def collapsed(chain: Sequence[Row], rules: Rules) -> list[Row]:
    """Return the middle of a chain (oldest first) that is too long: the newest stay and, of 3 and more, the first."""
    most = rules.lifecycle.max_chain_length
    if most is None or len(chain) <= most:
        return []
    newest = most - 1 if most > 2 else most
    middle = chain[most - newest : len(chain) - newest]
    return [row for row in middle if not row.get("pinned")]


def value_rank(row: Row, rules: Rules) -> tuple[int, float, int, str]:
    """Return the place of a row among those of its user, the least valuable first.

    Earlier versions come before hidden memories, these before those that answer; then by importance * (1 + log10(1 +
    accesses)) * recency, then by age.
    """
    ttl = ttl_of(row, rules.types)
    standing = 0 if row.get("supersededById") else 1 if is_past(row, ttl, rules.now_ms) else 2
    utility = row.get("importance", 0.5) * (1 + math.log10(1 + row.get("accessCount", 0)))
    return standing, utility * _recency(row, rules), row["createdAt"], row["id"]


def plan(rows: Iterable[Row], rules: Rules) -> dict[str, Removal]:
    """Return what goes of all rows of an agent, and why, by id: what a run comes to that nothing disturbs."""
    chains = list(chains_in({row["id"]: row for row in rows}))
    gone = {row["id"]: reason for chain in chains for row, reason in chain_removals(chain, rules)}
    if rules.lifecycle.max_memories_per_user:
        left = [[row for row in chain if row["id"] not in gone] for chain in chains]
        gone |= dict.fromkeys(_over_cap([chain for chain in left if chain], rules), Removal.OVER_CAP)
    return gone


def chain_removals(chain: Sequence[Row], rules: Rules) -> Iterator[tuple[Row, Removal]]:
    """Yield what goes of one chain, oldest first, and why; a memory without other versions is a chain of one."""
    reasons = {row["id"]: own_reason(row, rules) for row in chain}
    head_reason = reasons[chain[-1]["id"]]
    if head_reason and with_chain(chain):
        for row in chain:
            yield row, reasons[row["id"]] or head_reason
        return
    reasons[chain[-1]["id"]] = None
    staying = [row for row in chain if reasons[row["id"]] is None]
    reasons |= {row["id"]: Removal.CHAIN for row in collapsed(staying, rules)}
    yield from ((row, reason) for row in chain if (reason := reasons[row["id"]]))


def chains_in(by_id: Mapping[str, Row]) -> Iterator[list[Row]]:
    """Yield the chains of rows, each oldest first; a link that leads nowhere ends one."""
    for head in by_id.values():
        newer = by_id.get(head.get("supersededById") or "")
        if newer is not None and newer.get("supersedesId") == head["id"]:
            continue
        chain = [head]
        while (older := by_id.get(chain[-1].get("supersedesId") or "")) is not None:
            chain.append(older)
        yield chain[::-1]


def surplus_of(count: int, rules: Rules) -> int:
    """Return by how many memories a user is over the cap."""
    return max(0, count - (rules.lifecycle.max_memories_per_user or count))


def brake(counts: Mapping[Removal, int], total: int, lifecycle: Lifecycle) -> bool:
    """Tell whether a run has to wait for an approval: it would remove too large a share of an agent's memories."""
    return braked(counts) > allowance(total, lifecycle)


def braked(counts: Mapping[Removal, int]) -> int:
    """Return how many removals count for the brake."""
    return sum(number for reason, number in counts.items() if reason not in UNBRAKED)


ALWAYS_ALLOWED = 10
"""Of few memories any number is a large share."""


def allowance(total: int, lifecycle: Lifecycle) -> int:
    """Return how many of an agent's memories one run may remove by itself."""
    return max(ALWAYS_ALLOWED, total * lifecycle.max_removal_percent // 100)


def _over_cap(chains: Sequence[Sequence[Row]], rules: Rules) -> Iterator[str]:
    kept = {chain[-1]["id"] for chain in chains if not with_chain(chain)}
    of_user: defaultdict[str, list[Row]] = defaultdict(list)
    for chain in chains:
        of_user[chain[-1]["userId"]].extend(chain)
    for rows in of_user.values():
        evictable = [row for row in rows if not row.get("pinned") and row["id"] not in kept]
        evictable.sort(key=lambda row: value_rank(row, rules))
        yield from (row["id"] for row in evictable[: surplus_of(len(rows), rules)])


def _recency(row: Row, rules: Rules) -> float:
    """Return 0.5^(age / half-life of the type): 1 of one that does not decay, 0.5 of a type that is not listed."""
    listed = next((type_ for type_ in rules.types if type_.name == row["type"]), None)
    if listed is None:
        return UNLISTED_RECENCY if rules.types else 1.0
    if listed.half_life_days is None:
        return 1.0
    return math.pow(0.5, max(0, rules.now_ms - row["createdAt"]) / DAY_MS / listed.half_life_days)


def _is_pruned(row: Row, prune: Prune, rules: Rules) -> bool:
    if rules.now_ms - row["createdAt"] <= prune.older_than_days * DAY_MS:
        return False
    of_type = next((type_.confidence for type_ in rules.types if type_.name == row["type"]), None)
    confidence = row.get("confidence", of_type)
    if confidence is not None and confidence >= prune.confidence_below:
        return False
    memory = Scored(
        type=row["type"],
        similarity=0.0,
        created_at=row["createdAt"],
        importance=row.get("importance", 0.5),
        access_count=row.get("accessCount", 0),
    )
    return priority_of(rules.priority).evaluate(values_of(memory, now_ms=rules.now_ms)) < prune.priority_below


def _is_type(name: str) -> Condition:
    return {"key": "type", "match": {"value": name}}


def _created_by(now_ms: int, days: float) -> Condition:
    """Return the condition of being at least so old; a millisecond more or less is for the row's own test."""
    return {"key": "createdAt", "range": {"lte": now_ms - math.floor(days * DAY_MS) + 1}}


def as_row(payload: Payload) -> Row | None:
    """Return a payload as a row, None of a point that is none of ours: it has no owner or no revision."""
    return payload if {"id", "userId", "type", "createdAt", "rev"} <= payload.keys() else None
