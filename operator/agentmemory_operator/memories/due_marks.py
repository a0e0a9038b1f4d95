"""Clear the marks of memories after their keyword texts were checked; in the API process, for many requests together.

A mark that is not cleared, for example because the process ends, costs the sweep a check (`session_keywords.py`).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.rules.filters import equals
from agentmemory_operator.memories.rules.record import WINDOW_DUE_KEY

log = logging.getLogger(__name__)

# Seconds for which marks are collected.
PERIOD_S = 0.05
# Maximum duration in seconds of clearing an agent's marks, also at the end of the process. Less than the age at which
# the sweep reads them.
CLEAR_S = 5.0
# Maximum number of waiting marks of an agent. The sweep clears further ones.
MAX_WAITING = 10_000


class DueMarks:
    """Clears marks at once, or while `run` runs, later and together."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Agent, dict[str, int]]] = {}
        self._has_waiting = asyncio.Event()
        self._is_running = False

    async def clear(self, agent: Agent, rows: Iterable[Mapping[str, Any]]) -> None:
        """Clear the marks of rows that are unchanged since they were read."""
        revs = {row["id"]: row["rev"] for row in rows}
        if self._is_running:
            self._add(agent, revs)
        else:
            await clear_marks(agent, revs)

    async def run(self) -> None:
        """Clear marks until cancelled, then the rest of them."""
        self._is_running = True
        try:
            while True:
                await self._has_waiting.wait()
                await asyncio.sleep(PERIOD_S)
                self._has_waiting.clear()
                await self._clear_waiting()
        finally:
            self._is_running = False
            await self._clear_waiting()

    def _add(self, agent: Agent, revs: Mapping[str, int]) -> None:
        earlier, waiting = self._waiting.get(agent.alias, (agent, {}))
        if earlier.epoch != agent.epoch:
            # Rows of a replaced collection may have other neighbours in the new one, with the same `rev`.
            waiting = {}
        if len(waiting) < MAX_WAITING:
            waiting.update(revs)
            # Use the latest agent: an earlier one may have been opened before a move of the alias.
            self._waiting[agent.alias] = agent, waiting
            self._has_waiting.set()

    async def _clear_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        await asyncio.gather(*(self._clear(agent, revs) for agent, revs in waiting.values()))

    async def _clear(self, agent: Agent, revs: Mapping[str, int]) -> None:
        try:
            # Limit the delay that an unresponsive server of one agent causes to the marks of other agents.
            async with asyncio.timeout(CLEAR_S):
                await clear_marks(agent, revs)
        except asyncio.CancelledError:
            self._add(agent, revs)
            raise
        except (AgentMemoryError, TimeoutError) as error:
            log.info("clearing marks of agent %s is left to the sweep: %s", agent.settings.slug, error)


async def clear_marks(agent: Agent, revs: Mapping[str, int]) -> None:
    """Clear the marks of memories, given by id, if their `rev` is still the given one."""
    by_rev: dict[int, list[str]] = {}
    for id_, rev in revs.items():
        by_rev.setdefault(rev, []).append(id_)
    operations = [
        {"set_payload": {"payload": {WINDOW_DUE_KEY: False}, "filter": {"must": [{"has_id": ids}, equals("rev", rev)]}}}
        for rev, ids in by_rev.items()
    ]
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)
