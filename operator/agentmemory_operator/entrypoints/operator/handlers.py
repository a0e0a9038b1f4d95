"""kopf's end of the operator: watch events in, nothing decided here.

Only `on.event` handlers are registered: they are level-triggered, write no annotation to the objects, need no finalizer
and leave retries to one place, the work queue (docs/adr/0003).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kopf
from kubernetes.aio import client

from agentmemory_operator.adapters.kubernetes.cluster import PAGE, kept_part
from agentmemory_operator.adapters.kubernetes.transport import user_agent
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.spec.kinds.agent_memory import GROUP, VERSION
from agentmemory_operator.spec.kinds.crds import KINDS

# A watch that a load balancer silently dropped ends within this time.
WATCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class NamedConnection(kopf.ConnectionInfo):
    """Credentials whose requests say who sends them; without, kopf names itself.

    Attributes:
        user_agent: as the other requests of this process have it.
    """

    user_agent: str = ""

    def as_http_headers(self) -> dict[str, str]:
        """What every request of kopf carries."""
        return super().as_http_headers() | {"User-Agent": self.user_agent}


class NothingKept(kopf.DiffBaseStorage):
    """Keeps no copy of an object as it was last handled: only handlers of changes need one, and there are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing, without copying the object first."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Find nothing."""

    def store(self, **_: Any) -> None:
        """Keep nothing."""


def build_registry(
    feed: OperatorFeed, configuration: client.Configuration, *, on_stop: Callable[[], Awaitable[None]]
) -> kopf.OperatorRegistry:
    """Kopf's handlers: every event of every kind goes to the feed.

    Args:
        on_stop: ends what else runs. Called when the watches have ended, because kopf then waits 5 s for every task
            that was not there when it began.
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
            feed.take(event["type"] or "ADDED", kept_part(_kind, event["object"]))

    return registry


def operator_settings() -> kopf.OperatorSettings:
    """Kopf's settings with the known traps closed (docs/adr/0003)."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Watching CRDs and namespaces takes rights in the whole cluster; the kinds are there before kopf starts.
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = WATCH_TIMEOUT_S
    settings.watching.client_timeout = WATCH_TIMEOUT_S + 10
    # A worker keeps its slot for this long after its object is done; no worker_limit for the same reason.
    settings.queueing.idle_timeout = 0.5
    settings.persistence.diffbase_storage = NothingKept()
    # Nothing is kept of progress either; of all storages this one costs an event the least.
    settings.persistence.progress_storage = kopf.StatusProgressStorage()
    settings.persistence.finalizer = f"{GROUP}/kopf"
    return settings


async def run_kopf(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], *, started: asyncio.Event | None = None
) -> None:
    """Watch the namespaces, all where none is named, until SIGTERM or SIGINT; `started` is set when it begins."""
    await kopf.operator(
        registry=registry,
        settings=operator_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=started,
    )


async def connection_info(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Kopf's credentials from those of the official client, so that both log in the same way."""
    # Read anew at each login: a ServiceAccount's token is replaced every hour.
    token = await configuration.get_api_key_with_prefix("BearerToken")
    return NamedConnection(
        user_agent=user_agent(configuration),
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme="Bearer" if token else None,
        token=token.removeprefix("Bearer ") if token else None,
    )
