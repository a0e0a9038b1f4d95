"""End a session: request a distillation of its turns and working memories, then drop the memories that end with it.

Working memories become invisible immediately. If a model is to read them, their content stays until the run is
completed or the next cleanup. Turns stored as a conversation have runs of their own and are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.collapse import DISTILLATION_SOURCE
from agentmemory_operator.distillation.rules.model_output import distilled_types, turn_type
from agentmemory_operator.memories.chains import contention_error
from agentmemory_operator.memories.point_pages import page_limit, read_memories, read_row
from agentmemory_operator.memories.rules.filters import NOT_DELETED, UNSEALED, Selection, narrow, visible_filter
from agentmemory_operator.memories.rules.record import DISTIL_DUE_KEY, DISTIL_END_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.memories.stored_memories import change_and_confirm
from agentmemory_operator.memories.working_memory import EndedSession, Session, WorkingMemory
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

MAX_SESSION_TURNS = 256


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Result of ending a session.

    Attributes:
        dropped: Numbers of dropped memories by type.
        run: Id of the distillation that follows. None if there is nothing to distil, or the agent cannot distil.
        request_row_id: Id of the row that requests the run; '' without one.
    """

    dropped: EndedSession
    run: str | None = None
    request_row_id: str = ""


async def end_session(agent: Agent, working: WorkingMemory, session: Session) -> SessionEnd:
    """End a session, and request a distillation if the agent has a model and can store its output.

    It can if it embeds texts itself and a memory type qualifies (see `distilled_types`).

    Raises:
        StoreUnavailable, OutcomeUnknown: If Qdrant is unavailable, or other writers change a row in every attempt. Some
            working memories may be dropped; repeating the call drops the rest.
    """
    if not _has_reader(agent):
        return SessionEnd(await working.end_session(agent, session))
    working_rows = [row for row in await working.read_rows(agent, session) if not row.get(ZONE_KEY)]
    rows = [*await _turns(agent, session), *working_rows]
    run = await _mark(agent, rows) if rows else None
    read_later = frozenset(row["id"] for row in working_rows) if run else frozenset()
    ended = await working.end_session(agent, session, expiring_ids=read_later)
    return SessionEnd(ended, run, _last_of(rows)["id"] if run else "")


def _has_reader(agent: Agent) -> bool:
    ranking = agent.settings.ranking
    has_types = bool(distilled_types(ranking.types, ranking.default_type, has_session=True))
    return agent.settings.language_model is not None and not agent.takes_vectors and has_types


async def _turns(agent: Agent, session: Session) -> list[Payload]:
    """Read the turns of a session since its last end, oldest first, without turns of conversations.

    They are selected from the newest 256 memories of the turns' type, or fewer if the agent's query limit is lower.
    """
    types = turn_type(agent.settings.ranking.types)
    selection = Selection(user_id=session.user_id, types=(types,) if types else (), session_id=session.session_id)
    filter_ = narrow(visible_filter(selection, agent.clock.now_ms(), agent.settings.ranking.endings), UNSEALED)
    body: dict[str, Any] = {
        "filter": filter_,
        "limit": page_limit(agent, MAX_SESSION_TURNS),
        "with_payload": True,
    }
    body |= {"order_by": {"key": "createdAt", "direction": "desc"}, "with_vector": False}
    turns: list[Payload] = []
    for row in (point["payload"] for point in (await read_memories(agent, body))[0]):
        if row.get(DISTIL_END_KEY):
            break
        if not row.get("conversationId") and row.get("source") != DISTILLATION_SOURCE:
            turns.append(row)
    return turns[::-1]


def _last_of(rows: Sequence[Payload]) -> Payload:
    """Return the row for the request: the last turn, which outlives the session, else the last working memory."""
    return next((row for row in reversed(rows) if not row.get("working")), rows[-1])


async def _mark(agent: Agent, rows: Sequence[Payload]) -> str | None:
    """Store the request for a run on one of the rows; return the id of the run, or None if that row is deleted.

    Raises:
        StoreUnavailable: If other writers change the row in every attempt. The session does not end.
    """
    run, last = str(uuid4()), _last_of(rows)["id"]
    changes = {
        "undistilled": [row["id"] for row in rows],
        DISTIL_DUE_KEY: True,
        DISTIL_END_KEY: True,
        "conversationId": run,
    }

    async def write(row: Payload | None) -> Payload | None:
        if row is None or TOMBSTONE_KEY in row:
            return {}
        return await change_and_confirm(agent, row, changes, NOT_DELETED)

    return run if await update(partial(read_row, agent, last), write, busy=contention_error(last)) else None
