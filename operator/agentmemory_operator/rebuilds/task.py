"""The run of a rebuild or rollback, as passed to each of its steps."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.collections.announce import Announcement
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of


@dataclass(slots=True, kw_only=True)
class RebuildRun:
    """Run of a rebuild or rollback, from its recorded step on.

    Attributes:
        memory: AgentMemory at the start of this run.
        source: Collection behind the alias until the move, as observed at the start of this run.
        desired: Required state of the target. Its marker names the embedding of its vectors.
        record: Record as stored in the target's metadata.
        embedder: Embedder for the target; None if vectors are copied.
        check: Raises RebuildPaused or RebuildCancelled if the rebuild must stop. Steps up to Move call it before each
            page and while they wait.
        report_progress: Reports a record and a message ("" for none) to users.
        announcement: Announcement of the move by this run; None before it, and after the move or a withdrawal.
    """

    memory: AgentMemory
    server: Server
    source: Observation
    desired: Collection
    record: RebuildRecord
    clock: Clock
    embedder: Embedder | None
    check: Callable[[], Awaitable[None]]
    report_progress: Callable[[RebuildRecord, str], Awaitable[None]]
    announcement: Announcement | None = None

    @property
    def slug(self) -> str:
        """Slug of the agent, from which its alias is derived."""
        return self.memory.slug

    @property
    def alias(self) -> str:
        """Alias through which clients reach the agent's live collection."""
        return alias_of(self.memory.slug)

    @property
    def source_name(self) -> str:
        """Name of the collection that is replaced, from the record."""
        return self.record.source

    @property
    def target_name(self) -> str:
        """Name of the collection that replaces the source, from the record."""
        return self.record.target

    @property
    def marker(self) -> Marker:
        """Marker of the target, which `desired` must have."""
        assert self.desired.marker is not None
        return self.desired.marker

    async def update_record(self, **changes: Any) -> None:
        """Change fields of the record, write the record into the target's metadata, and report the progress.

        After a crash the next run continues from the written record.
        """
        self.record = replace(self.record, **changes)
        await self.server.snapshots.write_metadata(self.target_name, {REBUILD_KEY: record_to_json(self.record)})
        await self.report("")

    async def report(self, message: str) -> None:
        """Report the progress to users, with the current action or the cause of a wait; "" for neither."""
        await self.report_progress(self.record, message)
