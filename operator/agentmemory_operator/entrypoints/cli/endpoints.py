"""What the verbs share that look at a Qdrant: where it is, and with which key."""

from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, endpoint_of
from agentmemory_operator.connections.secret_hosts import GuardedSecrets
from agentmemory_operator.entrypoints.cli.composition import Inspection
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.kubernetes import SecretSource
from agentmemory_operator.spec.kinds.connection import QdrantConnection


def endpoint_at(inspection: Inspection, url: str) -> Endpoint:
    """The endpoint of a server given by its URL, with the key of the environment."""
    return Endpoint(url.rstrip("/"), inspection.qdrant_api_key, DEFAULT_TIMEOUT_S)


def dev_endpoint(inspection: Inspection, qdrant: str | None) -> Endpoint:
    """The server of the development stack, which stands in for every connection's.

    Raises:
        AgentMemoryError: nobody said where it is.
    """
    url = qdrant or inspection.qdrant_url
    if url is None:
        raise AgentMemoryError("give --qdrant URL: the one that `agentmemory dev` prints")
    return endpoint_at(inspection, url)


async def endpoint_through(
    inspection: Inspection, objects: SecretSource, connection: QdrantConnection, *, at: str | None
) -> Endpoint:
    """The endpoint of a connection with its key, at another URL where one is given.

    Raises:
        SpecInvalid: its Secret is missing, or may not be sent there.
    """
    return await endpoint_of(connection, GuardedSecrets(objects, inspection.secret_hosts), at=at, has_nodes=False)
