"""Rules for superseding a memory, and the merge of several memories into one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.agents.checks import is_immutable
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.chains import outcome_unknown_on_failure, read_completed
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
from agentmemory_operator.memories.zone_access import is_lower_zone
from agentmemory_operator.zones.rules.sealing import ZONE_KEY


def not_a_head_conflict(memory_id: str | None) -> Conflict:
    """Return the error for superseding a version that is not a head."""
    return Conflict(f"supersedes: {memory_id} is superseded or deleted; supersede the head of its chain instead")


async def check_predecessor(agent: Agent, record: MemoryRecord) -> Payload | None:
    """Check that a memory may supersede its predecessor; return the predecessor, or None if it names none.

    Completes the predecessor first if it is pending.

    Raises:
        NotFound: If this user has no such memory, or it has expired.
        Conflict: If it is superseded, deleted, immutable, an item, a working memory, of another identity, or of a
            higher zone.
    """
    if record.supersedes_id is None:
        return None
    old = await read_completed(agent, record.supersedes_id)
    # This also refuses an erased memory, which no longer has a user id.
    if old is None or old.get("userId") != record.user_id or _is_expired(agent, old):
        raise NotFound(f"supersedes: this user has no memory {record.supersedes_id}")
    if ITEM_NAMESPACE_KEY in old:
        raise Conflict(f"supersedes: {record.supersedes_id} is an item: put it again under its key instead")
    if old.get("working"):
        raise Conflict("supersedes: a working memory cannot be superseded: add a new working memory to its session")
    if TOMBSTONE_KEY in old or old.get("supersededById"):
        raise not_a_head_conflict(record.supersedes_id)
    _check_rules(agent, old, record)
    return old


def next_update_count(old: Payload | None) -> int:
    """Return the `update_count` of the version after `old`; 0 without a predecessor."""
    return 0 if old is None else (old.get(UPDATES_KEY) or 0) + 1


def check_zone(old: Payload, record: MemoryRecord) -> None:
    """Raise if a new version has a lower zone than its predecessor.

    Raises:
        Conflict: If the zone is lower. A predecessor that is a tombstone sets no limit.
    """
    old_zone = old.get(ZONE_KEY)
    if TOMBSTONE_KEY not in old and is_lower_zone(old_zone, record.zone):
        raise Conflict(
            f"zone: {old['id']} is {old_zone}, and a new version must not have a lower zone: use that zone or a higher "
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
    """Store a draft as the successor of several memories. Repeating the call with the same draft completes it.

    Args:
        draft: Draft with an id that is the same in every attempt.
        replaced: Ids of memories of its user; empty stores the draft without predecessors. A memory with an identity
            must be the only one.
        marks: Payload keys to add to the point.

    Returns:
        The stored payload. None if the draft was stored and deleted before. None also if a memory in `replaced` was
        superseded or deleted in the meantime. The other memories then stay heads.

    Raises:
        StoreUnavailable: If nothing was stored. Retry.
        OutcomeUnknown: If the draft may have been stored.
    """
    # Sort the ids, so that of two merges of the same memories one gets all of them.
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
    with outcome_unknown_on_failure():
        row = await read_row(agent, record.id)
        if row is None or TOMBSTONE_KEY in row:
            return None
        is_joined = not row.get("pending") or await chains.join(agent, row)
        await session_keywords.update_stale_texts(agent, [record.id, *replaced])
        row = await read_row(agent, record.id) if is_joined else None
        return None if row is None or TOMBSTONE_KEY in row else row
