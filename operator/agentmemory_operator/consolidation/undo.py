"""Undo a run, and approve or reject its proposals.

The results of a run contain its id. A merged fact that is still a head is deleted. The memories that it superseded
become visible again if they still link to it. A fact that was superseded since stays. Connections that the run added
are removed, categories that it set become the agent's default, and its proposals are deleted. Entities, aliases and
relations stay. The source memories stay marked as read, so the next run does not merge them again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.plan_executor import PlanEffect, Tally, store_fact
from agentmemory_operator.consolidation.rules.proposals import IS_PROPOSAL, Proposal, proposal_from_payload
from agentmemory_operator.errors import Conflict, NotFound, StoreUnavailable
from agentmemory_operator.memories.chains import read_completed
from agentmemory_operator.memories.point_pages import MAX_ATTEMPTS, change_row, read_pages, read_row
from agentmemory_operator.memories.rules.filters import NOT_DELETED, STORED_FILTER, equals, narrow
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
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.runtime.tasks import update

PAGE = 100


@dataclass(slots=True)
class UndoReport:
    """Result of undoing a run.

    Attributes:
        facts: Number of facts and contradictions deleted.
        reactivated: Number of memories that are visible again.
        kept: Number of facts that stay, because a newer version superseded them.
        elsewhere: Number of memories that the run superseded and that stay as they are: they link to another version or
            to a fact that stays, or are deleted.
        notes: Number of memories with connections removed or the category reset.
    """

    facts: int = 0
    reactivated: int = 0
    kept: int = 0
    elsewhere: int = 0
    notes: int = 0


async def undo(agent: Agent, run_id: str, report: UndoReport) -> None:
    """Undo a run. An interrupted undo may be repeated.

    Args:
        report: Receives the counts, even if the undo fails.

    Raises:
        TransientError: If Qdrant is unavailable.
    """
    async for row in _bearing(agent, RUN_KEY, run_id):
        await _remove(agent, row, report)
    async for row in _bearing(agent, NOTED_KEY, run_id):
        report.notes += await _take_back(agent, row["id"], run_id)
    async for proposal in read_proposals(agent, run_id):
        await delete_proposal(agent, proposal)


async def _remove(agent: Agent, row: Payload, report: UndoReport) -> None:
    """Delete a fact if it is still a head, and count the result in `report`."""
    current = await read_completed(agent, row["id"])
    if current is None or TOMBSTONE_KEY in current:
        return
    if current.get("supersededById"):
        report.kept += 1
        report.elsewhere += len(predecessors(current))
        return
    points = await agent.store.retrieve(agent.alias, predecessors(current), keys=["supersededById"])
    linked_count = sum(point["payload"].get("supersededById") == current["id"] for point in points)
    try:
        await delete_head(agent, current["id"], user_id=current["userId"], is_admin=True)
    except NotFound:
        return
    except Conflict:
        report.kept += 1
        return
    report.facts += 1
    report.reactivated += linked_count
    report.elsewhere += len(predecessors(current)) - linked_count


async def _take_back(agent: Agent, memory_id: str, run_id: str) -> int:
    """Remove a run's connections from a memory, and reset its category if the run set it; return 1 if changed, else 0.

    Raises:
        StoreUnavailable: If other writers change the memory in every attempt.
    """
    read = partial(read_row, agent, memory_id)

    async def write(row: Payload | None) -> int | None:
        if row is None or not (changes := _changes_without(agent, row, run_id)):
            return 0
        now_ms = agent.clock.now_ms()
        await change_row(agent, row, changes | {LOGGED_KEY: now_ms}, NOT_DELETED, now_ms=now_ms)
        stored = await read()
        return None if stored and _changes_without(agent, stored, run_id) else 1

    busy = StoreUnavailable("a memory of the run is being changed concurrently: retry")
    return await update(read, write, busy=busy, max_attempts=MAX_ATTEMPTS)


def _changes_without(agent: Agent, row: Payload, run_id: str) -> Payload:
    """Return the changes that remove a run's connections and reset its category; empty if the memory has neither."""
    if TOMBSTONE_KEY in row:
        return {}
    connections = row.get(CONNECTIONS_KEY) or []
    remaining = [connection for connection in connections if connection.get("run") != run_id]
    changes: Payload = {CONNECTIONS_KEY: remaining} if len(remaining) < len(connections) else {}
    if row.get(CATEGORY_RUN_KEY) == run_id:
        changes |= {"knowledgeCategory": agent.settings.knowledge_category, CATEGORY_RUN_KEY: None}
    return changes


async def _bearing(agent: Agent, key: str, run_id: str) -> AsyncIterator[Payload]:
    body = {"filter": narrow(STORED_FILTER, equals(key, run_id)), "limit": PAGE, "with_payload": True}
    async for points in read_pages(agent, body):
        for point in points:
            yield point["payload"]


async def read_proposals(agent: Agent, run_id: str | None = None) -> AsyncIterator[Proposal]:
    """Yield the facts that wait for an approval, without malformed ones.

    Args:
        run_id: Only proposals of this run. None for all.
    """
    filter_ = narrow(IS_PROPOSAL, equals(RUN_KEY, run_id)) if run_id else IS_PROPOSAL
    async for points in read_pages(agent, {"filter": filter_, "limit": PAGE, "with_payload": True}):
        for point in points:
            if proposal := proposal_from_payload(point["payload"]):
                yield proposal


async def approve(agent: Agent, run_id: str) -> Tally:
    """Store the facts that a run proposed, although parts of them are in no source; return the effects.

    Each proposal is then deleted, even if its fact was not stored (`LOST` or `KNOWN`).

    Raises:
        TransientError: If Qdrant or the embedder is unavailable. Repeating the call does the rest.
    """
    tally: Tally = Tally()
    async for proposal in read_proposals(agent, run_id):
        tally += await store_fact(agent, proposal.user_id, proposal.fact, run_id)
        await delete_proposal(agent, proposal)
    return tally


async def reject(agent: Agent, run_id: str) -> Tally:
    """Delete the proposals of a run; return their number as `LOST`.

    Raises:
        TransientError: If Qdrant is unavailable. Repeating the call deletes the rest.
    """
    tally: Tally = Tally()
    async for proposal in read_proposals(agent, run_id):
        await delete_proposal(agent, proposal)
        tally[PlanEffect.LOST] += 1
    return tally


async def delete_proposal(agent: Agent, proposal: Proposal) -> None:
    """Delete the point of a proposal; a missing point is no error."""
    await agent.store.delete(agent.alias, narrow(IS_PROPOSAL, {"has_id": [proposal.id]}))
