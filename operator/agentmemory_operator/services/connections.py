"""Connections as passes use them: an object's reference becomes a store, and a server known to be unfit is not asked.

One probe a connection finds out whether its server answers; the passes of its objects follow what it found, so that a
thousand objects do not hammer a server that is away.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.domain.resources import AgentMemory, QdrantConnection, SecretKeyRef
from agentmemory_operator.errors import AgentMemoryError, SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports import CollectionStore, Secrets
from agentmemory_operator.services.objects import QDRANT_CONNECTION, Key, ObjectTable

MINIMUM_VERSION = (1, 18)
DEFAULT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a server.

    Attributes:
        api_key: never logged.
        timeout_s: of each call.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
    """

    url: str
    api_key: str | None = field(repr=False)
    timeout_s: int
    ca_pem: str | None = field(default=None, repr=False)


async def endpoint_of(connection: QdrantConnection, secrets: Secrets) -> Endpoint:
    """Return the connection's endpoint, with what its Secrets hold.

    Raises:
        SecretMissing: a Secret or its key does not exist.
    """
    spec, namespace = connection.spec, connection.metadata.namespace

    async def read(ref: SecretKeyRef | None) -> str | None:
        return await secrets.read(namespace, ref.name, ref.key) if ref else None

    api_key, ca_pem = await read(spec.api_key_secret_ref), await read(spec.tls.ca_secret_ref if spec.tls else None)
    return Endpoint(spec.url, api_key, spec.timeout_seconds or DEFAULT_TIMEOUT_S, ca_pem)


class Connections:
    """Stores by endpoint, and what the last probe of each connection found.

    Args:
        table: the objects as they last came.
        secrets: where API keys are read.
        open_store: makes the store of an endpoint.
    """

    def __init__(self, table: ObjectTable, secrets: Secrets, open_store: Callable[[Endpoint], CollectionStore]) -> None:
        self._table = table
        self._secrets = secrets
        self._open_store = open_store
        self._stores: dict[Endpoint, CollectionStore] = {}
        self._faults: dict[Key, AgentMemoryError] = {}

    async def store_for(self, memory: AgentMemory) -> CollectionStore:
        """Return the store of the object's connection.

        Raises:
            SpecInvalid: there is no such connection, or its Secret is missing.
            AgentMemoryError: what the last probe found: the server is away, too old, or refuses the key.
        """
        key = Key(QDRANT_CONNECTION, memory.metadata.namespace, memory.spec.connection_ref.name)
        document = self._table.get(key)
        if document is None:
            raise SpecInvalid(
                "ConnectionNotFound",
                f"spec.connectionRef.name: there is no QdrantConnection {key.namespace}/{key.name}: create it, "
                f"or name another",
            )
        if key in self._faults:
            raise self._faults[key].with_traceback(None)
        return await self._store(parse_connection(document))

    async def check_embedding_secret(self, memory: AgentMemory) -> None:
        """Pass unless the object's embedding names a Secret that is not there.

        Raises:
            SecretMissing: names it; the API could embed nothing.
        """
        ref = memory.spec.embedding.secret_ref if memory.spec.embedding else None
        if ref:
            await self._secrets.read(memory.metadata.namespace, ref.name, ref.key)

    async def probe(self, connection: QdrantConnection) -> tuple[str, bool]:
        """Ask the server for its version; return it, and whether the last probe had found a fault.

        Raises:
            SpecInvalid: the Secret is missing, or the server is too old.
            StoreRejected: it refuses the key.
            StoreUnavailable: it does not answer.
        """
        key = Key(QDRANT_CONNECTION, connection.metadata.namespace, connection.metadata.name)
        try:
            store = await self._store(connection)
            version = await store.version()
            _check_version(version)
        except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
            self._faults[key] = exc
            raise
        return version, self._faults.pop(key, None) is not None

    def forget(self, key: Key) -> None:
        """Drop what is known of a connection that is gone."""
        self._faults.pop(key, None)

    async def _store(self, connection: QdrantConnection) -> CollectionStore:
        endpoint = await endpoint_of(connection, self._secrets)
        if endpoint not in self._stores:
            self._stores[endpoint] = self._open_store(endpoint)
        return self._stores[endpoint]


def _check_version(version: str) -> None:
    parts = version.split(".")[:2]
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise SpecInvalid("QdrantTooOld", f"Qdrant {version} is older than {minimum}: upgrade the server")
