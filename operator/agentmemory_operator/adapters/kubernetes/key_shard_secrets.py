"""Data keys of privacy zones in a cluster: one Secret per shard, in a dedicated namespace.

The retrieval API and the operator write these Secrets. The namespace contains no others, and the API may write Secrets
nowhere else. The name of a Secret identifies its shard; labels are only used for lists.
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from agentmemory_operator.adapters.kubernetes.transport import METADATA_LIST, KubernetesTransport, mapped_errors
from agentmemory_operator.errors import Conflict, KeysDamaged, NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard, is_shard_name, parse_shard, render_shard

PREFIX, KEY = "agentmemory-zone-keys-", "keys.json"
NAMESPACE, AGENT, SHARD = f"{GROUP}/owner-namespace", f"{GROUP}/agent", f"{GROUP}/zone-keys"
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "agentmemory-operator"

TIMEOUT_S = 5.0
"""Timeout of a call in seconds. It is short, because a request for a memory waits for the call."""

_PAGE = 500


class KubernetesKeyShards:
    """Implements ports.KeyShards. A call to the API server that takes over 5 s raises TransientError.

    Args:
        transport: Transport to the API server.
        namespace: Dedicated namespace for the keys.
    """

    def __init__(self, transport: KubernetesTransport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._folder = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self, ring: Ring, name: str) -> Shard:
        """Return a shard, or an empty shard if there is no Secret.

        Raises:
            KeysDamaged: If the Secret contains no shard in a known format.
        """
        async with _with_timeout():
            secret = await self._transport.find(self._path(ring, name))
        if secret is None:
            return Shard(ring=ring, name=name)
        try:
            text = base64.b64decode((secret.get("data") or {})[KEY], validate=True).decode("ascii")
            return parse_shard(text, ring=ring, name=name, version=secret["metadata"]["resourceVersion"])
        except (LookupError, ValueError, binascii.Error) as exc:
            raise KeysDamaged(
                f"Secret {self._namespace}/{_secret_name(ring, name)} contains no keys in this version's format"
                f" ({type(exc).__name__}): restore it from a backup"
            ) from None

    async def version(self, ring: Ring, name: str) -> str:
        """Return the Secret's resourceVersion; empty if there is none."""
        try:
            async with _with_timeout():
                secret = await self._transport.metadata(self._path(ring, name))
        except NotFound:
            return ""
        return str(secret["metadata"]["resourceVersion"])

    async def write(self, shard: Shard) -> str:
        """Create the Secret if the shard has no version, else replace it by compare-and-set; return the new version.

        Raises:
            Conflict: If the Secret exists already, was deleted, or has changed since it was read; nothing was written.
            TransientError: If the API server is unavailable. The Secret may have been written.
        """
        body, path = self._body_of(shard), self._path(shard.ring, shard.name)
        if not shard.version:
            async with _with_timeout():
                return _version_of(await self._transport.put(self._folder, body))
        try:
            return _version_of(await self._call("PUT", path, body))
        except NotFound as exc:
            raise Conflict(f"Secret {_secret_name(shard.ring, shard.name)} was deleted concurrently") from exc

    async def list_names(self, ring: Ring) -> list[str]:
        """Return the names of an agent's shards, sorted."""
        prefix, names, next_page = _secret_name(ring, ""), list[str](), ""
        selector = f"{SHARD},{NAMESPACE}={ring.namespace},{AGENT}={ring.agent}"
        while True:
            query = [("labelSelector", selector), ("limit", str(_PAGE)), ("continue", next_page)]
            async with _with_timeout():
                page = await self._transport.metadata(self._folder, query=query, accept=METADATA_LIST)
            # Replace null, which the API server returns for an empty list.
            secrets = (str(item["metadata"]["name"]) for item in page["items"] or ())
            names += (secret.removeprefix(prefix) for secret in secrets if secret.startswith(prefix))
            if not (next_page := page["metadata"].get("continue") or ""):
                return sorted(filter(is_shard_name, names))

    async def delete(self, ring: Ring) -> None:
        """Delete all Secrets of an agent. Shard `0`, which marks that the agent has keys, is deleted last."""
        for name in reversed(await self.list_names(ring)):
            try:
                await self._call("DELETE", self._path(ring, name))
            except NotFound:
                continue

    async def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        async with _with_timeout():
            return await self._transport.call(method, path, body)

    def _path(self, ring: Ring, name: str) -> str:
        return f"{self._folder}/{_secret_name(ring, name)}"

    def _body_of(self, shard: Shard) -> Json:
        labels = {MANAGED_BY: MANAGER, NAMESPACE: shard.ring.namespace, AGENT: shard.ring.agent, SHARD: shard.name}
        metadata: dict[str, Any] = {"name": _secret_name(shard.ring, shard.name), "labels": labels}
        if shard.version:
            metadata["resourceVersion"] = shard.version
        data = {KEY: base64.b64encode(render_shard(shard).encode()).decode()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _secret_name(ring: Ring, name: str) -> str:
    """Return the name of a shard's Secret.

    It is unambiguous: namespaces and slugs contain no dot, shard names no dash.
    """
    return f"{PREFIX}{ring.namespace}.{ring.agent}-{name}"


def _version_of(secret: Json) -> str:
    return str(secret["metadata"]["resourceVersion"])


@asynccontextmanager
async def _with_timeout() -> AsyncGenerator[None, None]:
    with mapped_errors():
        async with asyncio.timeout(TIMEOUT_S):
            yield
