"""A memory that supersedes others: whether it may, and one that takes the place of several, or of none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.agents.checks import is_immutable
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.chains import midway, settled_row
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.links import links_to
from agentmemory_operator.memories.rules.record import (
    ITEM_NAMESPACE_KEY,
    TOMBSTONE_KEY,
    UPDATES_KEY,
    MemoryRecord,
    Payload,
)
from agentmemory_operator.memories.zoned import sinks
from agentmemory_operator.zones.rules.sealing import ZONE_KEY


def superseded(memory_id: str | None) -> Conflict:
    """Why a version that is no head cannot be superseded."""
    return Conflict(f"supersedes: {memory_id} is superseded or deleted; supersede the head of its chain instead")


async def check_predecessor(agent: Agent, record: MemoryRecord) -> Payload | None:
    """Check that a memory may supersede the one that it names; return that one, None where it names none.

    Raises:
        NotFound: this user has no such memory.
        Conflict: that one is superseded, immutable, an item, of another identity, or of a higher zone.
    """
    if record.supersedes_id is None:
        return None
    old = await settled_row(agent, record.supersedes_id)
    # Of what was erased nobody knows any more whose it was.
    if old is None or old.get("userId") != record.user_id or _is_expired(agent, old):
        raise NotFound(f"supersedes: this user has no memory {record.supersedes_id}")
    if ITEM_NAMESPACE_KEY in old:
        raise Conflict(f"supersedes: {record.supersedes_id} is an item: put it again under its key instead")
    if old.get("working"):
        raise Conflict("supersedes: a working memory cannot be superseded: add a new working memory to its session")
    if TOMBSTONE_KEY in old or old.get("supersededById"):
        raise superseded(record.supersedes_id)
    _check_rules(agent, old, record)
    return old


def updates_after(old: Payload | None) -> int:
    """How many versions came before the one that follows a memory."""
    return 0 if old is None else (old.get(UPDATES_KEY) or 0) + 1


def check_zone(old: Payload, record: MemoryRecord) -> None:
    """Check that a new version is sealed no less than the one before it.

    Raises:
        Conflict: it is not.
    """
    before = old.get(ZONE_KEY)
    if TOMBSTONE_KEY not in old and sinks(before, record.zone):
        raise Conflict(
            f"zone: {old['id']} is {before}, and a new version must not have a lower zone: use that zone or a higher "
            f"one"
        )


def _is_expired(agent: Agent, old: Payload) -> bool:
    return TOMBSTONE_KEY not in old and is_expired(old, agent.settings.ranking.endings, agent.clock.now_ms())


def _check_rules(agent: Agent, old: Payload, record: MemoryRecord) -> None:
    if is_immutable(agent, old):
        rule = f"memories of type {old['type']!r} are immutable (types[].immutable)"
        raise Conflict(f"supersedes: {rule}: store a new memory instead of superseding {record.supersedes_id}")
    check_zone(old, record)
    if old.get("identityId") != record.identity_id:
        rule = "a memory identified by key or subject (types[].supersedeBy) supersedes only memories with the same one"
        raise Conflict(f"supersedes: {record.supersedes_id} has another identity: {rule}; omit supersedes")


async def merge(agent: Agent, draft: MemoryDraft, replaced: Sequence[str], marks: Mapping[str, Any]) -> Payload | None:
    """Store a draft as the successor of several memories; the same draft again finishes what was begun.

    Args:
        draft: under an id that is the same in every attempt.
        replaced: memories of its user; none lets it stand by itself. One with an identity has no others beside it.
        marks: what its point bears beside.

    Returns:
        What lies there; None where one of `replaced` was superseded or deleted meanwhile, and the others answer as
        before, or where it was stored before and deleted since.

    Raises:
        OutcomeUnknown: it may have been stored.
    """
    # In one order, so that of two that merge the same one gets all.
    links = links_to(sorted(replaced))
    record = replace(
        draft.record,
        supersedes_id=links["supersedesId"],
        supersedes_ids=tuple(links["supersedesIds"] or ()),
        pending=bool(replaced),
    )
    point = replace(draft, record=record).point(agent)
    point["payload"] |= marks
    await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    with midway():
        row = await read_row(agent, record.id)
        if row is None or TOMBSTONE_KEY in row:
            return None
        is_joined = not row.get("pending") or await chains.join(agent, row)
        await session_keywords.settle(agent, [record.id, *replaced])
        row = await read_row(agent, record.id) if is_joined else None
        return None if row is None or TOMBSTONE_KEY in row else row
