"""Leader lease of the operator as a `coordination.k8s.io/v1` Lease.

The official client's leader election is not used: it compares wall clocks, cannot release the lease, and its API models
need 90 MB of memory.
"""

from pathlib import Path
from typing import Any

from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Lease

LEASE_NAME = "agentmemory-operator"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(file: Path = NAMESPACE_FILE) -> str:
    """Return the namespace of the pod; `default` outside a cluster."""
    return file.read_text().strip() if file.is_file() else "default"


class KubernetesLease:
    """Implements ports.LeaseStore. The resourceVersion makes each write a compare-and-set."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self._transport = KubernetesTransport(configuration)
        self._namespace = namespace
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def read(self) -> Lease | None:
        """Return the lease, or None before the first write."""
        try:
            return _lease_from(await self._transport.call("GET", f"{self._folder}/{LEASE_NAME}"))
        except NotFound:
            return None

    async def write(self, lease: Lease) -> Lease:
        """Create the lease, or replace it by compare-and-set on its version."""
        try:
            if lease.version:
                document = await self._transport.call("PUT", f"{self._folder}/{LEASE_NAME}", self._body_of(lease))
            else:
                document = await self._transport.call("POST", self._folder, self._body_of(lease))
        except NotFound as exc:
            raise TransientError(f"{exc} (does the namespace {self._namespace} exist?)") from exc
        return _lease_from(document)

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
