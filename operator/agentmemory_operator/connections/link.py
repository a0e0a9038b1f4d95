"""The store of one connection, which is replaced when the connection's URLs, timeout or Secrets change.

A replaced store closes after its last use. Secrets are not watched. They are read again when the spec has changed, and
on request (by each probe of the operator). A refused key or an untrusted certificate of the server has the same effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from agentmemory_operator.connections.guarded_secrets import attribute_reads_to
from agentmemory_operator.connections.rules.host_lists import BY_HAND, NOWHERE, Destination, destinations_of
from agentmemory_operator.errors import AgentMemoryError, SecretNotUsable, StoreRejected, TlsVerificationFailed
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.model_base import SecretKeyRef
from agentmemory_operator.spec.kinds.parse import parse_connection

DEFAULT_TIMEOUT_S = 10
REFUSED_KEY_STATUSES = (401, 403)
# Minimum seconds between two reads of the Secrets after refused calls. Without it, a wrong key causes a read per call.
MIN_READ_PERIOD_S = 1.0


class Closeable(Protocol):
    """A resource with connections to close: a store, or all stores of a server."""

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...


H = TypeVar("H")
S = TypeVar("S", bound=Closeable)
T = TypeVar("T")


class Renewable(Generic[H]):
    """Holds a resource that was opened with a Secret. If a server refuses the key, the Secret is read again.

    Args:
        resource: First resource.
    """

    def __init__(self, resource: H) -> None:
        self._held = resource
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def _renewed_after(self, refused: H, renew: Callable[[], Awaitable[object]]) -> H | None:
        """Return the resource that replaces a refused one, after reading the Secret again if necessary.

        None if the Secret has not changed, cannot be read, or was read less than a second ago.

        Args:
            renew: Reads the Secret again, and replaces the held resource if it has changed.
        """
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._held is refused and now_s - self._read_at >= MIN_READ_PERIOD_S:
                self._read_at = now_s
                try:
                    await renew()
                except AgentMemoryError:
                    # Report only the refusal. The next probe reports the problem with the Secret.
                    return None
            return self._held if self._held is not refused else None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of a server.

    Attributes:
        api_key: Key for all calls; never logged. None sends no key.
        timeout_s: Timeout of each call in seconds.
        ca_pem: Trusted CA certificates. None uses those of the system.
        nodes: URLs of all nodes of a cluster. Empty for a single server, or if the nodes are not called one by one.
    """

    url: str
    api_key: str | None = field(repr=False)
    timeout_s: int
    ca_pem: str | None = field(default=None, repr=False)
    nodes: tuple[str, ...] = ()


async def read_endpoint(
    connection: QdrantConnection, secrets: Secrets, *, url: str | None = None, has_nodes: bool = True
) -> Endpoint:
    """Return the connection's endpoint, with the values of its Secrets.

    Args:
        url: URL that a user of the command line has given in place of the connection's. None without one.
        has_nodes: True if the nodes of a cluster are called one by one. False calls only the URL.

    Raises:
        SecretMissing: If a Secret or its key does not exist.
        SecretNotUsable: If the key may not be sent to the URL or to one of the nodes, or cannot be part of a header.
        SpecInvalid: If one of these URLs is invalid.
        TransientError: If a Secret cannot be read now.
    """
    spec, namespace, nodes = connection.spec, connection.metadata.namespace, connection.spec.nodes or ()
    nodes = nodes if has_nodes else ()

    async def read(ref: SecretKeyRef | None, to: Destination) -> str | None:
        return await secrets.read(namespace, ref.name, ref.key, to=to) if ref else None

    with attribute_reads_to(Key(QDRANT_CONNECTION, namespace, connection.metadata.name)):
        api_key = await read(spec.api_key_secret_ref, _key_destinations(spec.url, nodes, at=url))
        ca_pem = await read(spec.tls.ca_secret_ref if spec.tls else None, NOWHERE)
    return Endpoint(url or spec.url, api_key, spec.timeout_seconds or DEFAULT_TIMEOUT_S, ca_pem, nodes)


def _key_destinations(url: str, nodes: Sequence[str], *, at: str | None) -> Destination:
    if at is None:
        return destinations_of(url, *nodes)
    return destinations_of(*nodes) if nodes else BY_HAND


