"""Find the AgentMemory and the Qdrant server of a command, with its API key."""

from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, read_endpoint
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.kubernetes import JobObjects, SecretSource
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_agent_memory, parse_connection


def endpoint_at(inspection: QdrantAccess, url: str) -> Endpoint:
    """Return the endpoint for a URL, with the API key from QDRANT_API_KEY."""
    return Endpoint(url.rstrip("/"), inspection.qdrant_api_key, DEFAULT_TIMEOUT_S)


def dev_endpoint(inspection: QdrantAccess, qdrant: str | None) -> Endpoint:
    """Return the endpoint of the development stack's server, which replaces those of all connections.

    Args:
        qdrant: Value of the option --qdrant; None uses QDRANT_URL.

    Raises:
        AgentMemoryError: If neither the option --qdrant nor QDRANT_URL names it.
    """
    url = qdrant or inspection.qdrant_url
    if url is None:
        raise AgentMemoryError("give --qdrant URL: the one that `agentmemory dev` prints")
    return endpoint_at(inspection, url)


async def connection_endpoint(
    inspection: QdrantAccess, objects: SecretSource, connection: QdrantConnection, *, at: str | None
) -> Endpoint:
    """Return the endpoint of a connection, with the values of its Secrets.

    Args:
        at: URL that replaces the connection's; None keeps that.

    Raises:
        SpecInvalid: If a URL is invalid, a Secret is missing, or it does not list the host its value would be sent to.
        TransientError: If a Secret cannot be read now.
    """
    return await read_endpoint(connection, GuardedSecrets(objects, inspection.secret_hosts), url=at, has_nodes=False)


async def memory_endpoint(
    inspection: QdrantAccess, objects: JobObjects, memory: AgentMemory, *, at: str | None, is_folder: bool
) -> Endpoint:
    """Return the endpoint of an object's connection, or of the development stack on a folder.

    Args:
        at: URL that replaces the connection's. None keeps that; with a folder, None uses QDRANT_URL.
        is_folder: True if the object is a manifest in the folder of a development stack.

    Raises:
        AgentMemoryError: Errors of `dev_endpoint` or `connection_endpoint`. Also if the connection cannot be
            read.
    """
    if is_folder:
        return dev_endpoint(inspection, at)
    ref = memory.spec.connection_ref
    document = await objects.read_object(QDRANT_CONNECTION, ref.namespace or memory.metadata.namespace, ref.name)
    return await connection_endpoint(inspection, objects, parse_connection(document), at=at)


async def read_memory(objects: JobObjects, name: str, namespace: str) -> AgentMemory:
    """Read and parse an AgentMemory.

    Raises:
        NotFound: If it does not exist.
        SpecInvalid: If it is invalid.
        TransientError: If it cannot be read now, or the kind is not installed.
    """
    return parse_agent_memory(await objects.read_object(AGENT_MEMORY, namespace, name))
