"""The retrieval API as in a process, on a development Qdrant server, with real HTTP on both sides."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import httpx

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.adapters.embedding.embedder_factory import build_embedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE
from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.user_tokens import JwtUserTokens, new_key, parse_key
from agentmemory_operator.agents.directory import AgentDirectory, ZoneKeysFactory
from agentmemory_operator.agents.fence import DEFAULT_TIMING, FenceTiming
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.collections.rules.claims import AgentClaim
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, METADATA_KEY
from agentmemory_operator.connections.embedders import MeteredEmbedder
from agentmemory_operator.connections.embedding_cache import CachedEmbedder, EmbeddingCache
from agentmemory_operator.entrypoints.api.app import ALWAYS_READY, ApiOptionals, SourceState, create_app
from agentmemory_operator.entrypoints.api.identity.auth import Guard, IdentityGuard, OpenGuard
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.api.use_cases import Services, build_services
from agentmemory_operator.errors import TransientError
from agentmemory_operator.main.models import LanguageModels, Rerankers
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.ports.access import SigningKey
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.models import Embedder, LanguageModel
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import KEYWORD_INDEXES, RETRIEVAL_INDEXES
from agentmemory_operator.webhooks.receive import HookVerifier
from tests.support.engine.fakes import FakeSecrets
from tests.support.spec.documents import Document, cluster_id, marker_for
from tests.support.web.http_server import check_success, serve
from tests.support.web.shown_objects import ShownObjects

TIMEOUT_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running API."""

    api_url: str
    qdrant_url: str
    services: Services


@dataclass(slots=True)
class FixedSigningKey:
    """Holds a signing key for user tokens in memory."""

    key: SigningKey | None = field(default_factory=lambda: parse_key(new_key()))

    async def read(self) -> SigningKey:
        if self.key is None:
            raise TransientError("user tokens cannot be verified at the moment", retry_after_s=2)
        return self.key


@dataclass(frozen=True, slots=True)
class ConstantSources:
    """Sources with a constant state."""

    reason: str | None
    age: float
    unread: str | None = None

    def find_obstacle(self) -> str | None:
        return self.unread or self.reason

    def find_unread(self) -> str | None:
        return self.unread

    def age_s(self) -> float:
        return self.age


def create_collection(qdrant_url: str, document: Document) -> None:
    """Create the collection that the operator would create, as far as the API needs it."""
    settings = effective_settings(parse_agent_memory(document))
    source = settings.embedding
    embedding = {"provider": source.provider, "model": source.model, "dimensions": source.dimensions}
    embedding |= {"baseUrl": source.base_url} if source.base_url else {}
    physical = f"{settings.alias}__1"
    words = {"keyword": {"language": "english", "window": 2}} if settings.has_keyword else {}
    body = {
        "vectors": {"size": source.dimensions, "distance": "Cosine"},
        "sparse_vectors": {KEYWORD_VECTOR: {"modifier": "idf"}} if words else {},
        "metadata": {METADATA_KEY: marker_for(settings.name, embedding=embedding, **words)},
    }
    action = {"create_alias": {"collection_name": physical, "alias_name": settings.alias}}
    with httpx.Client(base_url=qdrant_url, timeout=30) as client:
        check_success(client.put(f"/collections/{physical}", json=body))
        for field, schema in (*RETRIEVAL_INDEXES, *(KEYWORD_INDEXES if words else ())):
            index = {"field_name": field, "field_schema": schema}
            check_success(client.put(f"/collections/{physical}/index?wait=true", json=index))
        check_success(client.post("/collections/aliases", json={"actions": [action]}))


