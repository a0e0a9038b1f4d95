"""Objects as a source gives them, and the marker that their collections bear where no operator marks them."""

from typing import Any

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION

Document = dict[str, Any]
ALL_PASS = {"scoreThreshold": -1, "minSimilarity": -1}
CLUSTER_ID = "cluster-1"


def memory_document(name: str = "probe", *, metadata: Document | None = None, **spec: object) -> Document:
    """Return an AgentMemory of preset cortex as a source gives it; `metadata` and `spec` are put over the smallest one.

    Args:
        spec: with `preset` None it names none.
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
    """Return an AgentMemory whose callers send 8 numbers and get all that is found, unless `spec` says otherwise."""
    embedding = {"provider": "none", "dimensions": 8}
    return memory_document(slug, metadata={"generation": 3}, **{"embedding": embedding, "scoring": ALL_PASS} | spec)


def connection_document(name: str = "main", *, namespace: str = "agents", **spec: object) -> Document:
    """Return a QdrantConnection as a source gives it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "QdrantConnection",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": {"url": "http://qdrant:6333"} | spec,
    }


def allowing(allowed: str | Document | None) -> Document:
    """Return the field of a connection's spec that allows other namespaces.

    Args:
        allowed: Same, All, a selector, or None for no field.
    """
    if allowed is None:
        return {}
    return {"namespaces": {"from": allowed} if isinstance(allowed, str) else {"from": "Selector", "selector": allowed}}


async def cluster_id() -> str:
    """Return the cluster that tests without Kubernetes are in."""
    return CLUSTER_ID


def marker_for(name: str, *, namespace: str = "agents", **said: Any) -> dict[str, Any]:
    """Return the marker of an AgentMemory's collection, as it lies in metadata."""
    return {"clusterId": CLUSTER_ID, "namespace": namespace, "name": name, **said}
