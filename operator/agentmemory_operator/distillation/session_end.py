"""The end of a session: what was said in it, and what it had in mind, is offered to a model before it is dropped.

What a session had in mind ends at once for everybody who reads. Where a model is to read it, its text stays until that
is done, or the next cleanup comes. Turns that came as conversations have runs of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.collapse import DISTILLATION
from agentmemory_operator.distillation.rules.answers import distilled_types, turn_type
from agentmemory_operator.memories.chains import contended
from agentmemory_operator.memories.point_pages import read_memories, read_row
from agentmemory_operator.memories.rules.filters import NOT_DELETED, UNSEALED, Selection, both, visible
from agentmemory_operator.memories.rules.record import DISTIL_DUE_KEY, DISTIL_END_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.memories.stored import change_marked
from agentmemory_operator.memories.working import Ended, Session, WorkingMemory
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

MAX_TURNS = 256


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """What the end of a session came to.

    Attributes:
        run: of the distillation that follows; None where there is nothing to distil, or no model.
        last: the memory that says so.
    """

    ended: Ended
    run: str | None = None
    last: str = ""


async def end_session(agent: Agent, working: WorkingMemory, session: Session) -> SessionEnd:
    """End a session; have it distilled where the agent has a model.

    Raises:
        StoreUnavailable, OutcomeUnknown: some may have been dropped; the same again drops the rest.
    """
    if not _has_reader(agent):
        return SessionEnd(await working.end(agent, session))
    minds = [row for row in await working.rows(agent, session) if not row.get(ZONE_KEY)]
    rows = [*await _turns(agent, session), *minds]
    run = await _mark(agent, rows) if rows else None
    kept = frozenset(row["id"] for row in minds) if run else frozenset()
    ended = await working.end(agent, session, read_later=kept)
    return SessionEnd(ended, run, _last_of(rows)["id"] if run else "")


def _has_reader(agent: Agent) -> bool:
    ranking = agent.settings.ranking
    has_types = bool(distilled_types(ranking.types, ranking.default_type, has_session=True))
    return agent.settings.language_model is not None and not agent.takes_vectors and has_types


async def _turns(agent: Agent, session: Session) -> list[Payload]:
    """The turns of a session since it ended last, oldest first, but for those of conversations."""
    types = turn_type(agent.settings.ranking.types)
    selection = Selection(user_id=session.user_id, types=(types,) if types else (), session_id=session.session_id)
    filter_ = both(visible(selection, agent.clock.now_ms(), agent.settings.ranking.endings), UNSEALED)
    most = agent.settings.ranking.max_query_limit
    body: dict[str, Any] = {"filter": filter_, "limit": min(MAX_TURNS, most or MAX_TURNS), "with_payload": True}
    body |= {"order_by": {"key": "createdAt", "direction": "desc"}, "with_vector": False}
    turns: list[Payload] = []
    for row in (point["payload"] for point in (await read_memories(agent, body))[0]):
        if row.get(DISTIL_END_KEY):
            break
        if not row.get("conversationId") and row.get("source") != DISTILLATION:
            turns.append(row)
    return turns[::-1]


def _last_of(rows: Sequence[Payload]) -> Payload:
    """The row that says what is to be distilled: a turn, which stays, where there is one."""
    return next((row for row in reversed(rows) if not row.get("working")), rows[-1])


async def _mark(agent: Agent, rows: Sequence[Payload]) -> str | None:
    """Write on one of the rows that they are to be distilled; None if that row is deleted.

    Raises:
        StoreUnavailable: If other writers change it all the time; the session goes on.
    """
    run, last = str(uuid4()), _last_of(rows)["id"]
    said = {
        "undistilled": [row["id"] for row in rows],
        DISTIL_DUE_KEY: True,
        DISTIL_END_KEY: True,
        "conversationId": run,
    }

    async def write(row: Payload | None) -> Payload | None:
        if row is None or TOMBSTONE_KEY in row:
            return {}
        return await change_marked(agent, row, said, NOT_DELETED)

    return run if await update(partial(read_row, agent, last), write, busy=contended(last)) else None