@dataclass(slots=True)
class _SharedStore(Generic[S]):
    """A store, and the number of its users.

    Attributes:
        spec: Spec of the connection, unparsed.
    """

    spec: Json
    endpoint: Endpoint
    store: S
    uses: int = 0
    is_retired: bool = False

    async def run(self, work: Callable[[S], Awaitable[T]]) -> T:
        self.uses += 1
        try:
            return await work(self.store)
        finally:
            self.uses -= 1
            if self.is_retired:
                await self.retire()

    async def retire(self) -> None:
        """Close the store, now or after its last use."""
        self.is_retired = True
        if not self.uses:
            await self.store.close()


class Link(Renewable[_SharedStore[S] | None], Generic[S]):
    """Provides the store of one connection.

    Args:
        secrets: Reads keys and certificates.
        open_store: Opens the store of an endpoint.
        has_nodes: True if the store calls the nodes of a cluster one by one.
    """

    def __init__(self, secrets: Secrets, open_store: Callable[[Endpoint], S], *, has_nodes: bool = True) -> None:
        super().__init__(None)
        self._secrets = secrets
        self._open_store = open_store
        self._has_nodes = has_nodes

    async def use(self, document: Json, work: Callable[[S], Awaitable[T]]) -> T:
        """Run `work` with the store and return its result.

        If the server refuses the key, or its certificate is not trusted, the Secrets are read again, at most once a
        second. If they have changed, `work` is run once more.

        Args:
            document: Latest QdrantConnection from the watch.

        Raises:
            SpecInvalid: If the connection is invalid, or one of its Secrets is missing or unusable.
            TransientError: If the Secrets have to be read, and cannot be read now.
            AgentMemoryError: Errors of `work`.
        """
        current = await self._current(document)
        try:
            return await current.run(work)
        except (StoreRejected, TlsVerificationFailed) as exc:
            # Read the Secrets again only if a new key or CA certificate may help.
            if isinstance(exc, StoreRejected) and exc.status not in REFUSED_KEY_STATUSES:
                raise
            renewed = await self._renewed_after(current, partial(self._renew, document))
            if renewed is None:
                raise
        return await renewed.run(work)

    async def open(self, document: Json) -> None:
        """Open the store of the connection's current spec, unless it is open. This reads the Secrets.

        Raises:
            SpecInvalid: If the connection is invalid, or one of its Secrets is missing or unusable.
            TransientError: If the Secrets cannot be read now.
        """
        await self._current(document)

    async def endpoint(self, document: Json) -> Endpoint:
        """Return the endpoint, with the Secrets as last read. Open the store if needed.

        Raises:
            SpecInvalid: If the connection is invalid, or one of its Secrets is missing or unusable.
            TransientError: If the Secrets have to be read, and cannot be read now.
        """
        return (await self._current(document)).endpoint

    async def renew(self, document: Json) -> bool:
        """Read the Secrets again; replace the store if the endpoint has changed. Return whether it was replaced.

        The result is False for the first store of a link. If a Secret may no longer be used, the current store is
        closed.

        Raises:
            SpecInvalid: If the connection is invalid, or one of its Secrets is missing or unusable.
            TransientError: If the Secrets cannot be read.
        """
        async with self._lock:
            previous = self._held
            return (await self._renew(document)) is not previous and previous is not None

    async def close(self) -> None:
        """Close the store after its last use. A later use opens a new one."""
        current, self._held = self._held, None
        if current is not None:
            await current.retire()

    async def _current(self, document: Json) -> _SharedStore[S]:
        current = self._held
        if current is not None and current.spec == document.get("spec"):
            return current
        async with self._lock:
            if self._held is not None and self._held.spec == document.get("spec"):
                return self._held
            return await self._renew(document)

    async def _renew(self, document: Json) -> _SharedStore[S]:
        self._read_at = asyncio.get_running_loop().time()
        try:
            endpoint = await read_endpoint(parse_connection(document), self._secrets, has_nodes=self._has_nodes)
        except SecretNotUsable:
            # Close the store, because the owner of the Secret may have revoked the permission.
            await self.close()
            raise
        current = self._held
        if current is not None and current.endpoint == endpoint:
            current.spec = document["spec"]
            return current
        self._held = _SharedStore(document["spec"], endpoint, self._open_store(endpoint))
        if current is not None:
            await current.retire()
        return self._held
