"""The point store of each agent's connection, shared by all agents of one endpoint."""

from collections.abc import Callable

from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.errors import SpecInvalid, StoreUnavailable
from agentmemory_operator.ports import Json, PointStore, Secrets
from agentmemory_operator.services.connections import Endpoint, endpoint_of
from agentmemory_operator.services.objects import QDRANT_CONNECTION, Key, ObjectTable


class PointStores:
    """Gives stores by connection.

    Args:
        table: the objects as they last came.
        secrets: where API keys are read; once a change of the connection.
        open_store: makes the store of an endpoint; whoever composes closes it.
    """

    def __init__(self, table: ObjectTable, secrets: Secrets, open_store: Callable[[Endpoint], PointStore]) -> None:
        self._table = table
        self._secrets = secrets
        self._open_store = open_store
        self._by_endpoint: dict[Endpoint, PointStore] = {}
        self._by_connection: dict[Key, tuple[Json, PointStore]] = {}

    async def store_for(self, settings: AgentSettings) -> PointStore:
        """Return the store of the agent's connection: the same one until the connection's spec changes.

        Raises:
            StoreUnavailable: there is no such connection, or its Secret is missing.
        """
        key = Key(QDRANT_CONNECTION, settings.namespace, settings.connection)
        document = self._table.get(key)
        if document is None:
            raise StoreUnavailable(f"the QdrantConnection {key.namespace}/{key.name} of this agent does not exist")
        known = self._by_connection.get(key)
        if known is not None and known[0] == document.get("spec"):
            return known[1]
        try:
            endpoint = await endpoint_of(parse_connection(document), self._secrets)
        except SpecInvalid as exc:
            raise StoreUnavailable(f"the connection of this agent cannot be used: {exc}") from exc
        if endpoint not in self._by_endpoint:
            self._by_endpoint[endpoint] = self._open_store(endpoint)
        self._by_connection[key] = document["spec"], self._by_endpoint[endpoint]
        return self._by_endpoint[endpoint]
