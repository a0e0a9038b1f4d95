"""One namespace of a real API server and one Qdrant server, for a test. Also leaves collections with other owners."""

import contextlib
import datetime
import email.utils
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, CONFIRM_DELETE, RECONCILE_REQUESTED_AT
from agentmemory_operator.spec.kinds.crds import KINDS
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from tests.support.cluster.controlplane import ControlPlane
from tests.support.patience import wait_until
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

OLD_UID = "5c9a7f3e-0000-4000-8000-000000000001"
OLD_CLUSTER = "old-cluster"
MERGE = {"content-type": "application/merge-patch+json"}
PLURALS = {kind.name: kind.plural for kind in KINDS}
AGENT, CONNECTION = "memory", "main"
READY_WITHIN_S = 5.0
SIZE = 8


def remove_objects(control_plane: ControlPlane, *, namespace: str = "") -> None:
    """Remove all objects of the product and their finalizers, in a namespace or in the whole cluster."""
    within = f"/namespaces/{namespace}" if namespace else ""
    for plural in PLURALS.values():
        path = f"/apis/{API_VERSION}{within}/{plural}"
        # Right after a change of a CRD the API server refuses its list for a moment.
        listed = lambda path=path: answer if (answer := control_plane.http.get(path)).is_success else None  # noqa: E731
        for found in wait_until(listed, seconds=20, what=path).json()["items"]:
            where = f"/apis/{API_VERSION}/namespaces/{found['metadata']['namespace']}"
            path = f"{where}/{plural}/{found['metadata']['name']}"
            control_plane.http.delete(path)
            control_plane.http.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Objects of one namespace. The agent's slug is the name of the namespace, so no other test claims it.

    Args:
        claims: Slug of the agent; empty for the name of the namespace.
    """

    control_plane: ControlPlane
    namespace: str
    qdrant_url: str
    claims: str = ""
    qdrant: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        client = httpx.Client(base_url=self.qdrant_url, timeout=30, headers={"accept-encoding": "identity"})
        object.__setattr__(self, "qdrant", client)

    @property
    def slug(self) -> str:
        return self.claims or self.namespace

    @property
    def alias(self) -> str:
        return f"agent_memory_{self.slug}"

    @property
    def physical(self) -> str:
        return f"{self.alias}__1"

    def connect(self, name: str = CONNECTION, *, url: str | None = None, **spec: Any) -> None:
        """Create a QdrantConnection to the test's server, or to `url`. Fields that are None are left out."""
        spec = {field: value for field, value in spec.items() if value is not None}
        self._create("QdrantConnection", name, {"url": url or self.qdrant_url} | spec)

    def create(self, name: str = AGENT, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        """Create an AgentMemory. Its callers send vectors, unless `spec` sets an embedding."""
        base = {"connectionRef": {"name": CONNECTION}, "agent": self.slug, "preset": "cortex"}
        base |= {"embedding": {"provider": "none", "dimensions": SIZE}}
        self._create("AgentMemory", name, base | spec, annotations=annotations)

    def create_snapshot(self, name: str, *, of: str = AGENT, **spec: Any) -> None:
        """Create a MemorySnapshot of an AgentMemory."""
        self._create("MemorySnapshot", name, {"agentMemoryRef": {"name": of}} | spec)

    def create_restore(
        self, name: str, source: Document, *, into: str = AGENT, annotations: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """Create a MemoryRestore into an AgentMemory."""
        said = {"target": {"name": into}, "source": source} | spec
        self._create("MemoryRestore", name, said, annotations=annotations)

    def create_ready(
        self, name: str = AGENT, *, annotations: dict[str, str] | None = None, timeout_s: int | None = None, **spec: Any
    ) -> Document:
        """Create an AgentMemory and its connection; return it once it is Ready.

        Args:
            timeout_s: Timeout of calls to Qdrant; None for the default. A restore and its rollback wait that long for
                late writes.
        """
        self.connect(timeoutSeconds=timeout_s)
        self.create(name, annotations=annotations, **spec)
        return self.wait_ready(name)

    def get(self, name: str = AGENT, kind: str = "AgentMemory") -> Document | None:
        """Return the object, or None if it does not exist."""
        answer = self.control_plane.http.get(self.path(kind, name))
        if answer.status_code == 404:
            return None
        found: Document = check_success(answer).json()
        return found

    def names(self, kind: str) -> list[str]:
        """Return the names of the namespace's objects of a kind, sorted."""
        found = check_success(self.control_plane.http.get(self.path(kind))).json()["items"]
        return sorted(item["metadata"]["name"] for item in found)

    def must_get(self, name: str = AGENT, kind: str = "AgentMemory") -> Document:
        """Return the object, which must exist."""
        found = self.get(name, kind)
        assert found is not None, f"{kind} {name} is gone"
        return found

    def status(self, name: str = AGENT, kind: str = "AgentMemory") -> Document:
        """Return the object's status; empty before the first pass."""
        return self.must_get(name, kind).get("status") or {}

    def patch(self, name: str = AGENT, *, kind: str = "AgentMemory", **spec: Any) -> None:
        """Merge `spec` into the object's spec."""
        self._patch(kind, name, {"spec": spec})

    def change(self, kind: str, name: str, body: Document) -> None:
        """Merge a document into an object."""
        self._patch(kind, name, body)

    def patch_status(self, status: Document, name: str = AGENT, *, kind: str = "AgentMemory") -> None:
        """Merge into the object's status, as another operator would."""
        path = f"{self.path(kind, name)}/status"
        check_success(self.control_plane.http.patch(path, json={"status": status}, headers=MERGE))

    def annotate(self, name: str = AGENT, *, of: str = "AgentMemory", **annotations: str | None) -> None:
        """Set annotations of the product on an object of kind `of`; None removes one."""
        named = {f"agentmemory.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self._patch(of, name, {"metadata": {"annotations": named}})

    def run_pass(self, name: str = AGENT, *, seconds: float = 20) -> None:
        """Request a pass; wait until one that has seen the request has ended, with any result."""
        stamp = self.request_pass(name)
        wait_until(
            lambda: self.status(name).get("lastHandledReconcileAt") == stamp, seconds=seconds, what=f"a pass of {name}"
        )

    def request_pass(self, name: str = AGENT) -> str:
        """Request a pass like a user; return the value by which the status acknowledges it."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        self._patch("AgentMemory", name, {"metadata": {"annotations": {RECONCILE_REQUESTED_AT: stamp}}})
        return stamp

    def add_finalizer(self, finalizer: str, name: str = AGENT) -> None:
        """Add a finalizer, as another controller would."""
        finalizers = self.must_get(name)["metadata"].get("finalizers", [])
        self._patch("AgentMemory", name, {"metadata": {"finalizers": [*finalizers, finalizer]}})

    def delete(self, name: str = AGENT, kind: str = "AgentMemory") -> None:
        """Request the deletion of an object."""
        self.control_plane.http.delete(self.path(kind, name))

    def wait_deleted(self, name: str = AGENT, *, seconds: float = 10) -> None:
        """Wait until the AgentMemory does not exist."""
        wait_until(lambda: self.get(name) is None, seconds=seconds, what=f"the end of {name}")

    def wait_ready(self, name: str = AGENT, *, seconds: float = READY_WITHIN_S) -> Document:
        """Return the object once its latest generation is Ready and in sync."""

        def ready() -> Document | None:
            found = self.must_get(name)
            return found if is_ready(found) else None

        try:
            return wait_until(ready, seconds=seconds, what=f"{name} Ready")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; status: {self.status(name)}") from exc

    def wait_condition(
        self, kind: str, wanted: str, *, name: str = AGENT, of: str = "AgentMemory", seconds: float = 8
    ) -> Document:
        """Return the condition once it is `STATUS/Reason` for the latest generation."""

        def holds() -> bool:
            found = self.get(name, of)
            return bool(found) and is_observed(found or {}) and conditions_of(found or {}).get(kind) == wanted

        try:
            wait_until(holds, seconds=seconds, what=f"{kind} {wanted} of {name}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; status: {self.status(name, of)}") from exc
        return next(item for item in self.status(name, of)["conditions"] if item["type"] == kind)

    def events(self, name: str = AGENT, *, kind: str = "Warning") -> dict[str, str]:
        """Return the messages of the object's events of type `kind`, by reason."""
        answer = self.control_plane.http.get(f"/api/v1/namespaces/{self.namespace}/events").json()
        told: dict[str, str] = {}
        for item in answer["items"]:
            if (item["involvedObject"]["name"], item["type"]) == (name, kind):
                told[item["reason"]] = f"{told.get(item['reason'], '')}{item['message']}\n"
        return told

    def server_time(self) -> str:
        """Return the API server's time in the format of object timestamps."""
        sent = self.control_plane.http.get("/readyz").headers["date"]
        return email.utils.parsedate_to_datetime(sent).strftime("%Y-%m-%dT%H:%M:%SZ")

    def create_secret(self, name: str, **values: str) -> None:
        body = {"metadata": {"name": name}, "stringData": values}
        check_success(self.control_plane.http.post(f"/api/v1/namespaces/{self.namespace}/secrets", json=body))

    def change_secret(self, name: str, **values: str) -> None:
        """Add or replace values of a Secret."""
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{name}"
        check_success(self.control_plane.http.patch(path, json={"stringData": values}, headers=MERGE))

    def collection(self, name: str | None = None) -> Document | None:
        """Return Qdrant's description of the alias or of a collection; None if it does not exist."""
        answer = self.qdrant.get(f"/collections/{name or self.alias}")
        if answer.status_code == 404:
            return None
        found: Document = check_success(answer).json()["result"]
        return found

    def config(self) -> Document:
        """Return the configuration of the alias's collection."""
        found = self.collection()
        assert found is not None, f"there is no {self.alias}"
        config: Document = found["config"]
        return config

    def aliases(self) -> dict[str, str]:
        """Return the aliases of this workspace's collections with their targets."""
        found = self.qdrant.get("/aliases").json()["result"]["aliases"]
        named = {item["alias_name"]: item["collection_name"] for item in found}
        return {alias: physical for alias, physical in named.items() if physical.startswith(self.alias)}

    def physicals(self) -> list[str]:
        """Return the names of this workspace's collections, sorted."""
        found = self.qdrant.get("/collections").json()["result"]["collections"]
        return sorted(item["name"] for item in found if item["name"].startswith(self.alias))

    def store_points(self, count: int, collection: str | None = None) -> None:
        """Store points directly in Qdrant."""
        points = [{"id": number, "vector": [1.0] * SIZE, "payload": {"n": number}} for number in range(1, count + 1)]
        path = f"/collections/{collection or self.alias}/points"
        check_success(self.qdrant.put(path, params={"wait": "true"}, json={"points": points}))

    def count_points(self) -> int:
        """Return the exact number of points."""
        answer = self.qdrant.post(f"/collections/{self.alias}/points/count", json={"exact": True})
        count: int = check_success(answer).json()["result"]["count"]
        return count

    def check_collection(
        self, *, physical: str | None = None, indexes: Set[tuple[str, str]] = frozenset(RETRIEVAL_INDEXES)
    ) -> None:
        """Fail unless exactly one collection exists, complete with marker and indexes, and the alias resolves to it.

        Args:
            physical: Name of the collection; None for the first one that is created for the alias.
            indexes: Expected payload indexes.
        """
        physical = physical or self.physical
        # Exclude collections of an agent with this agent's name as prefix.
        physicals = [name for name in self.physicals() if name.partition("__")[0] == self.alias]
        aliases = {alias: name for alias, name in self.aliases().items() if name in physicals}
        assert physicals == [physical]
        assert aliases == ({} if physical == self.alias else {self.alias: physical})
        found = self.collection()
        assert found is not None
        assert found["config"]["metadata"]["agentmemory"]["namespace"] == self.namespace
        assert {(field, index["data_type"]) for field, index in found["payload_schema"].items()} == indexes

    def clean(self) -> None:
        """Remove all objects of the namespace and its collections; no controller would do it."""
        remove_objects(self.control_plane, namespace=self.namespace)
        # Leftover collections would cost the tests' shared server time and memory.
        with contextlib.suppress(httpx.TransportError):
            for physical in self.physicals():
                self.qdrant.delete(f"/collections/{physical}")
        self.qdrant.close()

    def _create(self, kind: str, name: str, spec: Document, *, annotations: dict[str, str] | None = None) -> None:
        metadata = {"name": name, "annotations": annotations or {}}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        answer = self.control_plane.http.post(self.path(kind), params={"fieldValidation": "Strict"}, json=body)
        assert answer.status_code == 201, answer.text

    def _patch(self, kind: str, name: str, body: Document) -> None:
        check_success(self.control_plane.http.patch(self.path(kind, name), json=body, headers=MERGE))

    def path(self, kind: str, name: str = "") -> str:
        """Return the API path of an object, or of all objects of a kind."""
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}/{name}".rstrip("/")


def confirm_delete(alias: str) -> dict[str, str]:
    """Return the annotation that permits the deletion of a collection with memories."""
    return {CONFIRM_DELETE: alias}


def is_ready(document: Document | None) -> bool:
    """Return whether the object's latest generation is Ready and in sync."""
    if document is None or not is_observed(document):
        return False
    has = conditions_of(document)
    return (has.get("Ready"), has.get("InSync")) == ("True/Serving", "True/Converged")


def conditions_of(document: Document) -> dict[str, str]:
    """Return `STATUS/Reason` by condition type."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return {item["type"]: f"{item['status']}/{item['reason']}" for item in conditions}


def is_observed(document: Document) -> bool:
    """Return whether the status belongs to the object's latest generation."""
    observed = (document.get("status") or {}).get("observedGeneration")
    return bool(observed == document["metadata"]["generation"])


def leave_collection(workspace: Workspace, **owner: str) -> None:
    """Create an agent with three points, delete its object, and change the owner in the collection's marker."""
    workspace.create_ready()
    workspace.store_points(3)
    workspace.delete()
    workspace.wait_deleted()
    change_marker(workspace, uid=OLD_UID, **owner)


def change_marker(workspace: Workspace, **owner: str) -> None:
    """Change the marker in the collection's metadata."""
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"] | owner
    body = {"metadata": {"agentmemory": marker}}
    check_success(workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body))


def marker_of(workspace: Workspace) -> dict[str, Any]:
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"]
    return marker


def wait_takeover_request(workspace: Workspace) -> None:
    """Wait until the connection's status contains the takeover request of the refused object."""
    workspace.wait_condition("Stalled", "True/CollectionNotOwned")
    requests = lambda: workspace.status(CONNECTION, "QdrantConnection").get("takeoverRequests")  # noqa: E731
    wait_until(requests, seconds=10, what="the request")
