"""QdrantConnections that the manifests of a development folder refer to but do not declare.

Each of them gets the address of a local Qdrant, `DEFAULT_URL`.
"""

from collections.abc import Sequence
from typing import Any

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.parse import is_own_group

Json = dict[str, Any]

# Default address of a local Qdrant.
DEFAULT_URL = "http://127.0.0.1:6333"


def implied_connections(documents: Sequence[Json]) -> list[Json]:
    """Return a QdrantConnection for each distinct name and namespace that AgentMemories of a folder refer to.

    If the folder declares any connection, the result is empty: a reference to an undeclared connection is then a
    mistake, as in a cluster.

    Args:
        documents: Objects with `kind` and `metadata.name`. Their `spec` may be anything.
    """
    own_documents = [document for document in documents if is_own_group(document)]
    if any(document["kind"] == "QdrantConnection" for document in own_documents):
        return []
    references = {_reference_of(document): None for document in own_documents if document["kind"] == "AgentMemory"}
    return [_connection(*reference) for reference in references if reference is not None]


def _reference_of(memory: Json) -> tuple[str, str] | None:
    """Return namespace and name of the referenced connection, or None if the reference is invalid."""
    spec = memory.get("spec")
    reference = spec.get("connectionRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict):
        return None
    name = reference.get("name")
    namespace = reference.get("namespace") or memory["metadata"].get("namespace") or "default"
    return (namespace, name) if isinstance(name, str) and name and isinstance(namespace, str) else None


def _connection(namespace: str, name: str) -> Json:
    spec = {"url": DEFAULT_URL, "namespaces": {"from": "All"}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "QdrantConnection", "metadata": metadata, "spec": spec}
