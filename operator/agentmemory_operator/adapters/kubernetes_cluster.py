"""Kubernetes through the official client: status, finalizers, events, Secrets, list and watch."""

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
from kubernetes.aio import client, config, watch
from kubernetes.aio.client.exceptions import ApiException

from agentmemory_operator.domain.resources import API_VERSION, GROUP, VERSION, Metadata
from agentmemory_operator.errors import AgentMemoryError, SecretMissing, TransientError
from agentmemory_operator.ports import Event, Json

log = logging.getLogger(__name__)

PLURALS = {"AgentMemory": "agentmemories", "QdrantConnection": "qdrantconnections"}
COMPONENT = "agentmemory-operator"
GONE, NOT_FOUND, INVALID = 410, 404, 422
EVENT_MESSAGE_LIMIT = 1024
WATCH_TIMEOUT_S = 300
WATCH_RETRY_S = 1.0


async def load_configuration() -> client.Configuration:
    """Return how to reach the API server: from the pod's ServiceAccount, else from the kubeconfig.

    Raises:
        AgentMemoryError: there is neither; says what to set.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except config.ConfigException as exc:
            raise AgentMemoryError(f"no Kubernetes to talk to: set KUBECONFIG or run in a cluster ({exc})") from exc
    return configuration


@contextmanager
def mapped_errors(*, tolerated: Sequence[int] = ()) -> Iterator[None]:
    """Turn the client's exceptions into ours; answers with a tolerated status are no error."""
    try:
        yield
    except ApiException as exc:
        if exc.status not in tolerated:
            raise TransientError(f"Kubernetes answered {exc.status} {exc.reason}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise TransientError(f"Kubernetes cannot be reached: {type(exc).__name__}") from exc


def _is_other_object(cause: BaseException | None) -> bool:
    """Tell a failed `test` of a JSON patch from a status that the schema refuses: only the latter lists causes."""
    return isinstance(cause, ApiException) and cause.status == INVALID and '"causes"' not in str(cause.body)


class KubernetesCluster:
    """Implements ports.Cluster and ports.Secrets."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._api = client.ApiClient(configuration)
        self._custom = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)
        self._cluster_id: str | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def cluster_id(self) -> str:
        """Return the uid of kube-system."""
        if self._cluster_id is None:
            with mapped_errors():
                namespace = await self._core.read_namespace("kube-system")
            self._cluster_id = str(namespace.metadata.uid) if namespace.metadata else ""
        return self._cluster_id

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> None:
        """Replace the object's status; an object that is gone is no error."""
        try:
            await self._patch_status(kind, metadata, status)
        except TransientError as exc:
            if not _is_other_object(exc.__cause__):
                raise

    async def _patch_status(self, kind: str, metadata: Metadata, status: Json) -> None:
        with mapped_errors(tolerated=(NOT_FOUND,)):
            await self._custom.patch_namespaced_custom_object_status(
                GROUP,
                VERSION,
                metadata.namespace,
                PLURALS[kind],
                metadata.name,
                # The uid guards an object that was deleted and created again meanwhile.
                [
                    {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
                    {"op": "add", "path": "/status", "value": status},
                ],
                _content_type="application/json-patch+json",
            )

    async def write_finalizers(self, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the AgentMemory's finalizers, if it has not changed since."""
        body = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata.resource_version}}
        with mapped_errors(tolerated=(NOT_FOUND,)):
            await self._custom.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                metadata.namespace,
                PLURALS["AgentMemory"],
                metadata.name,
                body,
                _content_type="application/merge-patch+json",
            )

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Post an Event on the object; one that cannot be posted is dropped."""
        now = datetime.now(UTC)
        body = client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name=f"{metadata.name}.", namespace=metadata.namespace),
            involved_object=client.V1ObjectReference(
                api_version=API_VERSION,
                kind=kind,
                name=metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
            ),
            type=event.type,
            reason=event.reason,
            message=event.message[:EVENT_MESSAGE_LIMIT],
            source=client.V1EventSource(component=COMPONENT),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )
        try:
            with mapped_errors():
                await self._core.create_namespaced_event(metadata.namespace, body)
        except TransientError as exc:
            log.warning("event %s on %s/%s dropped: %s", event.reason, metadata.namespace, metadata.name, exc)

    async def read(self, namespace: str, name: str, key: str) -> str:
        """Return the decoded value of a Secret's key."""
        try:
            with mapped_errors():
                secret = await self._core.read_namespaced_secret(name, namespace)
        except TransientError as exc:
            if isinstance(exc.__cause__, ApiException) and exc.__cause__.status == NOT_FOUND:
                raise SecretMissing(namespace, name, key) from exc
            raise
        encoded = (secret.data or {}).get(key)
        if encoded is None:
            raise SecretMissing(namespace, name, key)
        try:
            return base64.b64decode(encoded).decode().strip()
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise SecretMissing(namespace, name, key) from exc

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return every object of a kind, and the version to watch from."""
        with mapped_errors():
            answer: Any = await self._custom.list_cluster_custom_object(GROUP, VERSION, PLURALS[kind])
        items = [{"apiVersion": API_VERSION, "kind": kind} | item for item in answer["items"]]
        return items, answer["metadata"]["resourceVersion"]

    async def follow(self, kind: str) -> AsyncIterator[tuple[str, Json | list[Json]]]:
        """Yield ("LIST", objects) at the start and after each gap, then (ADDED|MODIFIED|DELETED, object), for ever."""
        while True:
            try:
                items, version = await self.list_objects(kind)
                yield "LIST", items
                async for event in self._watch(kind, version):
                    yield event
            except TransientError as exc:
                log.warning("watch of %s: %s; again in %.0f s", kind, exc, WATCH_RETRY_S)
                await asyncio.sleep(WATCH_RETRY_S)

    async def _watch(self, kind: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Yield changes after `version` until a gap asks for a new list."""
        while True:
            stream = watch.Watch().stream(
                self._custom.list_cluster_custom_object,
                GROUP,
                VERSION,
                PLURALS[kind],
                resource_version=version,
                timeout_seconds=WATCH_TIMEOUT_S,
                allow_watch_bookmarks=True,
            )
            with mapped_errors(tolerated=(GONE,)):
                async for event in stream:
                    document = event["raw_object"]
                    version = document["metadata"]["resourceVersion"]
                    if event["type"] in {"ADDED", "MODIFIED", "DELETED"}:
                        yield event["type"], {"apiVersion": API_VERSION, "kind": kind} | document
                continue
            return
