"""Take a run back, and decide about what it proposed.

What a run made is found by the run's id on it. A merged fact that is still the newest goes, and the memories that it
superseded answer again, those of them that still lead to it. What came after a merged fact stays, and so does the fact.
Memories stay marked as read: the next run does not merge them again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.carry_out import Came, Tally, store_fact
from agentmemory_operator.consolidation.rules.proposals import PROPOSED, Proposal, proposal_in
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories.chains import settled_row
from agentmemory_operator.memories.point_pages import change_row, read_pages
from agentmemory_operator.memories.rules.filters import NOT_DELETED, STORED, both, equals
from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import (
    CATEGORY_RUN_KEY,
    CONNECTIONS_KEY,
    LOGGED_KEY,
    NOTED_KEY,
    RUN_KEY,
    TOMBSTONE_KEY,
    Payload,
)
from agentmemory_operator.memories.stored import delete_head

PAGE = 100


@dataclass(slots=True)
class Undone:
    """What taking a run back came to.

    Attributes:
        facts: that the run made, and are gone.
        reactivated: memories that answer again.
        kept: facts that stay, because something else superseded them since.
        elsewhere: memories that the run superseded, and that lead elsewhere by now, or are gone.
        notes: memories whose connections or category were taken back.
    """

    facts: int = 0
    reactivated: int = 0
    kept: int = 0
    elsewhere: int = 0
    notes: int = 0


async def undo(agent: Agent, run_id: str, undone: Undone) -> None:
    """Take a run back; the same again does the rest.

    Raises:
        TransientError: Qdrant is away.
    """
    async for row in _bearing(agent, RUN_KEY, run_id):
        await _remove(agent, row, undone)
    async for row in _bearing(agent, NOTED_KEY, run_id):
        undone.notes += await _take_back(agent, row, run_id)
    async for proposal in proposals_of(agent, run_id):
        await forget_proposal(agent, proposal)


async def _remove(agent: Agent, row: Payload, undone: Undone) -> None:
    """Delete a fact that is still the newest."""
    now = await settled_row(agent, row["id"])
    if now is None or TOMBSTONE_KEY in now:
        return
    if now.get("supersededById"):
        undone.kept += 1
        undone.elsewhere += len(predecessors(now))
        return
    points = await agent.store.retrieve(agent.alias, predecessors(now), keys=["supersededById"])
    leading = sum(point["payload"].get("supersededById") == now["id"] for point in points)
    try:
        await delete_head(agent, now["id"], user_id=now["userId"], is_admin=True)
    except NotFound:
        return
    except Conflict:
        undone.kept += 1
        return
    undone.facts += 1
    undone.reactivated += leading
    undone.elsewhere += len(predecessors(now)) - leading


async def _take_back(agent: Agent, row: Payload, run_id: str) -> int:
    """Take back what a run noted on a memory; tell how many were changed."""
    before = row.get(CONNECTIONS_KEY) or []
    kept = [one for one in before if one.get("run") != run_id]
    changes: Payload = {CONNECTIONS_KEY: kept} if len(kept) < len(before) else {}
    if row.get(CATEGORY_RUN_KEY) == run_id:
        changes |= {"knowledgeCategory": agent.settings.knowledge_category, CATEGORY_RUN_KEY: None}
    if not changes:
        return 0
    now_ms = agent.clock.now_ms()
    await change_row(agent, row, changes | {LOGGED_KEY: now_ms}, NOT_DELETED, now_ms=now_ms)
    return 1


async def _bearing(agent: Agent, key: str, run_id: str) -> AsyncIterator[Payload]:
    body = {"filter": both(STORED, equals(key, run_id)), "limit": PAGE, "with_payload": True}
    async for points in read_pages(agent, body):
        for point in points:
            yield point["payload"]


async def proposals_of(agent: Agent, run_id: str | None = None) -> AsyncIterator[Proposal]:
    """Yield the facts that wait for an approval: of one run, or of all."""
    filter_ = both(PROPOSED, equals(RUN_KEY, run_id)) if run_id else PROPOSED
    async for points in read_pages(agent, {"filter": filter_, "limit": PAGE, "with_payload": True}):
        for point in points:
            if proposal := proposal_in(point["payload"]):
                yield proposal


async def approve(agent: Agent, run_id: str) -> Tally:
    """Store the facts that a run proposed, as if nothing had been missing."""
    tally: Tally = Tally()
    async for proposal in proposals_of(agent, run_id):
        tally += await store_fact(agent, proposal.user_id, proposal.fact, run_id)
        await forget_proposal(agent, proposal)
    return tally


async def reject(agent: Agent, run_id: str) -> Tally:
    """Drop the facts that a run proposed."""
    tally: Tally = Tally()
    async for proposal in proposals_of(agent, run_id):
        await forget_proposal(agent, proposal)
        tally[Came.LOST] += 1
    return tally


async def forget_proposal(agent: Agent, proposal: Proposal) -> None:
    """Remove a proposal."""
    await agent.store.delete(agent.alias, both(PROPOSED, {"has_id": [proposal.id]}))
