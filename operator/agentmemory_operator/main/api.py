"""Compose the retrieval API, and run it on a cluster for `agentmemory api`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE
from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.adapters.http.asgi_server import serving
from agentmemory_operator.adapters.http.served_certificate import ServedCertificate
from agentmemory_operator.adapters.kubernetes.agent_secret_store import KubernetesAgentSecrets
from agentmemory_operator.adapters.kubernetes.claim_config_maps import follow_claims
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.lease import own_namespace
from agentmemory_operator.adapters.kubernetes.signing_key import KubernetesSigningKey
from agentmemory_operator.adapters.kubernetes.token_reviews import KubernetesTokenReviews
from agentmemory_operator.adapters.kubernetes.transport import API, KubernetesTransport, load_configuration
from agentmemory_operator.adapters.user_tokens import JwtUserTokens
from agentmemory_operator.agents.agent_objects import JOB_KINDS, AgentObjects
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.agents.readiness import Readiness
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.connections.agent_secrets import AgentSecretReader
from agentmemory_operator.connections.embedders import with_prefixes
from agentmemory_operator.connections.embedding_cache import CachedEmbedder, EmbeddingCache
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.point_stores import PointStores
from agentmemory_operator.entrypoints.api.app import ApiOptionals, create_app
from agentmemory_operator.entrypoints.api.identity.auth import build_guard
from agentmemory_operator.entrypoints.api.load.request_slots import MIB, Limits
from agentmemory_operator.entrypoints.api.use_cases import build_services
from agentmemory_operator.entrypoints.cli.composition import ApiOptions
from agentmemory_operator.entrypoints.operator.watch_feed import CLAIMS, feed_claims, follow, follow_jobs, sources
from agentmemory_operator.main.egress import build_egress, with_api_server
from agentmemory_operator.main.key_stores import build_zone_keys, open_key_shards
from agentmemory_operator.main.models import Embedders, LanguageModels, Rerankers
from agentmemory_operator.main.processes import default_host, open_tracer, print_line, wait_until_stopped
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.ports.access import SigningKeys, TokenReviews
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import AgentSecretStore, ClusterReader, Secrets
from agentmemory_operator.ports.models import Embedder, LanguageModel
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.cluster_identity import ClusterIdentity
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.runtime.tasks import cancel, start_task
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.webhooks.receive import HookVerifier

API_SERVICE = "agentmemory-api"
# Rules in order of precedence: if two rules match the same text, the first names the type of the secret.
SECRET_RULES = (*library_rules(), *OWN_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEnvironment:
    """External services of an API process that depend on its environment: a cluster or a folder of manifests.

    Attributes:
        signing_keys: Stores the signing key of user tokens.
        key_shards: Stores the data keys of privacy zones; None if zones are not supported.
    """

    signing_keys: SigningKeys
    key_shards: KeyShards | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEnvironment(ApiEnvironment):
    """External services of an API process in a cluster.

    Attributes:
        reviews: Validates tokens of ServiceAccounts.
        handover_store: Contains the Secrets that the operator has copied for the API.
    """

    reviews: TokenReviews
    handover_store: AgentSecretStore


class Api:
    """The serving part of a process: agent directory, use cases and HTTP server.

    Args:
        cluster: Reads Secrets, namespace labels and the cluster id.
        open_store: Opens the point store of an endpoint, that is of a Qdrant server with a key.
        meter: Measures requests and calls to the stores.
        environment: With a `ClusterEnvironment`, the API can authenticate ServiceAccounts, and reads the Secrets that
            the operator has copied instead of the original ones.
        namespaces: Namespaces whose objects are served; empty serves all.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterReader,
        open_store: Callable[[Endpoint], PointStore],
        *,
        meter: ApiMeter,
        environment: ApiEnvironment,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._meter = meter
        in_cluster = environment if isinstance(environment, ClusterEnvironment) else None
        self._embedders, self._models = Embedders(settings, meter), LanguageModels(settings)
        self._cache = EmbeddingCache(settings.embedding_cache_mib * MIB)
        secrets = GuardedSecrets(cluster, settings.secret_hosts)
        self._secrets_of: Callable[[str], Secrets] = lambda slug: (
            AgentSecretReader(in_cluster.handover_store, slug) if in_cluster else secrets
        )
        clock, table = SystemClock(), ObjectTable()
        self._zone_keys_of = build_zone_keys(environment.key_shards, clock, self._secrets_of)
        self._callers = CallerCache(in_cluster.reviews, clock) if in_cluster else None
        has_identities = settings.auth == "kubernetes"
        self._user_tokens = UserTokens(environment.signing_keys, JwtUserTokens(), clock, has_identities)
        agent_secrets = self._secrets_of if in_cluster else None
        stores = PointStores(table, secrets, open_store, namespaces=cluster, secrets_of=agent_secrets)
        self._identity = ClusterIdentity(cluster.cluster_id)
        directory = self._directory_over(stores, clock)
        objects = AgentObjects(table, stores.read_status, is_cluster=in_cluster is not None)
        self.feed = ApiFeed(table, directory, stores.forget_agent, objects)
        self._rerankers = Rerankers(settings, self._embedders.files, self._secrets_of)
        hooks = HookVerifier(directory, self._secrets_of, clock)
        parts = (directory, self._rerankers.open, hooks, self._open_model, WORDLLAMA_MEASURE)
        self.services = build_services(*parts, objects=objects, meter=meter, writer=uuid4().hex[:8])
        followed = [*sources(namespaces), *((CLAIMS,) if in_cluster else ())]
        self.readiness = Readiness(
            *(followed, directory, stores.store_for), is_identified=lambda: self._identity.is_known
        )
        self._sweeper = Sweeper(directory)

    def _directory_over(self, stores: PointStores, clock: SystemClock) -> AgentDirectory:
        return AgentDirectory(
            *(stores.store_for, self._open_embedder, stores.capabilities_of),
            secret_rules=SECRET_RULES,
            timeout_of=stores.timeout_of,
            zone_keys_of=self._zone_keys_of,
            entity_lists=read_entity_lists(),
            cluster_id=self._identity.cluster_id,
            clock=clock,
        )

    async def _open_embedder(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder:
        embedder = await self._embedders.open(
            source, settings.embedding, namespace=settings.namespace, secrets=self._secrets_of(settings.slug)
        )
        entries = settings.embedding.cache_entries
        remembering = CachedEmbedder(embedder, cache=self._cache, entries=entries, meter=self._meter)
        return with_prefixes(remembering, source.prefixes)

    async def _open_model(self, settings: AgentSettings) -> LanguageModel:
        assert settings.language_model is not None
        return await self._models.open(settings.language_model, settings.owner, self._secrets_of(settings.slug))

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int, tls: tuple[Path, Path] | None = None) -> AsyncIterator[str]:
        """Serve while the context is open; yield the URL.

        Args:
            tls: Files of the certificate and its key for https; None serves http.

        Raises:
            AgentMemoryError: If these files are not a certificate with its key.
            SettingInvalid: If `auth` is "kubernetes" outside a cluster, or "none" on a `host` other than loopback
                without `accepts_auth_none`.
            OSError: If it cannot listen, for example because the port is in use.
        """
        certificate = ServedCertificate(*tls) if tls else None
        guard = build_guard(self._settings, host, callers=self._callers)
        settings = self._settings
        limits = Limits(
            requests=settings.max_requests, body_bytes=settings.max_body_mib * MIB, caller_rate=settings.max_caller_rate
        )
        app = create_app(
            *(self.services, guard, self._user_tokens),
            sources=self.readiness,
            limits=limits,
            options=ApiOptionals(serves_mem0=bool(settings.mem0), serves_ui=bool(settings.ui)),
        )
        background = [
            start_task(self._identity.run(), "reading the cluster id stopped"),
            start_task(self._sweeper.run(), "sweeping the agents stopped"),
            start_task(self.readiness.run(), "checking readiness stopped"),
        ]
        try:
            async with serving(app, host=host, port=port, certificate=certificate) as url:
                yield url
        finally:
            await cancel(*background)
            await self._embedders.close()
            await self._models.close()
            await self._rerankers.close()


