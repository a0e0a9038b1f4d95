"""The store of one connection, opened anew when its spec or its Secrets change; an old one closes after its last use.

Nothing watches Secrets: they are read again when somebody asks (the operator, with each probe) and when the server
refuses the key or cannot be trusted any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from agentmemory_operator.connections.rules.secret_hosts import BY_HAND, NOWHERE, Destination, goes_to
from agentmemory_operator.connections.secret_hosts import used_by
from agentmemory_operator.errors import (
    AgentMemoryError,
    SecretNotUsable,
    StoreRejected,
    StoreUntrusted,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION, Key
from agentmemory_operator.spec.kinds.base import SecretKeyRef
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection

DEFAULT_TIMEOUT_S = 10
REFUSED_KEY = (401, 403)
# A wrong key is met by every call; the API server is not asked that often.
LEAST_BETWEEN_READS_S = 1.0


class Closable(Protocol):
    """What a link holds."""

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...


H = TypeVar("H")
S = TypeVar("S", bound=Closable)
T = TypeVar("T")


class Renewable(Generic[H]):
    """Holds what a Secret opened, and opens another once it is refused.

    Args:
        held: what was opened first.
    """

    def __init__(self, held: H) -> None:
        self._held = held
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def _renewed_after(self, refused: H, renew: Callable[[], Awaitable[object]]) -> H | None:
        """Another than the one that was refused, None where there is none.

        Args:
            renew: reads the Secret again, and changes what is held if it has changed.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._held is refused and now - self._read_at >= LEAST_BETWEEN_READS_S:
                self._read_at = now
                try:
                    await renew()
                except AgentMemoryError:
                    # The refusal is the news; what is wrong with the Secret, the next reading tells.
                    return None
            return self._held if self._held is not refused else None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a server.

    Attributes:
        api_key: never logged.
        timeout_s: of each call.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
        nodes: of a cluster, the URL of each; empty of a server that is alone.
    """

    url: str
    api_key: str | None = field(repr=False)
    timeout_s: int
    ca_pem: str | None = field(default=None, repr=False)
    nodes: tuple[str, ...] = ()


async def endpoint_of(
    connection: QdrantConnection, secrets: Secrets, *, at: str | None = None, has_nodes: bool = True
) -> Endpoint:
    """The connection's endpoint, with what its Secrets hold.

    Args:
        at: URL that a person named in the place of the connection's.
        has_nodes: its nodes are asked too, one by one; else only the URL is.

    Raises:
        SecretMissing: a Secret or its key does not exist.
        SecretNotUsable: the key may not go to the URL, or to one of the nodes.
    """
    spec, namespace, nodes = connection.spec, connection.metadata.namespace, connection.spec.nodes or ()
    nodes = nodes if has_nodes else ()

    async def read(ref: SecretKeyRef | None, to: Destination) -> str | None:
        return await secrets.read(namespace, ref.name, ref.key, to=to) if ref else None

    with used_by(Key(QDRANT_CONNECTION, namespace, connection.metadata.name)):
        api_key = await read(spec.api_key_secret_ref, _where_key_goes(spec.url, nodes, at=at))
        ca_pem = await read(spec.tls.ca_secret_ref if spec.tls else None, NOWHERE)
    return Endpoint(at or spec.url, api_key, spec.timeout_seconds or DEFAULT_TIMEOUT_S, ca_pem, nodes)


def _where_key_goes(url: str, nodes: Sequence[str], *, at: str | None) -> Destination:
    if at is None:
        return goes_to(url, *nodes)
    return goes_to(*nodes) if nodes else BY_HAND


@dataclass(slots=True)
class _Held(Generic[S]):
    """One store, and how many use it.

    Attributes:
        spec: the connection's, as it came.
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


class Link(Renewable[_Held[S] | None], Generic[S]):
    """Gives the store of one connection to whoever works with it.

    Args:
        secrets: where keys and certificates are read.
        open_store: makes the store of an endpoint.
        has_nodes: the store asks a cluster's nodes one by one.
    """

    def __init__(self, secrets: Secrets, open_store: Callable[[Endpoint], S], *, has_nodes: bool = True) -> None:
        super().__init__(None)
        self._secrets = secrets
        self._open_store = open_store
        self._has_nodes = has_nodes

    async def use(self, document: Json, work: Callable[[S], Awaitable[T]]) -> T:
        """What `work` makes of the store; it runs once more if the key or the authority was just replaced.

        Args:
            document: the QdrantConnection as it last came.
            work: may be repeated after a call that the server refused.

        Raises:
            SpecInvalid: the connection is not valid, or what its Secrets hold.
        """
        held = await self._current(document)
        try:
            return await held.run(work)
        except (StoreRejected, StoreUntrusted) as exc:
            # Another key or another authority may help.
            if isinstance(exc, StoreRejected) and exc.status not in REFUSED_KEY:
                raise
            renewed = await self._renewed_after(held, partial(self._renew, document))
            if renewed is None:
                raise
        return await renewed.run(work)

    async def open(self, document: Json) -> None:
        """Read the Secrets, if they were not read for this spec.

        Raises:
            SpecInvalid: the connection is not valid, or what its Secrets hold.
        """
        await self._current(document)

    async def endpoint(self, document: Json) -> Endpoint:
        """How the server is reached, as the Secrets were when they were read last.

        Raises:
            SpecInvalid: the connection is not valid, or what its Secrets hold.
        """
        return (await self._current(document)).endpoint

    async def renew(self, document: Json) -> bool:
        """Read the Secrets again, and open another store if they or the spec have changed; tell whether they had.

        Raises:
            SpecInvalid: the connection is not valid, or what its Secrets hold.
            TransientError: the Secrets cannot be read.
        """
        async with self._lock:
            before = self._held
            return (await self._renew(document)) is not before and before is not None

    async def close(self) -> None:
        """Close the store after its last use."""
        held, self._held = self._held, None
        if held is not None:
            await held.retire()

    async def _current(self, document: Json) -> _Held[S]:
        held = self._held
        if held is not None and held.spec == document.get("spec"):
            return held
        async with self._lock:
            if self._held is not None and self._held.spec == document.get("spec"):
                return self._held
            return await self._renew(document)

    async def _renew(self, document: Json) -> _Held[S]:
        self._read_at = asyncio.get_running_loop().time()
        try:
            endpoint = await endpoint_of(parse_connection(document), self._secrets, has_nodes=self._has_nodes)
        except SecretNotUsable:
            # Whoever keeps the Secret has taken the leave back.
            await self.close()
            raise
        held = self._held
        if held is not None and held.endpoint == endpoint:
            held.spec = document["spec"]
            return held
        self._held = _Held(document["spec"], endpoint, self._open_store(endpoint))
        if held is not None:
            await held.retire()
        return self._held
