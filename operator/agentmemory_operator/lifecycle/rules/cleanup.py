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

from agentmemory_operator.memories.rules.expiry import hidden_since_ms, is_past, past_condition, ttl_of
from agentmemory_operator.memories.rules.filters import NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED, Condition, Filter
from agentmemory_operator.memories.rules.links import LINK_KEYS, is_merged, predecessors
from agentmemory_operator.memories.rules.record import ORDER_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.search.rules.score_trees import priority_of
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.models import Priority
from agentmemory_operator.spec.expression.variables import DAY_MS, UNLISTED_RECENCY, Scored, values_of
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY, MemoryType, Ttl
from agentmemory_operator.spec.presets import Lifecycle, Prune

ROW_KEYS = (
    *("id", "agentId", "userId", "type", "createdAt", "rev", "importance", "accessCount", "lastAccessedAt"),
    *("confidence", "expiresAt", *LINK_KEYS, "pinned", "requestId", "identityId", ORDER_KEY),
    *("storedAt", SESSION_USED_KEY, TOMBSTONE_KEY, "pending"),
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
    SESSION = "session"
    HIDDEN = "hidden"
    DECAYED = "decayed"
    PRUNED = "pruned"
    CHAIN = "chain"
    OVER_CAP = "overCap"


UNBRAKED = frozenset({Removal.EXPIRED, Removal.SESSION})
"""What its author wanted gone, and nobody could read any more: the brake does not count it."""

SESSION_GRACE_MS = 600_000
"""What is over is removed so much later: a use may be noted half a minute late, by a clock that differs."""


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """By what a cleanup decides: the object's figures, at one time.

    Attributes:
        now_ms: Unix milliseconds, the same for the whole run.
        priority: figures of the priority that pruning asks.
        unlisted: where any type is taken, those that end with their session.
    """

    lifecycle: Lifecycle
    types: tuple[MemoryType, ...]
    now_ms: int
    priority: Priority = field(default_factory=Priority)
    unlisted: tuple[MemoryType, ...] = ()

    @property
    def endings(self) -> tuple[MemoryType, ...]:
        """The types by whose rules memories end."""
        return self.types or self.unlisted


def rules_of(lifecycle: Lifecycle, ranking: Ranking, now_ms: int) -> CleanupRules:
    """The rules of an object; its priority is the one it ranks by, else the reference design's."""
    model = ranking.model
    priority = model if isinstance(model, Priority) else Priority()
    return CleanupRules(lifecycle, ranking.types, now_ms, priority, ranking.unlisted)


def own_reason(row: Row, rules: CleanupRules) -> Removal | None:
    """Why a row is removed by itself alone, whatever its chain; None where it stays."""
    if row.get("pinned"):
        return None
    end = row.get("expiresAt")
    if end is not None and end <= rules.now_ms:
        return Removal.EXPIRED
    ttl = ttl_of(row, rules.endings)
    if ttl is not None and (ended := _ended(row, ttl, rules)):
        return ended
    if _recency(row, rules) < (rules.lifecycle.decay_floor or 0):
        return Removal.DECAYED
    prune = rules.lifecycle.prune
    return Removal.PRUNED if prune is not None and _is_pruned(row, prune, rules) else None


def candidates(rules: CleanupRules, *, heads: bool) -> Filter:
    """The filter of the heads, or of the earlier versions, that may have a reason of their own.

    Each that has one is among them.
    """
    floor = rules.lifecycle.decay_floor
    should: list[Condition] = [{"key": "expiresAt", "range": {"lte": rules.now_ms}}]
    for type_ in rules.endings:
        if type_.ttl and type_.ttl.ends:
            should.extend(_ended_condition(type_.name, type_.ttl, rules))
    for type_ in rules.types:
        if type_.half_life_days and floor:
            days = type_.half_life_days * math.log2(1 / floor)
            should.append({"must": [{"key": "type", "match": {"value": type_.name}}, _created_by(rules.now_ms, days)]})
    if rules.lifecycle.prune:
        should.append(_created_by(rules.now_ms, rules.lifecycle.prune.older_than_days))
    place = NOT_SUPERSEDED if heads else {"must_not": [NOT_SUPERSEDED]}
    return {"must": [NOT_DELETED, NOT_PENDING, place, {"should": should}], "must_not": [IS_PINNED]}


def with_chain(chain: Sequence[Row]) -> Sequence[Row]:
    """What is removed with the head of a chain (oldest first): all of it, or nothing if a version is pinned."""
    return () if any(row.get("pinned") for row in chain) else chain


def lasting_length(chain: Sequence[Row], rules: CleanupRules) -> int:
    """How many versions (oldest first) stay when those at the end are removed with their session."""
    length = len(chain)
    while length and own_reason(chain[length - 1], rules) is Removal.SESSION:
        length -= 1
    return length


def collapsed(chain: Sequence[Row], rules: CleanupRules) -> list[Row]:
    """The middle of a chain (oldest first) that is too long; the newest stay and, from a limit of 3 on, the first.

    What a memory was merged from is no length of a chain: it stays, so that the merge can be undone.
    """
    most = rules.lifecycle.max_chain_length
    merged = {before for row in chain if is_merged(row) for before in predecessors(row)}
    chain = [row for row in chain if row["id"] not in merged]
    if most is None or len(chain) <= most:
        return []
    newest = most - 1 if most > 2 else most
    middle = chain[most - newest : len(chain) - newest]
    return [row for row in middle if not row.get("pinned")]


def value_rank(row: Row, rules: CleanupRules) -> tuple[int, float, int, str]:
    """The place of a row among those of its user, the least valuable first.

    Earlier versions come before hidden memories, these before those that answer; then by importance * (1 + log10(1 +
    accesses)) * recency, then by age.
    """
    ttl = ttl_of(row, rules.endings)
    standing = 0 if row.get("supersededById") else 1 if is_past(row, ttl, rules.now_ms) else 2
    utility = row.get("importance", 0.5) * (1 + math.log10(1 + row.get("accessCount", 0)))
    return standing, utility * _recency(row, rules), row["createdAt"], row["id"]


def plan(rows: Iterable[Row], rules: CleanupRules) -> dict[str, Removal]:
    """What an undisturbed run removes of all rows of an agent, and why, by id."""
    chains = list(chains_in({row["id"]: row for row in rows}))
    gone = {row["id"]: reason for chain in chains for row, reason in chain_removals(chain, rules)}
    if rules.lifecycle.max_memories_per_user:
        left = [[row for row in chain if row["id"] not in gone] for chain in chains]
        gone |= dict.fromkeys(_over_cap([chain for chain in left if chain], rules), Removal.OVER_CAP)
    return gone


def chain_removals(chain: Sequence[Row], rules: CleanupRules) -> Iterator[tuple[Row, Removal]]:
    """Yield what goes of one chain, oldest first, and why; a memory without other versions is a chain of one.

    What lasts is not lost with the session whose memories superseded it: it answers again, as when somebody ends it.
    """
    reasons = {row["id"]: own_reason(row, rules) for row in chain}
    lasting = lasting_length(chain, rules)
    if 0 < lasting < len(chain):
        yield from chain_removals(chain[:lasting], rules)
        yield from ((row, Removal.SESSION) for row in chain[lasting:])
        return
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
    """Yield the chains of rows, each oldest first, what was merged before what it became."""
    for head in by_id.values():
        newer = by_id.get(head.get("supersededById") or "")
        if newer is not None and head["id"] in predecessors(newer):
            continue
        chain = [head]
        for row in chain:
            chain.extend(by_id[before] for before in predecessors(row) if before in by_id)
        yield chain[::-1]


def surplus_of(count: int, rules: CleanupRules) -> int:
    """How many memories a user has above the cap."""
    return max(0, count - (rules.lifecycle.max_memories_per_user or count))


def brake(counts: Mapping[Removal, int], total: int, lifecycle: Lifecycle) -> bool:
    """Whether a run has to wait for an approval: it would remove too large a share of an agent's memories."""
    return braked(counts) > allowance(total, lifecycle)


def braked(counts: Mapping[Removal, int]) -> int:
    """How many removals count for the brake."""
    return sum(number for reason, number in counts.items() if reason not in UNBRAKED)


ALWAYS_ALLOWED = 10
"""Of few memories any number is a large share."""


def allowance(total: int, lifecycle: Lifecycle) -> int:
    """How many of an agent's memories one run may remove by itself."""
    return max(ALWAYS_ALLOWED, total * lifecycle.max_removal_percent // 100)


def _over_cap(chains: Sequence[Sequence[Row]], rules: CleanupRules) -> Iterator[str]:
    kept = {chain[-1]["id"] for chain in chains if not with_chain(chain)}
    of_user: defaultdict[str, list[Row]] = defaultdict(list)
    for chain in chains:
        of_user[chain[-1]["userId"]].extend(chain)
    for rows in of_user.values():
        evictable = [row for row in rows if not row.get("pinned") and row["id"] not in kept]
        evictable.sort(key=lambda row: value_rank(row, rules))
        yield from (row["id"] for row in evictable[: surplus_of(len(rows), rules)])


def _recency(row: Row, rules: CleanupRules) -> float:
    """0.5^(age / half-life of the type): 1 for a type that does not decay, 0.5 for one that is not listed."""
    listed = next((type_ for type_ in rules.types if type_.name == row["type"]), None)
    if listed is None:
        return UNLISTED_RECENCY if rules.types else 1.0
    if listed.half_life_days is None:
        return 1.0
    return math.pow(0.5, max(0, rules.now_ms - row["createdAt"]) / DAY_MS / listed.half_life_days)


def _is_pruned(row: Row, prune: Prune, rules: CleanupRules) -> bool:
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


def _ended(row: Row, ttl: Ttl, rules: CleanupRules) -> Removal | None:
    """Why the age limits of its type remove a row; None where they do not."""
    if not is_past(row, ttl, _ended_by_ms(ttl, rules)):
        return None
    if ttl.removes:
        return Removal.TTL if ttl.days is not None else Removal.SESSION
    days = rules.lifecycle.remove_hidden_days
    is_due = days is not None and hidden_since_ms(row, ttl) <= rules.now_ms - round(days * DAY_MS)
    return Removal.HIDDEN if is_due else None


def _ended_condition(name: str, ttl: Ttl, rules: CleanupRules) -> Iterator[Condition]:
    """Yield the condition that the time of a type may be a reason; none of what is only hidden, and kept."""
    if ttl.removes:
        yield past_condition(name, ttl, _ended_by_ms(ttl, rules))
    elif rules.lifecycle.remove_hidden_days is not None:
        yield past_condition(name, ttl, rules.now_ms - round(rules.lifecycle.remove_hidden_days * DAY_MS))


def _ended_by_ms(ttl: Ttl, rules: CleanupRules) -> int:
    return rules.now_ms - (SESSION_GRACE_MS if ttl.days is None else 0)


def _created_by(now_ms: int, days: float) -> Condition:
    """The filter condition for this age or older; the row's own test decides the last millisecond."""
    return {"key": "createdAt", "range": {"lte": now_ms - math.floor(days * DAY_MS) + 1}}


def as_row(payload: Payload) -> Row | None:
    """A payload as a row; None for a tombstone, and for a point that we did not write: without owner or revision."""
    is_stored = {"id", "userId", "type", "createdAt", "rev"} <= payload.keys() and TOMBSTONE_KEY not in payload
    return payload if is_stored else None