def _follow(api: Api, cluster: KubernetesCluster, namespaces: Sequence[str]) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what feeds the objects of these namespaces, empty for all, to the API."""
    yield from (follow(api, cluster, *source) for source in sources(namespaces))
    yield from (follow_jobs(api, cluster, kind, name) for kind in JOB_KINDS for name in namespaces or ("",))


async def run_api_kubernetes(settings: Settings, options: ApiOptions) -> None:
    """Run the retrieval API on the objects of a cluster, until SIGTERM, SIGINT or the end of a background task.

    Raises:
        AgentMemoryError: If there is no usable Kubernetes configuration, or traces need a package that is missing.
        SettingInvalid, OSError: As in `Api.serving`. The error of a failed background task is raised too.
    """
    configuration = await load_configuration(API)
    async with AsyncExitStack() as stack:
        cluster = KubernetesCluster(configuration, cluster_id=settings.cluster_id)
        stack.push_async_callback(cluster.close)
        reviews = KubernetesTokenReviews(configuration)
        stack.push_async_callback(reviews.close)
        transport = KubernetesTransport(configuration)
        stack.push_async_callback(transport.close)
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        settings = with_api_server(settings, configuration.host)
        api = Api(
            settings,
            cluster,
            Stores(stack, meter=meter, egress=build_egress(settings)).points,
            meter=meter,
            environment=ClusterEnvironment(
                reviews=reviews,
                handover_store=KubernetesAgentSecrets(transport, options.api_namespace or own_namespace()),
                signing_keys=KubernetesSigningKey(transport, options.api_namespace or own_namespace()),
                key_shards=open_key_shards(transport, settings),
            ),
            namespaces=options.namespaces,
        )
        following = [asyncio.create_task(events) for events in _follow(api, cluster, options.namespaces)]
        namespace = options.lease_namespace or own_namespace()
        claims = follow_claims(cluster, namespace, lambda: api.readiness.record_activity(CLAIMS))
        following.append(asyncio.create_task(feed_claims(api, claims)))
        following.append(asyncio.create_task(api.readiness.check_start()))
        stack.push_async_callback(cancel, *following)
        host = options.host or default_host(settings)
        url = await stack.enter_async_context(api.serving(host, options.port, options.tls))
        print_line(f"API {url}")
        await wait_until_stopped(*following)
