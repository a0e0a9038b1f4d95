"""Open the resources of a consolidation: a client for the points of one agent, its embedder and its language model."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.agents.directory import Agent, open_collection
from agentmemory_operator.connections.point_stores import ScopedPointStores
from agentmemory_operator.consolidation.run import OpenAgent
from agentmemory_operator.entities.rules.lists import build_lists
from agentmemory_operator.errors import RebuildPaused, SpecInvalid
from agentmemory_operator.main.models import LanguageModels
from agentmemory_operator.memories.rules.scrubbing import SecretRule
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.models import Embedder, LanguageModel
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.rebuilds.controller import OpenEmbedder
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.consolidation import ConsolidationSettings, ModelSettings
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason

OpenLanguageModel = Callable[[ModelSettings, tuple[str, str], Secrets], Awaitable[LanguageModel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationParts:
    """Opens the resources of a consolidation run.

    Attributes:
        embedder: Opens embedders, and reads their keys.
        language_model: Opens language models.
        secrets: Reads the keys of language models, and checks that each Secret lists the destination if the settings
            require that.
    """

    points: ScopedPointStores
    table: ObjectTable
    clock: Clock
    cluster_id: ClusterId
    embedder: OpenEmbedder
    language_model: OpenLanguageModel
    secrets: Secrets

    @asynccontextmanager
    async def open_store(self, memory: AgentMemory) -> AsyncIterator[OpenAgent]:
        """Open the agent's points; yield a function that opens the agent, to be called inside the block.

        Each call of it reads the collection's metadata again, but uses the settings of `memory`. It raises SpecInvalid
        if the agent's embedding or its Secret must be corrected first, and the errors of `open_collection`.
        """
        async with self.points.open_store(memory) as store:

            async def open_now() -> Agent:
                return await self._open(memory, store)

            yield open_now

    async def open_model(self, memory: AgentMemory, settings: ConsolidationSettings) -> LanguageModel:
        """Open the language model that the settings name. Errors are those of `LanguageModels.open`."""
        return await self.language_model(settings.model, (memory.metadata.namespace, memory.slug), self.secrets)

    async def _open(self, memory: AgentMemory, store: PointStore) -> Agent:
        settings = effective_settings(memory)
        agent = await open_collection(
            *(store, settings, CallerVectors(settings.embedding.dimensions), self.clock),
            cluster_id=self.cluster_id,
            min_epoch=self.table.claims.min_epoch_of(settings.slug),
        )
        rules = _secret_rules() if settings.scrubs_secrets else ()
        lists = build_lists(settings.entities, read_entity_lists()) if settings.entities else None
        embedder = await self._embedder(agent, memory)
        return replace(agent, embedder=embedder, secret_rules=rules, entity_lists=lists)

    async def _embedder(self, agent: Agent, memory: AgentMemory) -> Embedder:
        if agent.takes_vectors:
            message = "spec.embedding.provider: merged facts need embeddings: choose a provider other than none"
            raise SpecInvalid(Reason.INVALID_SPEC, message)
        try:
            return await self.embedder(agent.source, memory)
        except RebuildPaused as exc:
            reason = exc.__cause__.reason if isinstance(exc.__cause__, SpecInvalid) else Reason.INVALID_SPEC
            raise SpecInvalid(reason, str(exc)) from exc


def open_models(settings: Settings, stack: AsyncExitStack) -> OpenLanguageModel:
    """Return a function that opens language models. The models are closed with the stack."""
    models = LanguageModels(settings)
    stack.push_async_callback(models.close)
    return models.open


@cache
def _secret_rules() -> Sequence[SecretRule]:
    """Load the rules for secrets in texts once, and only if an object uses them."""
    library = import_module("agentmemory_operator.adapters.detect_secrets_rules")
    return (*library.library_rules(), *OWN_RULES)
