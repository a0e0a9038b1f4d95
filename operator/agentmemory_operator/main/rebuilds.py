"""Compose rebuilds: the operation of each step, and the embedders, which consolidations use too."""

from collections.abc import Callable

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.replaced_collection import drop_rebuild_index
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep
from agentmemory_operator.connections.embedders import with_prefixes
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import RebuildPaused, SpecInvalid
from agentmemory_operator.main.models import Embedders
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.budget import RebuildMeter
from agentmemory_operator.rebuilds.catch_up import catch_up
from agentmemory_operator.rebuilds.controller import StepWork
from agentmemory_operator.rebuilds.converge import ConvergeStep
from agentmemory_operator.rebuilds.copy import CopyStep
from agentmemory_operator.rebuilds.drain import DrainStep, mark_source_replaced
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.plain_swap import create_way_back
from agentmemory_operator.rebuilds.verify import VerifyStep
from agentmemory_operator.runtime.object_table import Key, key_of_memory
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource, effective_embedding
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory


class RebuildEmbedders:
    """Opens embedders for rebuilds and consolidations, and caches them by namespace, source and settings.

    Args:
        secrets: Reads the keys, in the namespace of the object, and checks their destinations.
    """

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self.meter = RebuildMeter()
        self._embedders = Embedders(settings, self.meter)
        self._secrets = secrets
        self._opened: dict[tuple[str, EmbeddingSource, EmbeddingSettings], Embedder] = {}
        self.close = self._embedders.close

    async def open(self, source: EmbeddingSource, memory: AgentMemory) -> Embedder:
        """Open the embedder of a collection, which is the target of a rebuild or is being consolidated.

        Raises:
            RebuildPaused: If the object or its Secret must be corrected first, or callers send the vectors.
            TransientError: If the key cannot be read now.
        """
        settings, namespace = effective_embedding(memory), memory.metadata.namespace
        opened = self._opened.get((namespace, source, settings))
        if opened is None:
            try:
                opened = await self._open(source, settings, namespace)
            except SpecInvalid as exc:
                raise RebuildPaused(str(exc)) from exc
            self._opened[namespace, source, settings] = opened
        return opened

    async def _open(self, source: EmbeddingSource, settings: EmbeddingSettings, namespace: str) -> Embedder:
        if source.provider == "none":
            raise SpecInvalid(
                "InvalidSpec", "spec.embedding.provider: provider none cannot embed: callers send the vectors"
            )
        embedder = await self._embedders.open(source, settings, namespace=namespace, secrets=self._secrets)
        return with_prefixes(embedder, source.prefixes)


def rebuild_steps(locks: AliasLocks, *is_changed: Callable[[Key], bool]) -> dict[RebuildStep, StepWork]:
    """Return the operation of each step except Create, which the controller runs, and Done.

    Args:
        is_changed: Functions that return whether an object's memories are being removed or merged. Until that ends, the
            alias is not moved.
    """
    converge = ConvergeStep()
    move = MoveStep(locks, lambda task: any(is_busy(key_of_memory(task.memory)) for is_busy in is_changed))
    return {
        RebuildStep.COPY: CopyStep(),
        RebuildStep.CATCH_UP: catch_up,
        RebuildStep.CONVERGE: converge,
        RebuildStep.VERIFY: move.with_announcement(VerifyStep(converge)),
        RebuildStep.KEEP: create_way_back,
        RebuildStep.MOVE: move,
        RebuildStep.DRAIN: DrainStep(),
        RebuildStep.SETTLE: mark_source_replaced,
    }


async def abandon(server: Server, record: RebuildRecord) -> None:
    """Drop the index that a cancelled rebuild has created on its source collection, if there is one."""
    await drop_rebuild_index(server, record.source)
