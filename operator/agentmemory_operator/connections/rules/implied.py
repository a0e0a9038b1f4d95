"""Connections that a folder of manifests means and does not declare: in development one server stands in for all."""

from collections.abc import Sequence
from typing import Any

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.parse import is_ours

Json = dict[str, Any]

# Where a Qdrant of one's own listens that nobody has configured.
USUAL_URL = "http://127.0.0.1:6333"


def implied_connections(documents: Sequence[Json]) -> list[Json]:
    """A QdrantConnection for each name that an AgentMemory of a folder refers to.

    None where the folder declares a connection itself: a reference to another one is a slip of the pen then, and as
    wrong as in a cluster.

    Args:
        documents: objects with `kind` and `metadata.name`; what stands in their `spec` may be anything.
    """
    ours = [document for document in documents if is_ours(document)]
    if any(document["kind"] == "QdrantConnection" for document in ours):
        return []
    meant = {_meant_by(document): None for document in ours if document["kind"] == "AgentMemory"}
    return [_connection(*place) for place in meant if place is not None]


def _meant_by(memory: Json) -> tuple[str, str] | None:
    """Namespace and name of the connection; None where it names none that could be."""
    spec = memory.get("spec")
    reference = spec.get("connectionRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict):
        return None
    name = reference.get("name")
    namespace = reference.get("namespace") or memory["metadata"].get("namespace") or "default"
    return (namespace, name) if isinstance(name, str) and name and isinstance(namespace, str) else None


def _connection(namespace: str, name: str) -> Json:
    spec = {"url": USUAL_URL, "namespaces": {"from": "All"}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "QdrantConnection", "metadata": metadata, "spec": spec}
