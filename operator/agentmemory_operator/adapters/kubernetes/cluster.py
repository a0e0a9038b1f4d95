"""Kubernetes objects: statuses, finalizers, events, Secrets, list and watch, and installed CRDs."""

import asyncio
import base64
import binascii
import json
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext, suppress
from typing import Any

from agentmemory_operator.adapters.kubernetes.events import KubernetesEvents
from agentmemory_operator.adapters.kubernetes.lease import LEASE_NAME
from agentmemory_operator.adapters.kubernetes.transport import (
    INVALID,
    JSON_PATCH,
    MERGE_PATCH,
    Configuration,
    KubernetesConflict,
    KubernetesRejected,
    KubernetesTransport,
    mapped_errors,
)
from agentmemory_operator.connections.rules.host_lists import HOSTS_ANNOTATION, AnnotatedSecret
from agentmemory_operator.errors import NamespaceTerminating, NotFound, TransientError
from agentmemory_operator.ports.base import Json, WriteContext
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, GROUP, Metadata
from agentmemory_operator.spec.kinds.crds import KINDS

log = logging.getLogger(__name__)

PLURALS = {kind.name: kind.plural for kind in KINDS}
CONFIG_MAP = "ConfigMap"
KINDS_MISSING = (
    f"the API server does not serve {API_VERSION}: apply the CRDs (agentmemory crds | kubectl apply --server-side -f -)"
)
# Seconds after which a watch is renewed, so that a dead connection is detected within a minute.
WATCH_TIMEOUT_S = 50
WATCH_RETRY_S = 1.0
# Parts of the API server's messages.
TERMINATING = "because it is being terminated"
OBJECT_MISSING = '" not found'
# Objects per page. A page of a thousand would be 7 MB of JSON, and ten times that in memory while it is parsed.
PAGE_SIZE = 100

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class KubernetesCluster:
    """Implements ports.Cluster, ports.AgentMemories, ports.JobObjects, ports.Namespaces and ports.SecretSource.

    Args:
        configuration: Address and credentials of the API server.
        before_write, writing: Hooks around each call that changes something, as in `KubernetesTransport`.
        namespaces: Namespaces that `list_all` reads; empty means all.
        cluster_id: Configured id of the cluster. None reads the uid of kube-system.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        before_write: Callable[[], None] | None = None,
        writing: WriteContext = nullcontext,
        namespaces: Sequence[str] = (),
        cluster_id: str | None = None,
    ) -> None:
        self._transport = KubernetesTransport(configuration, before_write=before_write, writing=writing)
        self._events = KubernetesEvents(self._transport)
        self._namespaces = namespaces
        self._cluster_id = cluster_id

    async def close(self) -> None:
        """Close the connections to the API server, which takes 0.1 s."""
        await self._transport.close()

    async def cluster_id(self) -> str:
        """Return the configured id, or else the uid of kube-system, which is read once.

        Raises:
            TransientError: If the Namespace cannot be read.
        """
        if self._cluster_id is None:
            try:
                namespace = await self._transport.call("GET", "/api/v1/namespaces/kube-system")
            except (NotFound, KubernetesRejected) as exc:
                raise TransientError(
                    f"the uid of the Namespace kube-system, which identifies this cluster, cannot be read: {exc}. "
                    f"Allow this"
                    " account to `get` that Namespace, or set AGENTMEMORY_CLUSTER_ID for both the operator and the API"
                ) from exc
            self._cluster_id = str(namespace["metadata"]["uid"])
        return self._cluster_id

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        """Replace the status of an object; return its resourceVersion, or '' if no object has its uid."""
        patch = [
            # Compare the uid, because the object may have been deleted and created again.
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        path = _path(kind, metadata) + "/status"
        try:
            response = await self._transport.call("PATCH", path, patch, content_type=JSON_PATCH)
        except NotFound:
            return ""
        except KubernetesRejected as exc:
            # Ignore a failed `test`: its error lists no causes. That of a status that violates the schema does.
            if exc.status != INVALID or exc.causes:
                raise
            return ""
        return str(response["metadata"]["resourceVersion"])

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the finalizers of an object by compare-and-set. A deleted object is no error.

        Raises:
            KubernetesConflict: If the object has changed since it was read; nothing was written.
        """
        patch = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata.resource_version}}
        with suppress(NotFound):
            await self._transport.call("PATCH", _path(kind, metadata), patch, content_type=MERGE_PATCH)

    async def create_object(self, document: Json) -> bool:
        """Create an object; return False if it exists already."""
        metadata = Metadata.model_validate(document["metadata"])
        try:
            with _kinds_known():
                await self._transport.call("POST", _folder(document["kind"], metadata.namespace), document)
        except KubernetesConflict:
            return False
        except KubernetesRejected as exc:
            if TERMINATING in str(exc):
                raise NamespaceTerminating(str(exc)) from exc
            raise
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object if it has the uid of `metadata`; a deleted object is no error."""
        body = {"preconditions": {"uid": metadata.uid}}
        # Ignore a conflict: another object has the name now.
        with suppress(NotFound, KubernetesConflict):
            await self._transport.call("DELETE", _path(kind, metadata), body)

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or remove those that are None.

        Raises:
            NotFound: If there is no object of this name.
            KubernetesConflict: If the object has another uid.
        """
        patch = {"metadata": {"annotations": dict(annotations), "uid": metadata.uid}}
        await self._transport.call("PATCH", _path(kind, metadata), patch, content_type=MERGE_PATCH)

    async def add_takeovers(self, namespace: str, name: str, entries: Sequence[Json]) -> None:
        """Append entries to `spec.takeovers` of a QdrantConnection; skip existing entries.

        Raises:
            NotFound: If there is no such QdrantConnection.
            KubernetesConflict: If the QdrantConnection was changed concurrently; nothing was written.
        """
        document = await self.read_object("QdrantConnection", namespace, name)
        existing = document["spec"].get("takeovers") or []
        takeovers = [*existing, *(entry for entry in entries if entry not in existing)]
        version = document["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": {"takeovers": takeovers}}
        path = _path("QdrantConnection", Metadata(name=name, namespace=namespace))
        await self._transport.call("PATCH", path, patch, content_type=MERGE_PATCH)

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Post an event about an object, or increase the count of the same event."""
        await self._events.post(kind, metadata, event)

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        """Return a Secret with its decoded values, or None if it does not exist.

        Values are stripped of surrounding whitespace. Values that are no UTF-8 text are left out.
        """
        secret = await self._transport.find(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        if secret is None:
            return None
        values: dict[str, str] = {}
        for key, encoded in (secret.get("data") or {}).items():
            with suppress(binascii.Error, UnicodeDecodeError):
                values[key] = base64.b64decode(encoded).decode().strip()
        return AnnotatedSecret(values, (secret["metadata"].get("annotations") or {}).get(HOSTS_ANNOTATION))

    async def check_served(self) -> None:
        """Raise unless API discovery lists all kinds of this operator. It lists a kind some time after its CRD exists.

        Raises:
            TransientError: If a kind is missing. kopf would not find it, and would not look for it again.
        """
        groups = await self._transport.call("GET", "/apis")
        resources = await self._transport.find(f"/apis/{API_VERSION}") or {"resources": []}
        is_listed = any(group["name"] == GROUP for group in groups["groups"])
        if not is_listed or not set(PLURALS.values()) <= {resource["name"] for resource in resources["resources"]}:
            raise TransientError(KINDS_MISSING)

    async def list_all(self, kind: str) -> list[Json]:
        """Return all objects of a kind in the configured namespaces."""
        lists = [await self._list(kind, _folder(kind, name)) for name in self._namespaces or ("",)]
        return [document for documents, _ in lists for document in documents]

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; empty if it does not exist."""
        document = await self._transport.find(f"/api/v1/namespaces/{namespace}")
        labels: Mapping[str, str] = (document["metadata"].get("labels") if document else None) or {}
        return labels

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return all objects of a kind, and the resource version to watch from."""
        return await self._list(kind, _folder(kind))

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in one namespace; an empty name means all namespaces."""
        return (await self._list(kind, _folder(kind, namespace)))[0]

    async def _list(self, kind: str, path: str, selector: str = "") -> tuple[list[Json], str]:
        items: list[Json] = []
        base_query = [("limit", str(PAGE_SIZE)), *_selected(selector)]
        query = base_query
        while True:
            with _kinds_known():
                page = await self._transport.call("GET", path, query=query)
            items += [strip_managed_fields(kind, item) for item in page["items"]]
            if not (next_page := page["metadata"].get("continue")):
                return items, page["metadata"]["resourceVersion"]
            query = [*base_query, ("continue", next_page)]

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object.

        Raises:
            NotFound: If there is no such object.
            TransientError: If the kind is not installed.
        """
        path = _path(kind, Metadata(name=name, namespace=namespace))
        with _kinds_known():
            document: Json = await self._transport.call("GET", path)
        return document

    async def event_times(self, reason: str) -> dict[tuple[str, str], str]:
        """Return the time of each AgentMemory's last event with a reason, by (namespace, name).

        A time is '' if the event has none. The result is empty if the account may not read events. Clusters keep events
        for an hour by default.
        """
        query = [("fieldSelector", f"reason={reason},involvedObject.kind=AgentMemory")]
        try:
            response = await self._transport.send("GET", "/api/v1/events", query=query)
        except KubernetesRejected as exc:
            log.debug("cannot read events: %s", exc)
            return {}
        with mapped_errors():
            items = json.loads(await response.read())["items"]
        events = [(item["lastTimestamp"] or "", item["involvedObject"]) for item in items]
        # Sort by time only, because events of the same second have no order.
        events.sort(key=lambda entry: entry[0])
        return {(reference["namespace"], reference["name"]): time for time, reference in events}

    async def follow(
        self,
        kind: str,
        on_alive: Callable[[], None] = lambda: None,
        *,
        on_failure: Callable[[str], None] = lambda _: None,
        namespace: str = "",
        selector: str = "",
        retry_s: float = WATCH_RETRY_S,
    ) -> AsyncGenerator[tuple[str, Json | list[Json]], None]:
        """List and watch a kind forever.

        Yields ("LIST", objects) at the start and after each gap, then (ADDED|MODIFIED|DELETED, object).

        Args:
            on_alive: Called at each sign of life of the API server: at least every 50 s while the watch works.
            on_failure: Called with an error message at each failed attempt.
            namespace: Namespace to watch; empty means all.
            selector: Label selector; empty matches all objects.
            retry_s: Seconds between two attempts.
        """
        path = _folder(kind, namespace)
        while True:
            try:
                items, version = await self._list(kind, path, selector)
                on_alive()
                yield "LIST", items
                watch = self._watch(kind, path, [("resourceVersion", version), *_selected(selector)], heard=on_alive)
                async with aclosing(watch) as events:
                    async for event in events:
                        yield event
            except TransientError as exc:
                log.warning("watch of %s: %s; again in %.0f s", kind, exc, retry_s)
                on_failure(f"cannot read {kind}: {exc}")
                await asyncio.sleep(retry_s)

    async def _watch(
        self, kind: str, path: str, since: Sequence[tuple[str, str]], *, heard: Callable[[], None]
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield changes after the version in the first item of `since`, until a gap requires a new list."""
        (_, version), *selector_query = since
        while True:
            query = [
                ("watch", "true"),
                ("resourceVersion", version),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_TIMEOUT_S)),
                *selector_query,
            ]
            response = await self._transport.send("GET", path, query=query, timeout_s=WATCH_TIMEOUT_S + 10)
            heard()
            with mapped_errors(), closing(response):
                async for line in response.content:
                    heard()
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        # End the watch after 410 Gone or a similar error. The next list contains the missed changes.
                        return
                    document = event["object"]
                    version = document["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], strip_managed_fields(kind, document)


@contextmanager
def _kinds_known() -> Iterator[None]:
    """Raise TransientError for a missing kind, and let NotFound for a missing object pass."""
    try:
        yield
    except NotFound as exc:
        # The message names a missing object or namespace, but not a missing kind.
        if OBJECT_MISSING in str(exc):
            raise
        raise TransientError(KINDS_MISSING) from exc


def strip_managed_fields(kind: str, document: Mapping[str, Any]) -> Json:
    """Return the object with `kind` and `apiVersion`, and without the large `managedFields`.

    The items of a list lack `apiVersion` and `kind`.
    """
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    version = "v1" if kind == CONFIG_MAP else API_VERSION
    stripped: Json = _shared({**document, "apiVersion": version, "kind": kind, "metadata": metadata})
    return stripped


def _shared(value: Any) -> Any:
    """Intern all strings of a value. For 20,000 snapshots that halves the memory."""
    match value:
        case dict():
            return {sys.intern(key): _shared(part) for key, part in value.items()}
        case list():
            return [_shared(part) for part in value]
        case str():
            return sys.intern(value)
        case _:
            return value


def _selected(selector: str) -> list[tuple[str, str]]:
    return [("labelSelector", selector)] if selector else []


def _folder(kind: str, namespace: str = "") -> str:
    """Return the URL path of a kind's objects, in one namespace or in all."""
    folder = f"namespaces/{namespace}/" if namespace else ""
    if kind == CONFIG_MAP:
        return f"/api/v1/{folder}configmaps"
    return f"/apis/{API_VERSION}/{folder}{PLURALS[kind]}"


def _path(kind: str, metadata: Metadata) -> str:
    return f"{_folder(kind, metadata.namespace)}/{metadata.name}"


class KubernetesInstallation(KubernetesCluster):
    """Implements controllers.uninstall.InstallationApi: also deletes CRDs, and reads the Leases of all operators."""

    async def has_definition(self, kind: str) -> bool:
        """Return whether the CRD of a kind exists, even if it is being deleted."""
        return await self._transport.find(_definition(kind)) is not None

    async def delete_definition(self, kind: str) -> None:
        """Delete the CRD of a kind with its objects; an absent CRD is no error."""
        with suppress(NotFound):
            await self._transport.call("DELETE", _definition(kind))

    async def read_lease_renewals(self) -> dict[str, str]:
        """Return the last renewal time of each operator's Lease, by namespace, as text. 'None' means no renewal yet."""
        query = [("fieldSelector", f"metadata.name={LEASE_NAME}")]
        leases = await self._transport.call("GET", "/apis/coordination.k8s.io/v1/leases", query=query)
        return {item["metadata"]["namespace"]: str(item["spec"].get("renewTime")) for item in leases["items"]}


def _definition(kind: str) -> str:
    return f"{_DEFINITIONS}/{PLURALS[kind]}.{GROUP}"
