"""The kopf side of the operator: handlers that pass watch events to the feed, and decide nothing.

Objects have only `on.event` handlers. These are level-triggered, write no annotations, need no finalizer, and leave
retries to the work queue (docs/adr/0003).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kopf
from kubernetes.aio import client

from agentmemory_operator.adapters.kubernetes.cluster import PAGE_SIZE, strip_managed_fields
from agentmemory_operator.adapters.kubernetes.transport import user_agent
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.spec.kinds.agent_memory import GROUP, VERSION
from agentmemory_operator.spec.kinds.crds import KINDS

# Seconds after which the API server ends a watch request. kopf ends one 10 s later itself, if a load balancer has
# silently dropped its connection.
WATCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class NamedConnection(kopf.ConnectionInfo):
    """Credentials with a User-Agent that replaces kopf's own.

    Attributes:
        user_agent: Value of the header, the same as that of this process's other Kubernetes clients.
    """

    user_agent: str = ""

    def as_http_headers(self) -> dict[str, str]:
        """Return the headers that kopf sends with every request, with the User-Agent replaced."""
        return super().as_http_headers() | {"User-Agent": self.user_agent}


class NoDiffBaseStorage(kopf.DiffBaseStorage):
    """Storage without last-handled configurations. Only change handlers need these, and there are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return an empty essence, without the cost of copying the object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return None: no last-handled configuration is stored."""

    def store(self, **_: Any) -> None:
        """Do nothing."""


def build_registry(
    feed: OperatorFeed, configuration: client.Configuration, *, on_stop: Callable[[], Awaitable[None]]
) -> kopf.OperatorRegistry:
    """Register handlers that pass every event of every kind to the feed.

    Args:
        on_stop: Stops the other tasks when kopf ends. Otherwise kopf would wait up to 5 s for all tasks that were
            created after its own start.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await on_stop()

    for kind in KINDS:

        @kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=f"take-{kind.plural}")
        async def take(event: kopf.RawEvent, body: kopf.Body, _kind: str = kind.name, **__: Any) -> None:
            feed.take(event["type"] or "ADDED", strip_managed_fields(_kind, event["object"]))

    return registry


def operator_settings() -> kopf.OperatorSettings:
    """Return kopf's settings, with known problems of its defaults avoided (docs/adr/0003)."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Do not watch CRDs and namespaces, which needs cluster-wide rights. The kinds exist before kopf starts.
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE_SIZE
    settings.watching.server_timeout = WATCH_TIMEOUT_S
    settings.watching.client_timeout = WATCH_TIMEOUT_S + 10
    # End idle workers earlier than by default (5 s). There is no worker_limit, to which they would count.
    settings.queueing.idle_timeout = 0.5
    settings.persistence.diffbase_storage = NoDiffBaseStorage()
    # Use the storage that costs the least per event, because no progress is stored either.
    settings.persistence.progress_storage = kopf.StatusProgressStorage()
    settings.persistence.finalizer = f"{GROUP}/kopf"
    return settings


async def run_kopf(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], *, started: asyncio.Event | None = None
) -> None:
    """Watch namespaces until SIGTERM or SIGINT.

    Args:
        namespaces: Namespaces to watch; empty watches all.
        started: Event that is set when watching starts, or None.
    """
    # Without an identity, kopf asks for the name of the user, and a container's user may have none.
    identity: Any = socket.gethostname()
    await kopf.operator(
        identity=identity,
        registry=registry,
        settings=operator_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=started,
    )


async def connection_info(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Convert the official client's credentials to kopf's, so that both authenticate in the same way."""
    # Read the token at each login, because that of a ServiceAccount is replaced every hour.
    token = await configuration.get_api_key_with_prefix("BearerToken")
    return NamedConnection(
        user_agent=user_agent(configuration),
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme="Bearer" if token else None,
        # The prefix is `Bearer` from a kubeconfig and `bearer` in a pod.
        token=token.split()[-1] if token else None,
    )
