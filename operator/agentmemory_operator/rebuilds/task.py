"""One rebuild under way, as each of its steps sees it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.collections.announce import Announcement
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observed
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of


@dataclass(slots=True, kw_only=True)
class RebuildRun:
    """One rebuild under way.

    Attributes:
        memory: the object as it was when this run began.
        source: what the alias leads to until the move.
        desired: what the target is to be; its marker says what its vectors are.
        record: as it lies in the target's metadata.
        embedder: of the target's embedding; None where its vectors are the source's.
        check: passes while the rebuild is to go on; steps ask before each batch.
        show: tells people how far it is.
        announcement: of its move, by this run.
    """

    memory: AgentMemory
    server: Server
    source: Observed
    desired: Collection
    record: RebuildRecord
    clock: Clock
    embedder: Embedder | None
    check: Callable[[], Awaitable[None]]
    show: Callable[[RebuildRecord, str], Awaitable[None]]
    announcement: Announcement | None = None

    @property
    def slug(self) -> str:
        """The agent's."""
        return self.memory.slug

    @property
    def alias(self) -> str:
        """The agent's."""
        return alias_of(self.memory.slug)

    @property
    def source_name(self) -> str:
        """Of the collection that is replaced."""
        return self.record.source

    @property
    def target_name(self) -> str:
        """Of the collection that replaces it."""
        return self.record.target

    @property
    def marker(self) -> Marker:
        """The target's."""
        assert self.desired.marker is not None
        return self.desired.marker

    async def note(self, **changes: Any) -> None:
        """Change the record, in the target's metadata too: what is noted is not done again after a kill."""
        self.record = replace(self.record, **changes)
        await self.server.snapshots.write_metadata(self.target_name, {REBUILD_KEY: record_to_json(self.record)})
        await self.tell("")

    async def tell(self, message: str) -> None:
        """Tell people what it does at the moment, or waits for."""
        await self.show(self.record, message)
