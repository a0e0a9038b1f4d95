"""Leader lease of the operator as a `coordination.k8s.io/v1` Lease.

The official client's leader election is not used: it compares wall clocks and cannot release the lease. It also loads
API models that need 90 MB of memory.
"""

from typing import Any

from agentmemory_operator.adapters.kubernetes.transport import (
    DEFAULT_NAMESPACE,
    POD_NAMESPACE,
    Configuration,
    KubernetesTransport,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Lease

LEASE_NAME = "agentmemory-operator"


def own_namespace() -> str:
    """Return the namespace of the pod; `default` outside a cluster."""
    return POD_NAMESPACE.read_text(encoding="utf-8").strip() if POD_NAMESPACE.is_file() else DEFAULT_NAMESPACE


class KubernetesLease:
    """Implements ports.LeaseStore. The resourceVersion makes each write a compare-and-set."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self._transport = KubernetesTransport(configuration)
        self._namespace = namespace
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def close(self) -> None:
        """Close the connections to the API server, which takes 0.1 s."""
        await self._transport.close()

    async def read(self) -> Lease | None:
        """Return the lease, or None before the first write."""
        document = await self._transport.find(f"{self._folder}/{LEASE_NAME}")
        return None if document is None else _lease_from(document)

    async def write(self, lease: Lease) -> Lease:
        """Create the Lease if `lease` has no version, else replace it by compare-and-set; return it as stored.

        Raises:
            KubernetesConflict: If the Lease exists already, or has changed since it was read; nothing was written.
            TransientError: If the API server is unavailable, or the Lease to replace does not exist.
        """
        return _lease_from(await self._transport.put(self._folder, self._body_of(lease)))

    def _body_of(self, lease: Lease) -> Json:
        metadata = {"name": LEASE_NAME, "namespace": self._namespace}
        if lease.version:
            metadata["resourceVersion"] = lease.version
        spec = {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": lease.duration_s,
            "acquireTime": lease.acquired_at,
            "renewTime": lease.renewed_at,
            "leaseTransitions": lease.transitions,
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _lease_from(document: dict[str, Any]) -> Lease:
    spec = document.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
        acquired_at=spec.get("acquireTime") or "",
        renewed_at=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
        version=document["metadata"]["resourceVersion"],
    )
