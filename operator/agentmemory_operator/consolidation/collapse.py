"""Collapse a long chain of versions: a text that a model made from them becomes the newest version.

1. Check that all source versions still exist and are not encrypted.
2. Write the new version like any other (`memories/chains.py`): pending, linked by compare-and-set, then visible.
3. Check the sources again. If one was deleted, erased or encrypted, delete the new version.

The id of the new version is derived from the head that the model read, so a repeated or concurrent run finds it. If
another version was stored in the meantime, the new version is abandoned and the other stays the head. No source is
removed. A source that a cleanup removed from the chain counts as readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.rules.batch_plan import Fact
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories.chains import read_completed, read_rows
from agentmemory_operator.memories.draft import MemoryDraft, build_drafts
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.predecessors import check_predecessor, merge
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    EXPIRED_KEY,
    GIVES_WAY_KEY,
    TOMBSTONE_KEY,
    MemoryRecord,
    Payload,
    StatedMemory,
    record_of,
)
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

DISTILLATION_SOURCE = "distillation"
"""`source` of memories that a model made from turns of a conversation, or from versions of a memory."""

_KEY = "\x1fcollapse\x1f{head}"
_KEPT = tuple(field_.name for field_ in fields(StatedMemory))
# Cleared in the new version: fields about a speaker or pending turns apply to the old version only.
_OWN = dict.fromkeys(("speaker", "role", "conversation_id")) | {"undistilled": ()}


async def collapse(agent: Agent, user_id: str, fact: Fact, run_id: str) -> bool:
    """Store a fact as the new version after the head that it replaces; return whether it is stored.

    False if the head does not exist, or a source is encrypted or was deleted, unless a cleanup removed it. If the head
    has changed, or the agent rejects the fact, True only if an earlier attempt has stored the version.

    Raises:
        TransientError: If Qdrant or the embedder is unavailable. Repeating the call completes the rest.
    """
    head_id = fact.replaced[0]
    head, draft = await read_completed(agent, head_id), None
    if head is not None and TOMBSTONE_KEY not in head and await _are_readable(agent, fact.sources):
        draft = await _draft(agent, record_of(head), fact, run_id)
    if head is None or draft is None or not await _may_follow(agent, draft):
        # Complete the version that an earlier attempt may have stored, or delete it with its sources.
        return await complete_collapse(agent, user_id, head_id)
    await merge(agent, draft, fact.replaced, {GIVES_WAY_KEY: head.get(CHANGED_KEY, 0)})
    agent.sizes.forget(user_id)
    return await complete_collapse(agent, user_id, head_id)


async def was_written(agent: Agent, user_id: str, head_id: str) -> bool:
    """Return whether a collapsed version was already written for a head, even if it was deleted since."""
    id_ = collapsed_id(agent, user_id, head_id)
    return bool(await agent.store.retrieve(agent.alias, [id_], keys=["id"]))


async def complete_collapse(agent: Agent, user_id: str, head_id: str) -> bool:
    """Complete the pending steps of a collapsed version, and delete it if a source is missing or encrypted.

    Returns:
        True if the version is stored, and all its sources are unencrypted or were removed only by a cleanup.

    Raises:
        TransientError: If Qdrant is unavailable. Repeating the call completes the rest.
    """
    row = await read_completed(agent, collapsed_id(agent, user_id, head_id))
    if row is None or TOMBSTONE_KEY in row:
        return False
    if await _are_readable(agent, row.get("sourceIds") or ()):
        return True
    try:
        await delete_head(agent, row["id"], user_id=user_id, is_admin=True)
    except (NotFound, Conflict):
        # Another writer has deleted or superseded the version.
        return False
    return False


def collapsed_id(agent: Agent, user_id: str, head_id: str) -> str:
    """Return the id of the version that replaces a head."""
    return keyed_id(agent.id_slug, user_id, _KEY.format(head=head_id))


async def _are_readable(agent: Agent, ids: Sequence[str]) -> bool:
    """Return whether all these versions exist unencrypted, or were removed only by a cleanup."""
    rows = await read_rows(agent, ids)
    return all(id_ in rows and _is_readable(rows[id_]) for id_ in ids)


def _is_readable(row: Mapping[str, Any]) -> bool:
    return ZONE_KEY not in row and (TOMBSTONE_KEY not in row or EXPIRED_KEY in row)


async def _may_follow(agent: Agent, draft: MemoryDraft) -> bool:
    try:
        return await check_predecessor(agent, draft.record) is not None
    except (NotFound, Conflict):
        return False


async def _draft(agent: Agent, head: MemoryRecord, fact: Fact, run_id: str) -> MemoryDraft | None:
    """Build the new version: a copy of the head with another text. None if the agent rejects it."""
    [draft] = await build_drafts(agent, await scrub_memories(agent, [_memory(head, fact, run_id)]))
    if not isinstance(draft, MemoryDraft):
        return None
    record = draft.record
    remaining_ids = [id_ for id_ in record.lookup_ids if id_ != record.identity_id]
    lookups = (head.identity_id, *remaining_ids) if head.identity_id else tuple(remaining_ids)
    id_ = collapsed_id(agent, head.user_id, head.id)
    return replace(draft, record=replace(record, id=id_, identity_id=head.identity_id, lookup_ids=lookups))


def _memory(head: MemoryRecord, fact: Fact, run_id: str) -> IncomingMemory:
    head_fields: Payload = {name: getattr(head, name) for name in _KEPT} | _OWN
    new_fields: Payload = {
        "content": fact.content,
        "source": DISTILLATION_SOURCE,
        "source_ids": fact.sources,
        "run_id": run_id,
    }
    return IncomingMemory(
        **(head_fields | new_fields),
        type=head.type,
        confidence=head.confidence,
        knowledge_category=head.knowledge_category,
        author=head.author,
        supersedes=head.id,
        idempotency_key=_KEY.format(head=head.id),
    )