def build_stack_services(
    qdrant_url: str,
    *documents: Document,
    api_keys: Mapping[str, str] | None = None,
    meter: ApiMeter | None = None,
    models: pathlib.Path | None = None,
    times: FenceTiming = DEFAULT_TIMING,
    embedder_of: Callable[[EmbeddingSource], Embedder] | None = None,
    clock: Clock | None = None,
    secrets: Mapping[tuple[str, str, str], str] | None = None,
    zone_keys_of: ZoneKeysFactory = lambda *_: None,
    shown: ShownObjects | None = None,
) -> Services:
    """Build the use cases on one Qdrant server, with these objects."""
    meter = meter or ApiMeter()
    store = QdrantPoints(qdrant_url, timeout_s=TIMEOUT_S, meter=meter)
    cache = EmbeddingCache(1 << 20)

    async def make_store(settings: AgentSettings) -> PointStore:
        return store

    async def make_embedder(source: EmbeddingSource, settings: AgentSettings) -> Embedder:
        key = (api_keys or {}).get(settings.slug)
        embedder = embedder_of(source) if embedder_of else build_embedder(source, settings.embedding, api_key=key)
        metered = MeteredEmbedder(embedder, meter, provider=source.provider)
        return CachedEmbedder(metered, cache=cache, entries=100, meter=meter)

    rules = (*library_rules(), *OWN_RULES)
    clock = clock or SystemClock()
    directory = AgentDirectory(
        make_store,
        make_embedder,
        secret_rules=rules,
        times=times,
        timeout_of=lambda _: TIMEOUT_S,
        zone_keys_of=zone_keys_of,
        entity_lists=read_entity_lists(),
        cluster_id=cluster_id,
        clock=clock,
    )
    for document in documents:
        metadata = document["metadata"]
        settings = effective_settings(parse_agent_memory(document))
        directory.put(AgentClaim(uid=metadata["uid"], created=metadata["creationTimestamp"], settings=settings))
    settings_read = Settings.from_env({})
    rerankers = Rerankers(settings_read, ModelFiles(folder=models), lambda slug: FakeSecrets(secrets or {}))
    hooks = HookVerifier(directory, lambda slug: FakeSecrets(secrets or {}), clock)
    language_models = LanguageModels(settings_read)

    async def open_model(settings: AgentSettings) -> LanguageModel:
        assert settings.language_model is not None
        return await language_models.open(settings.language_model, settings.owner, FakeSecrets(secrets or {}))

    parts = (directory, rerankers.open, hooks, open_model, WORDLLAMA_MEASURE)
    return build_services(*parts, objects=(shown or ShownObjects()).objects, meter=meter, writer="test")


@contextlib.contextmanager
def running_api(
    qdrant_url: str,
    *documents: Document,
    guard: Guard | None = None,
    sources: SourceState = ALWAYS_READY,
    limits: Limits | None = None,
    meter: ApiMeter | None = None,
    models: pathlib.Path | None = None,
    times: FenceTiming = DEFAULT_TIMING,
    embedder_of: Callable[[EmbeddingSource], Embedder] | None = None,
    clock: Clock | None = None,
    secrets: Mapping[tuple[str, str, str], str] | None = None,
    zone_keys_of: ZoneKeysFactory = lambda *_: None,
    shown: ShownObjects | None = None,
    serves_mem0: bool = False,
    serves_ui: bool = False,
) -> Iterator[Stack]:
    """Serve the API for agents with existing collections."""
    services = build_stack_services(
        *(qdrant_url, *documents),
        meter=meter,
        models=models,
        times=times,
        embedder_of=embedder_of,
        clock=clock,
        secrets=secrets,
        zone_keys_of=zone_keys_of,
        shown=shown,
    )
    guard = guard or OpenGuard()
    tokens = UserTokens(
        FixedSigningKey(), JwtUserTokens(), clock or SystemClock(), has_identities=isinstance(guard, IdentityGuard)
    )
    options = ApiOptionals(serves_mem0=serves_mem0, serves_ui=serves_ui)
    app = create_app(services, guard, tokens, sources=sources, limits=limits, options=options)
    with serve(app) as url:
        yield Stack(api_url=url, qdrant_url=qdrant_url, services=services)
