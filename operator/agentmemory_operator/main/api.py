"""`agentmemory api`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.adapters.fastembed_reranker import FastEmbedReranker
from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes_handover import KubernetesHandover
from agentmemory_operator.adapters.kubernetes_lease import own_namespace
from agentmemory_operator.adapters.kubernetes_tokens import KubernetesTokenReviews
from agentmemory_operator.adapters.kubernetes_transport import KubernetesTransport, load_configuration
from agentmemory_operator.adapters.manifest_folder import ManifestFolder
from agentmemory_operator.domain.collection import EmbeddingSource
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.secret_rules import OWN_RULES
from agentmemory_operator.entrypoints.api.app import create_app
from agentmemory_operator.entrypoints.api.auth import build_guard
from agentmemory_operator.entrypoints.api.pressure import MIB, Limits
from agentmemory_operator.entrypoints.api.use_cases import compose
from agentmemory_operator.entrypoints.cli import ApiOptions
from agentmemory_operator.entrypoints.following import follow, follow_folder, sources
from agentmemory_operator.entrypoints.operating import cancel
from agentmemory_operator.main.embedding import Embedders
from agentmemory_operator.main.processes import default_host, open_tracer, say, until_stopped
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.ports import ClusterReader, Embedder, HandoverStore, PointStore, Secrets, TokenReviews
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.callers import Callers
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.directory import AgentDirectory
from agentmemory_operator.services.embedding_cache import CachedEmbedder
from agentmemory_operator.services.feeds import ApiFeed
from agentmemory_operator.services.handover import HandedOverSecrets
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.objects import ObjectTable
from agentmemory_operator.services.point_stores import PointStores
from agentmemory_operator.services.standing import Standing
from agentmemory_operator.services.sweeper import Sweeper
from agentmemory_operator.services.windows import Windows
from agentmemory_operator.settings import Settings

API_SERVICE = "agentmemory-api"
# Where two find the same, the library's says of which kind it is.
SECRET_RULES = (*library_rules(), *OWN_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """What only a cluster has.

    Attributes:
        reviews: who knows the tokens of ServiceAccounts.
        handover_store: where the operator puts what is needed of Secrets.
    """

    reviews: TokenReviews
    handover_store: HandoverStore


class Api:
    """The retrieval half: directory and use cases.

    Args:
        cluster: where API keys and labels of namespaces are read.
        open_store: makes the store of an endpoint.
        meter: what is measured of it and of its stores.
        in_cluster: what only a cluster has; without it Secrets are read themselves.
        namespaces: whose objects are read; none is all.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterReader,
        open_store: Callable[[Endpoint], PointStore],
        *,
        meter: ApiMeter,
        in_cluster: InCluster | None = None,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._meter = meter
        self._embedders = Embedders(settings, meter)
        self._secrets_of: Callable[[str], Secrets] = lambda slug: (
            HandedOverSecrets(in_cluster.handover_store, slug) if in_cluster else cluster
        )
        clock, table = SystemClock(), ObjectTable()
        self._callers = Callers(in_cluster.reviews, clock) if in_cluster else None
        secrets_of = self._secrets_of if in_cluster else None
        stores = PointStores(table, cluster, open_store, namespaces=cluster, secrets_of=secrets_of)
        directory = AgentDirectory(
            stores.store_for, self._open_embedder, stores.capabilities_of, secret_rules=SECRET_RULES
        )
        self.feed = ApiFeed(table, directory, stores.forget)
        reranker = FastEmbedReranker(self._embedders.files)
        self.services = compose(directory, reranker, clock=clock, meter=meter, writer=uuid4().hex[:8])
        self.standing = Standing(sources(namespaces), directory, stores.store_for)
        self._sweeper = Sweeper(directory, Chains(clock), Windows(clock))

    async def _open_embedder(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder:
        embedder = await self._embedders.open(
            source, settings.embedding, namespace=settings.namespace, secrets=self._secrets_of(settings.slug)
        )
        return CachedEmbedder(embedder, entries=settings.embedding.cache_entries, meter=self._meter)

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while the context is open; yield the URL."""
        guard = build_guard(self._settings, host, callers=self._callers)
        settings = self._settings
        limits = Limits(
            requests=settings.max_requests,
            body_bytes=settings.max_body_mib * MIB,
            caller_rate=settings.max_caller_rate,
        )
        app = create_app(self.services, guard, standing=self.standing, limits=limits)
        beside = [asyncio.create_task(work) for work in (self._sweeper.run(), self.standing.run())]
        try:
            async with serving(app, host=host, port=port) as url:
                yield url
        finally:
            await cancel(*beside)


async def run_api_kubernetes(settings: Settings, options: ApiOptions) -> None:
    """Run the retrieval API on the objects of a cluster."""
    configuration = await load_configuration()
    async with AsyncExitStack() as stack:
        cluster = KubernetesCluster(configuration)
        stack.push_async_callback(cluster.close)
        reviews = KubernetesTokenReviews(configuration)
        stack.push_async_callback(reviews.close)
        transport = KubernetesTransport(configuration)
        stack.push_async_callback(transport.close)
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        api = Api(
            settings,
            cluster,
            Stores(stack, meter=meter).points,
            meter=meter,
            in_cluster=InCluster(
                reviews=reviews,
                handover_store=KubernetesHandover(transport, options.api_namespace or own_namespace()),
            ),
            namespaces=options.namespaces,
        )
        following = [asyncio.create_task(follow(api, cluster, *source)) for source in sources(options.namespaces)]
        stack.push_async_callback(cancel, *following)
        url = await stack.enter_async_context(api.serving(options.host or default_host(settings), options.port))
        say(f"API {url}")
        await until_stopped(*following)


async def run_api_files(settings: Settings, options: ApiOptions, manifests: Path) -> None:
    """Run the retrieval API on a folder of manifests; their collections exist already."""
    async with AsyncExitStack() as stack:
        folder = ManifestFolder(manifests, keeps_status=False)
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        stores = Stores(stack, url=settings.qdrant_url, api_key=settings.qdrant_api_key, meter=meter)
        api = Api(settings, folder, stores.points, meter=meter)
        following = asyncio.create_task(follow_folder(folder, api, None))
        stack.push_async_callback(cancel, following)
        url = await stack.enter_async_context(api.serving(options.host or default_host(settings), options.port))
        say(f"API {url}")
        await until_stopped(following)
