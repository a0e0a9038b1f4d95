"""Credentials that the operator passes to the retrieval API: one Secret per agent, in the API's own namespace."""

import base64
from contextlib import suppress
from typing import Any

from agentmemory_operator.adapters.kubernetes.transport import KubernetesConflict, KubernetesTransport
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret, Owner
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import GROUP

SECRET_PREFIX = "agentmemory-agent-"
AGENT, MANAGED_BY = f"{GROUP}/agent", "app.kubernetes.io/managed-by"
MANAGER = "agentmemory-operator"
NAMESPACE, NAME, UID = (f"{GROUP}/owner-{part}" for part in ("namespace", "name", "uid"))


class KubernetesAgentSecrets:
    """Implements ports.AgentSecretStore.

    Args:
        transport: Transport to the API server.
        namespace: Namespace of the retrieval API.
    """

    def __init__(self, transport: KubernetesTransport, namespace: str) -> None:
        self._transport = transport
        self._folder = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self, slug: str) -> AgentSecret | None:
        """Return the record of an agent, or None if there is no Secret."""
        secret = await self._transport.find(self._path(slug))
        return None if secret is None else _handed_from(secret)

    async def write(self, agent_secret: AgentSecret) -> None:
        """Create the Secret if the record has no version, else replace it by compare-and-set.

        Raises:
            KubernetesConflict: If the Secret exists already, or has changed since it was read; nothing was written.
            TransientError: If the API server is unavailable, or the Secret to replace was deleted.
        """
        await self._transport.put(self._folder, self._body_of(agent_secret))

    async def delete(self, agent_secret: AgentSecret) -> None:
        """Delete the Secret if it still has the given version. One that is absent or has changed is no error."""
        body = {"preconditions": {"resourceVersion": agent_secret.version}}
        with suppress(NotFound, KubernetesConflict):
            await self._transport.call("DELETE", self._path(agent_secret.slug), body)

    async def list_all(self) -> list[AgentSecret]:
        """Return the records of all agents."""
        query = [("labelSelector", f"{MANAGED_BY}={MANAGER},{AGENT}")]
        return [_handed_from(item) for item in (await self._transport.call("GET", self._folder, query=query))["items"]]

    def _path(self, slug: str) -> str:
        return f"{self._folder}/{SECRET_PREFIX}{slug}"

    def _body_of(self, secret: AgentSecret) -> Json:
        metadata: dict[str, Any] = {
            "name": SECRET_PREFIX + secret.slug,
            "labels": {MANAGED_BY: MANAGER, AGENT: secret.slug},
            "annotations": {NAMESPACE: secret.owner.namespace, NAME: secret.owner.name, UID: secret.owner.uid},
        }
        if secret.version:
            metadata["resourceVersion"] = secret.version
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.values.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _handed_from(secret: Json) -> AgentSecret:
    metadata = secret["metadata"]
    annotations = metadata.get("annotations") or {}
    return AgentSecret(
        slug=metadata["name"].removeprefix(SECRET_PREFIX),
        owner=Owner(annotations.get(NAMESPACE, ""), annotations.get(NAME, ""), annotations.get(UID, "")),
        values={key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()},
        version=metadata["resourceVersion"],
    )
