"""Read, list, count and delete memories by id."""

from dataclasses import dataclass

from agentmemory_operator.domain.records import MemoryRecord
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Which memories of a user to list.

    Attributes:
        limit: 1..1,000.
        cursor: of the page before.
    """

    user_id: str
    type: str | None = None
    tag: str | None = None
    session_id: str | None = None
    include_superseded: bool = False
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page, newest first; `next_cursor` is None on the last."""

    records: tuple[MemoryRecord, ...]
    next_cursor: str | None


class Memories:
    """Memories of an agent by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def get(self, agent: Agent, memory_id: str, *, user_id: str) -> MemoryRecord:
        """Return a memory, superseded or not.

        Raises:
            NotFound: unknown, another user's, expired or deleted.
        """
        raise NotImplementedError

    async def list(self, agent: Agent, request: ListRequest) -> Page:
        """Return a page by createdAt, newest first, then by id.

        Raises:
            RequestInvalid: the cursor is not one of ours.
        """
        raise NotImplementedError

    async def delete(self, agent: Agent, memory_id: str, *, user_id: str) -> None:
        """Delete the head of a chain; its predecessor answers again.

        Raises:
            NotFound: unknown, another user's, expired or deleted before.
            Conflict: it is superseded; the head has to be deleted first.
            OutcomeUnknown: it may have been deleted.
        """
        raise NotImplementedError

    async def count(self, agent: Agent) -> int:
        """Return how many memories the agent holds, superseded and expired ones included."""
        raise NotImplementedError
