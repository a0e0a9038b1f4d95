"""Collapse a long chain of versions: what a model made of them becomes the newest version, with them as its sources.

The new head is written as every version is (`memories/chains.py`): pending, linked by compare-and-set, then shown. Its
id is made of the head that the model read, so that a repeated or concurrent run finds it. It gives way: where another
version was stored meanwhile, it is given up and that one stays the newest. No version is removed.

The sources are checked before it is written and after it is shown. A version that was deleted, erased or sealed since
the model read it leaves nothing behind; one that a cleanup took out of the chain does no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.rules.plan import Fact
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories.chains import read_rows, settled_row
from agentmemory_operator.memories.draft import MemoryDraft, drafts_of
from agentmemory_operator.memories.incoming import IncomingMemory, clean
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
from agentmemory_operator.memories.stored import delete_head
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

DISTILLATION = "distillation"
"""The `source` of what a model made of turns, or of versions."""

_KEY = "\x1fcollapse\x1f{head}"
_KEPT = tuple(field_.name for field_ in fields(StatedMemory))
# Of who said a turn, and of what is still to be read: of the version before, and of no summary.
_OWN = dict.fromkeys(("speaker", "role", "conversation_id")) | {"undistilled": ()}


async def collapse(agent: Agent, user_id: str, fact: Fact, run_id: str) -> bool:
    """Store a fact as the newest version in the place of the head that it replaces; return whether it is stored.

    False means that the head or a source changed meanwhile, or that the agent does not take the fact.

    Raises:
        TransientError: the same again does the rest.
    """
    head_id = fact.replaced[0]
    head = await settled_row(agent, head_id)
    if head is None or not await _are_readable(agent, fact.sources):
        return False
    draft = await _draft(agent, record_of(head), fact, run_id) if TOMBSTONE_KEY not in head else None
    if draft is None or not await _may_follow(agent, draft):
        # Whoever was killed may have stored it.
        return await is_kept(agent, user_id, head_id)
    await merge(agent, draft, fact.replaced, {GIVES_WAY_KEY: head.get(CHANGED_KEY, 0)})
    agent.sizes.forget(user_id)
    return await is_kept(agent, user_id, head_id)


async def is_begun(agent: Agent, user_id: str, head_id: str) -> bool:
    """Whether the newest version that takes the place of a head was written, though it may be gone since."""
    id_ = collapsed_id(agent, user_id, head_id)
    return bool(await agent.store.retrieve(agent.alias, [id_], keys=["id"]))


async def is_kept(agent: Agent, user_id: str, head_id: str) -> bool:
    """Finish the steps of what takes the place of a head, and delete it if a source is gone; return if it stays."""
    row = await settled_row(agent, collapsed_id(agent, user_id, head_id))
    if row is None or TOMBSTONE_KEY in row:
        return False
    if await _are_readable(agent, row.get("sourceIds") or ()):
        return True
    try:
        await delete_head(agent, row["id"], user_id=user_id, is_admin=True)
    except (NotFound, Conflict):
        # Deleted, or superseded by a version that somebody stored: an earlier version of that one now.
        return False
    return False


def collapsed_id(agent: Agent, user_id: str, head_id: str) -> str:
    """The id of what takes the place of a head."""
    return keyed_id(agent.id_scope, user_id, _KEY.format(head=head_id))


async def _are_readable(agent: Agent, ids: Sequence[str]) -> bool:
    """Whether a model may know of all these versions."""
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
    """The new head, which is in all but its text as the head before; None where the agent does not take it."""
    [draft] = await drafts_of(agent, await clean(agent, [_memory(head, fact, run_id)]))
    if not isinstance(draft, MemoryDraft):
        return None
    record = draft.record
    others = [id_ for id_ in record.lookup_ids if id_ != record.identity_id]
    lookups = (head.identity_id, *others) if head.identity_id else tuple(others)
    id_ = collapsed_id(agent, head.user_id, head.id)
    return replace(draft, record=replace(record, id=id_, identity_id=head.identity_id, lookup_ids=lookups))


def _memory(head: MemoryRecord, fact: Fact, run_id: str) -> IncomingMemory:
    kept: Payload = {name: getattr(head, name) for name in _KEPT} | _OWN
    stated: Payload = {"content": fact.content, "source": DISTILLATION, "source_ids": fact.sources, "run_id": run_id}
    return IncomingMemory(
        **(kept | stated),
        type=head.type,
        confidence=head.confidence,
        knowledge_category=head.knowledge_category,
        author=head.author,
        supersedes=head.id,
        idempotency_key=_KEY.format(head=head.id),
    )
