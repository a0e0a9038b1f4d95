"""The end of a session: what was remembered only for it is dropped."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentmemory_operator.domain.filters import Selection
from agentmemory_operator.domain.taxonomy import WORKING
from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.memories import ListRequest, Memories
from agentmemory_operator.services.working import Session, WorkingMemory

PAGE = 100


@dataclass(frozen=True, slots=True)
class Ended:
    """How many memories were dropped, by type."""

    counts: Mapping[str, int]


class Sessions:
    """Ends sessions."""

    def __init__(self, memories: Memories, working: WorkingMemory) -> None:
        self._memories = memories
        self._working = working

    async def end(self, agent: Agent, session: Session) -> Ended:
        """Drop the session's working memory, and its memories of types that last as long as a session.

        What such a memory had superseded is dropped too, or answers again where it is of a type that lasts.

        Raises:
            StoreUnavailable, OutcomeUnknown: some may have been dropped; the same again drops the rest.
        """
        counts = {WORKING: await self._working.clear(agent, session)}
        types = agent.settings.session_types
        selection = Selection(user_id=session.user_id, types=types, session_id=session.session_id)
        while True:
            page = await self._memories.list(agent, ListRequest(selection=selection, limit=PAGE))
            for record in page.records:
                dropped = await self._drop(agent, record.id, user_id=session.user_id)
                counts[record.type] = counts.get(record.type, 0) + dropped
            if not page.records:
                return Ended({name: count for name, count in counts.items() if count})

    async def _drop(self, agent: Agent, memory_id: str, *, user_id: str) -> bool:
        """Delete a memory; return whether this call did, and nobody else at the same time."""
        try:
            await self._memories.delete(agent, memory_id, user_id=user_id)
        except (NotFound, Conflict):
            return False
        return True
