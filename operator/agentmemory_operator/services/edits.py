"""Change what may change in place: everything about a memory but what it says, and what follows from that."""

import secrets
from collections.abc import Mapping
from typing import Any

from agentmemory_operator.domain.filters import NOT_DELETED, NOT_SUPERSEDED
from agentmemory_operator.domain.records import EDIT_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.errors import Conflict, StoreUnavailable
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.chains import MAX_ATTEMPTS, midway
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.memories import Memories
from agentmemory_operator.services.rows import change_row, read_row
from agentmemory_operator.services.scrubbing import clean_metadata

CHANGEABLE = ("importance", "tags", "metadata", "expiresAt", "pinned")
"""Payload keys; none is part of what a memory is found by as meaning or words."""


class Edits:
    """Changes memories in place."""

    def __init__(self, clock: Clock, memories: Memories) -> None:
        self._clock = clock
        self._memories = memories

    async def change(self, agent: Agent, memory_id: str, changes: Mapping[str, Any], *, user_id: str) -> MemoryRecord:
        """Change the newest version of a memory; return it as it then lies in the engine.

        Args:
            changes: by payload key, of those in `CHANGEABLE`; None takes the value away.

        Raises:
            NotFound: unknown, another user's, expired or deleted.
            Conflict: it is superseded; what is past stays as it was.
            OutcomeUnknown: it may have been changed.
        """
        if metadata := changes.get("metadata"):
            changes = {**changes, "metadata": clean_metadata(agent, metadata)}
        for _ in range(MAX_ATTEMPTS):
            row = await self._memories.row(agent, memory_id, user_id=user_id)
            if successor := row.get("supersededById"):
                raise Conflict(f"memory {memory_id} is superseded by {successor}: change the head of its chain")
            if changed := await self._try_change(agent, row, changes):
                agent.sizes.forget(user_id)
                return record_of(changed)
        raise StoreUnavailable(f"memory {memory_id} is being changed by many at once: try again")

    async def _try_change(self, agent: Agent, row: Payload, changes: Mapping[str, Any]) -> Payload | None:
        """Write the changes unless the row changed since it was read; return what lies there with them."""
        mark = secrets.token_hex(8)
        marked = {**changes, EDIT_KEY: mark}
        await change_row(agent, row, marked, NOT_SUPERSEDED, NOT_DELETED, now_ms=self._clock.now_ms())
        with midway():
            after = await read_row(agent, row["id"])
        return after if after and after.get(EDIT_KEY) == mark else None
