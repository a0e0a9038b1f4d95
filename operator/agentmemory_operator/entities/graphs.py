"""Cache of entity graphs. A search waits for one call to Qdrant per eight scopes without a current cached graph."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.graph import ScopeGraph, build_graph
from agentmemory_operator.entities.rules.sheet import sheet_from_payload, sheet_id
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.point_pages import page_limit
from agentmemory_operator.memories.rules.entities import ENTITIES_KEY
from agentmemory_operator.memories.rules.filters import UNSEALED, Selection, narrow, visible_filter
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import ENTITY_SHEET_KEY, TOMBSTONE_KEY
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import run_in_slices

MAX_AGE_S = 10.0
"""Maximum age of a cached graph in seconds. Only writes of this process invalidate the graph before that age."""

RENEW_AFTER_S = 7.0
"""Age in seconds from which a use of the graph also starts a read in the background."""

MAX_GRAPH_MEMORIES = 2_000
"""Maximum number of memories in a graph. The newest memories are chosen."""

MAX_SCOPES_PER_CALL = 8
"""Maximum number of scopes in one call.

Each needs two queries; 16 is the lowest permitted `strictMode.searchMaxBatchsize`.
"""

MAX_CACHE_BYTES = 64 << 20

_Key = tuple[str, object, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    graph: ScopeGraph
    read_s: float
    mark: object


class EntityGraphs:
    """LRU cache of graphs by agent and scope, bounded by size over all agents.

    Not thread-safe: use it on one event loop.

    Args:
        monotonic: Clock of the graphs' age, in seconds.
        max_bytes: Maximum total of the graphs' estimated sizes. A single graph is kept even if it is larger.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._monotonic = monotonic
        self._max_bytes = max_bytes
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._size = 0
        self._renewing: dict[_Key, asyncio.Task[None]] = {}

    async def read(self, agent: Agent, scopes: Sequence[str], *, is_fresh: bool = False) -> list[ScopeGraph]:
        """Return the graphs of some scopes of an agent, in order.

        Args:
            scopes: Users or shared scopes.
            is_fresh: True to read all graphs now instead of using the cache.

        Raises:
            StoreUnavailable: If Qdrant is unavailable.
        """
        current = {
            scope: self._use(agent, scope) for scope in scopes if not is_fresh and self._is_current(agent, scope)
        }
        missing = [scope for scope in scopes if scope not in current]
        graphs = current | (await self._read(agent, missing) if missing else {})
        return [graphs[scope] for scope in scopes]

    def _is_current(self, agent: Agent, scope: str) -> bool:
        cached = self._kept.get(_key(agent, scope))
        if cached is None or cached.mark is not agent.sizes.write_marker(scope):
            return False
        age_s = self._monotonic() - cached.read_s
        if RENEW_AFTER_S <= age_s < MAX_AGE_S:
            self._renew(agent, scope)
        return age_s < MAX_AGE_S

    def _use(self, agent: Agent, scope: str) -> ScopeGraph:
        key = _key(agent, scope)
        self._kept.move_to_end(key)
        return self._kept[key].graph

    async def _read(self, agent: Agent, scopes: Sequence[str]) -> dict[str, ScopeGraph]:
        """Read graphs, up to eight scopes per call. Cache them with a mark that writes of this process invalidate."""
        marks = {scope: agent.sizes.write_marker(scope) for scope in scopes}
        read_s = self._monotonic()
        calls = [
            agent.store.query_batch(agent.alias, [body for scope in part for body in _bodies(agent, scope)])
            for part in chunks_of(scopes, MAX_SCOPES_PER_CALL)
        ]
        answers = (answer for part in await asyncio.gather(*calls) for answer in part)
        graphs: dict[str, ScopeGraph] = {}
        for scope in scopes:
            memories, sheets = next(answers), next(answers)
            rows = [point["payload"] | {"id": point["id"]} for point in memories]
            rows = [row for row in rows if TOMBSTONE_KEY not in row]
            sheet = sheet_from_payload(sheets[0]["payload"] if sheets else None)
            graphs[scope] = await run_in_slices(build_graph(rows, sheet))
            self._keep(_key(agent, scope), _Kept(graphs[scope], read_s, marks[scope]))
        return graphs

    def _keep(self, key: _Key, cached: _Kept) -> None:
        if replaced := self._kept.pop(key, None):
            self._size -= replaced.graph.size_bytes
        self._kept[key] = cached
        self._size += cached.graph.size_bytes
        while self._size > self._max_bytes and len(self._kept) > 1:
            _, evicted = self._kept.popitem(last=False)
            self._size -= evicted.graph.size_bytes

    def _renew(self, agent: Agent, scope: str) -> None:
        key = _key(agent, scope)
        if key in self._renewing:
            return

        async def renew() -> None:
            # Ignore errors: when the graph is too old, a search reads it and reports its error.
            with contextlib.suppress(AgentMemoryError):
                await self._read(agent, [scope])

        task = self._renewing[key] = asyncio.create_task(renew())
        task.add_done_callback(lambda _: self._renewing.pop(key))


def _key(agent: Agent, scope: str) -> _Key:
    return agent.alias, agent.epoch, scope


def _bodies(agent: Agent, scope: str) -> list[Json]:
    """Build two queries: for the newest visible memories of a scope, except encrypted ones, and for its sheet."""
    unsealed = [UNSEALED] if agent.settings.zones else []
    alive = narrow(
        visible_filter(Selection(user_id=scope), agent.clock.now_ms(), agent.settings.ranking.endings), *unsealed
    )
    newest = {"order_by": {"key": "createdAt", "direction": "desc"}}
    limit = page_limit(agent, MAX_GRAPH_MEMORIES)
    sheet = {"must": [{"has_id": [sheet_id(agent.id_slug, scope)]}]}
    return [
        {"query": newest, "filter": alive, "limit": limit, "with_payload": [ENTITIES_KEY, TOMBSTONE_KEY]},
        {"filter": sheet, "limit": 1, "with_payload": [ENTITY_SHEET_KEY]},
    ]
