"""Signing key of user tokens in a cluster: one Secret in the API's namespace.

The operator creates the Secret, and the API reads it.
"""

import base64
import binascii
import logging
from contextlib import suppress

from agentmemory_operator.adapters.kubernetes.agent_secret_store import MANAGED_BY, MANAGER
from agentmemory_operator.adapters.kubernetes.transport import KubernetesConflict, KubernetesTransport
from agentmemory_operator.adapters.user_tokens import new_key, parse_key
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports.access import SigningKey

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0
# Name of the Secret, which differs from the names of all agents' Secrets, and the key in it.
KEY_SECRET, KEY = "agentmemory-user-token-key", "key"


class KubernetesSigningKey:
    """Implements ports.SigningKeys and ports.SigningKeyMaker.

    Args:
        transport: Transport to the API server.
        namespace: Namespace of the retrieval API.
    """

    def __init__(self, transport: KubernetesTransport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._folder = f"/api/v1/namespaces/{namespace}/secrets"
        self._path = f"{self._folder}/{KEY_SECRET}"

    async def make_missing(self) -> None:
        """Create the Secret with a new key if there is none. Keep an existing Secret, even if it contains no key.

        Raises:
            TransientError: If the Secret cannot be read or created now, or its namespace does not exist.
        """
        if await self._transport.find(self._path) is None:
            await self._create()

    async def _create(self) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "labels": {MANAGED_BY: MANAGER}},
            "data": {KEY: base64.b64encode(new_key().encode()).decode()},
        }
        # Ignore a conflict: another operator has created the Secret in the meantime.
        with suppress(KubernetesConflict):
            await self._transport.put(self._folder, body)

    async def read(self) -> SigningKey:
        """Return the signing key. The cause of a failure is logged and not raised, because callers could see it.

        The cause reveals the permissions of this process.

        Raises:
            TransientError: If there is no key yet, or it cannot be read now.
        """
        try:
            key = await self._read()
        except AgentMemoryError as exc:
            log.warning("cannot check user tokens: %s", exc)
            raise TransientError("user tokens cannot be verified at the moment", retry_after_s=RETRY_AFTER_S) from exc
        if key is None:
            log.warning("cannot check user tokens: Secret %s/%s contains no key", self._namespace, KEY_SECRET)
            raise TransientError("user tokens cannot be verified at the moment", retry_after_s=RETRY_AFTER_S)
        return key

    async def _read(self) -> SigningKey | None:
        secret = await self._transport.call("GET", self._path)
        try:
            text = base64.b64decode((secret.get("data") or {}).get(KEY, "")).decode("ascii")
        except (binascii.Error, ValueError):
            return None
        return parse_key(text)
