"""Objects as a source delivers them, and markers for collections that no operator has marked."""

from typing import Any

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION

Document = dict[str, Any]
ALL_PASS = {"scoreThreshold": -1, "minSimilarity": -1}
CLUSTER_ID = "cluster-1"


def memory_document(name: str = "probe", *, metadata: Document | None = None, **spec: object) -> Document:
    """Build an AgentMemory as a source delivers it; `metadata` and `spec` override a minimal one with preset cortex.

    Args:
        spec: Fields of the spec; `preset=None` removes the preset.
    """
    base = {"name": name, "namespace": "agents", "uid": f"uid-{name}", "generation": 1}
    base |= {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7"}
    given = {"connectionRef": {"name": "main"}, "preset": "cortex"} | spec
    return {
        "apiVersion": API_VERSION,
        "kind": "AgentMemory",
        "metadata": base | (metadata or {}),
        "spec": {name: value for name, value in given.items() if name != "preset" or value is not None},
    }


def agent_document(slug: str, **spec: Any) -> Document:
    """Build an AgentMemory with vectors of 8 numbers from callers and no search thresholds; `spec` overrides."""
    embedding = {"provider": "none", "dimensions": 8}
    return memory_document(slug, metadata={"generation": 3}, **{"embedding": embedding, "scoring": ALL_PASS} | spec)


def connection_document(name: str = "main", *, namespace: str = "agents", **spec: object) -> Document:
    """Build a QdrantConnection as a source delivers it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "QdrantConnection",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": {"url": "http://qdrant:6333"} | spec,
    }


def allowed_namespaces(allowed: str | Document | None) -> Document:
    """Build the field of a connection's spec that allows other namespaces.

    Args:
        allowed: Same, All, a selector, or None for no field.
    """
    if allowed is None:
        return {}
    return {"namespaces": {"from": allowed} if isinstance(allowed, str) else {"from": "Selector", "selector": allowed}}


async def cluster_id() -> str:
    """Return the cluster id of tests without Kubernetes."""
    return CLUSTER_ID


def marker_for(name: str, *, namespace: str = "agents", **said: Any) -> dict[str, Any]:
    """Build the marker of an AgentMemory's collection as stored in its metadata."""
    return {"clusterId": CLUSTER_ID, "namespace": namespace, "name": name, **said}
