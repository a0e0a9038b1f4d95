"""Kubernetes through the official client: status, finalizers, events, Secrets, list and watch."""

import asyncio
import base64
import binascii
import json
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from agentmemory_operator.adapters.kubernetes_events import KubernetesEvents
from agentmemory_operator.adapters.kubernetes_transport import (
    CONFLICT,
    INVALID,
    JSON_PATCH,
    MERGE_PATCH,
    Configuration,
    KubernetesRejected,
    KubernetesTransport,
    mapped_errors,
)
from agentmemory_operator.domain.definitions import KINDS
from agentmemory_operator.domain.resources import API_VERSION, GROUP, Metadata
from agentmemory_operator.errors import NamespaceEnding, NotFound, SecretMissing, TransientError
from agentmemory_operator.ports import Event, Json

log = logging.getLogger(__name__)

PLURALS = {kind.name: kind.plural for kind in KINDS}
# So short that a connection which died in silence is noticed within a minute.
WATCH_TIMEOUT_S = 50
WATCH_RETRY_S = 1.0
# The API server's words.
TERMINATING = "because it is being terminated"
# A thousand objects in one answer are 7 MB of JSON, and ten times that in memory while it is read.
PAGE = 100


class KubernetesCluster:
    """Implements ports.Cluster, ports.AgentMemories, ports.JobObjects, ports.Namespaces and ports.Secrets.

    Args:
        before_write: called right before each call that changes something; what it raises stops the call.
        namespaces: whose objects `list_all` returns; none is all.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        before_write: Callable[[], None] | None = None,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._transport = KubernetesTransport(configuration, before_write=before_write)
        self._events = KubernetesEvents(self._transport)
        self._namespaces = namespaces
        self._cluster_id: str | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def cluster_id(self) -> str:
        """Return the uid of kube-system."""
        if self._cluster_id is None:
            namespace = await self._transport.call("GET", "/api/v1/namespaces/kube-system")
            self._cluster_id = str(namespace["metadata"]["uid"])
        return self._cluster_id

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> None:
        """Replace the object's status; an object that is gone is no error."""
        patch = [
            # The uid guards an object that was deleted and created again meanwhile.
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            await self._transport.call("PATCH", _path(kind, metadata) + "/status", patch, content_type=JSON_PATCH)
        except NotFound:
            return
        except KubernetesRejected as exc:
            # A failed `test` lists no causes; a status that the schema refuses does.
            if exc.status != INVALID or exc.causes:
                raise

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the object's finalizers, if it has not changed since."""
        patch = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata.resource_version}}
        try:
            await self._transport.call("PATCH", _path(kind, metadata), patch, content_type=MERGE_PATCH)
        except NotFound:
            return

    async def create_object(self, document: Json) -> bool:
        """Create an object; tell whether it was not there before."""
        metadata = Metadata.model_validate(document["metadata"])
        try:
            await self._transport.call("POST", _folder(document["kind"], metadata.namespace), document)
        except KubernetesRejected as exc:
            if TERMINATING in str(exc):
                raise NamespaceEnding(str(exc)) from exc
            if exc.status != CONFLICT:
                raise
            return False
        return True

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        body = {"preconditions": {"uid": metadata.uid}}
        try:
            await self._transport.call("DELETE", _path(kind, metadata), body)
        except NotFound:
            return
        except KubernetesRejected as exc:
            # Another object has its name by now.
            if exc.status != CONFLICT:
                raise

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of the object, or take off where None; another one of its name is left alone."""
        patch = {"metadata": {"annotations": dict(annotations), "uid": metadata.uid}}
        await self._transport.call("PATCH", _path(kind, metadata), patch, content_type=MERGE_PATCH)

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Tell people of the object; what was told before is counted."""
        await self._events.post(kind, metadata, event)

    async def read(self, namespace: str, name: str, key: str) -> str:
        """Return the decoded value of a Secret's key."""
        try:
            secret = await self._transport.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        except NotFound as exc:
            raise SecretMissing(namespace, name, key) from exc
        encoded = (secret.get("data") or {}).get(key)
        if encoded is None:
            raise SecretMissing(namespace, name, key)
        try:
            return base64.b64decode(encoded).decode().strip()
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise SecretMissing(namespace, name, key) from exc

    async def check_served(self) -> None:
        """Pass when the kinds stand in the API server's discovery, which follows their creation with a delay.

        Raises:
            TransientError: they do not yet; kopf would not find them, and not look again.
        """
        groups = await self._transport.call("GET", "/apis")
        try:
            resources = await self._transport.call("GET", f"/apis/{API_VERSION}")
        except NotFound:
            resources = {"resources": []}
        is_listed = any(group["name"] == GROUP for group in groups["groups"])
        if not is_listed or not set(PLURALS.values()) <= {found["name"] for found in resources["resources"]}:
            raise TransientError(f"the API server does not announce the kinds of {API_VERSION} yet: apply the CRDs")

    async def list_all(self, kind: str) -> list[Json]:
        """Return every object of a kind in the namespaces that are looked after."""
        lists = [await self._list(kind, _folder(kind, name)) for name in self._namespaces or ("",)]
        return [document for documents, _ in lists for document in documents]

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's labels, none of one that does not exist."""
        try:
            found = await self._transport.call("GET", f"/api/v1/namespaces/{namespace}")
        except NotFound:
            return {}
        labels: Mapping[str, str] = found["metadata"].get("labels") or {}
        return labels

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return every object of a kind, and the version to watch from."""
        return await self._list(kind, _folder(kind))

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in one namespace, or in all where that is empty."""
        return (await self._list(kind, _folder(kind, namespace)))[0]

    async def _list(self, kind: str, path: str) -> tuple[list[Json], str]:
        items: list[Json] = []
        query = [("limit", str(PAGE))]
        while True:
            try:
                answer = await self._transport.call("GET", path, query=query)
            except NotFound as exc:
                raise TransientError(f"the kind {kind} is unknown to the API server: apply the CRDs") from exc
            items += [kept_part(kind, item) for item in answer["items"]]
            if not (rest := answer["metadata"].get("continue")):
                return items, answer["metadata"]["resourceVersion"]
            query = [("limit", str(PAGE)), ("continue", rest)]

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object."""
        path = _path(kind, Metadata(name=name, namespace=namespace))
        found: Json = await self._transport.call("GET", path)
        return found

    async def event_times(self, reason: str) -> dict[tuple[str, str], str]:
        """Return when an event last befell AgentMemories; events last an hour, unless the cluster keeps them longer."""
        query = [("fieldSelector", f"reason={reason},involvedObject.kind=AgentMemory")]
        try:
            response = await self._transport.send("GET", "/api/v1/events", query=query)
        except KubernetesRejected as exc:
            log.debug("events cannot be read: %s", exc)
            return {}
        with mapped_errors():
            items = json.loads(await response.read())["items"]
        told = [(item["lastTimestamp"] or "", item["involvedObject"]) for item in items]
        # By time alone: two events of one second say nothing of which came first.
        told.sort(key=lambda entry: entry[0])
        return {(involved["namespace"], involved["name"]): time for time, involved in told}

    async def follow(
        self, kind: str, heard: Callable[[], None] = lambda: None, *, namespace: str = ""
    ) -> AsyncGenerator[tuple[str, Json | list[Json]], None]:
        """Yield ("LIST", objects) at the start and after each gap, then (ADDED|MODIFIED|DELETED, object), for ever.

        Args:
            heard: called at each sign of life of the API server: at least every 50 s while the watch is in order.
            namespace: whose objects; empty is all.
        """
        path = _folder(kind, namespace)
        while True:
            try:
                items, version = await self._list(kind, path)
                heard()
                yield "LIST", items
                async with aclosing(self._watch(kind, path, version, heard=heard)) as events:
                    async for event in events:
                        yield event
            except TransientError as exc:
                log.warning("watch of %s: %s; again in %.0f s", kind, exc, WATCH_RETRY_S)
                await asyncio.sleep(WATCH_RETRY_S)

    async def _watch(
        self, kind: str, path: str, version: str, *, heard: Callable[[], None]
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield changes after `version` until a gap asks for a new list."""
        while True:
            query = [
                ("watch", "true"),
                ("resourceVersion", version),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_TIMEOUT_S)),
            ]
            response = await self._transport.send("GET", path, query=query, timeout_s=WATCH_TIMEOUT_S + 10)
            heard()
            with mapped_errors(), closing(response):
                async for line in response.content:
                    heard()
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        # 410 Gone and its like: what was missed is in the next list.
                        return
                    document = event["object"]
                    version = document["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], kept_part(kind, document)


def kept_part(kind: str, document: Mapping[str, Any]) -> Json:
    """Return the object without the record of who wrote which field: most of its size, and nobody here reads it."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    kept: Json = _shared({**document, "apiVersion": API_VERSION, "kind": kind, "metadata": metadata})
    return kept


def _shared(value: Any) -> Any:
    """Return a value in which equal texts are one: of 20,000 snapshots that halves what is kept."""
    match value:
        case dict():
            return {sys.intern(key): _shared(part) for key, part in value.items()}
        case list():
            return [_shared(part) for part in value]
        case str():
            return sys.intern(value)
        case _:
            return value


def _folder(kind: str, namespace: str = "") -> str:
    """Return the path of a kind's objects, of one namespace or of all."""
    folder = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{API_VERSION}/{folder}{PLURALS[kind]}"


def _path(kind: str, metadata: Metadata) -> str:
    """Return the path of an object."""
    return f"{_folder(kind, metadata.namespace)}/{metadata.name}"
