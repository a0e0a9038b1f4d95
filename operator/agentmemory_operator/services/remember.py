"""Store memories: check, embed in one call, write the plain ones in one request, join the others to their chains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent

Event = Literal["ADD", "SUPERSEDE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A memory to store. The caller has checked its form; what depends on the agent is checked here.

    Attributes:
        type: None is the agent's first type.
        importance: 0..1.
        created_at, expires_at: Unix milliseconds; created_at None is now.
        vector: only with provider `none`, and demanded there.
        idempotency_key: the same key and body again gives the same memory; another body is a Conflict.
    """

    user_id: str
    content: str
    type: str | None = None
    importance: float = 0.5
    confidence: float | None = None
    session_id: str | None = None
    source: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    supersedes: str | None = None
    created_at: int | None = None
    expires_at: int | None = None
    vector: Sequence[float] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A memory that is durable now.

    Attributes:
        recorded: false where an event left nothing new behind.
    """

    id: str
    event: Event
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


class Remember:
    """Stores memories."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def store(self, agent: Agent, memories: Sequence[NewMemory]) -> list[Stored | AgentMemoryError]:
        """Store each memory; one result an item, in order: stored, or the error that kept this one out.

        An item's error is RequestInvalid, NotFound (what it supersedes), Conflict or a TransientError.

        Raises:
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: the batch may have been written.
        """
        raise NotImplementedError
