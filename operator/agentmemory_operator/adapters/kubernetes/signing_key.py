"""The key of user tokens in a cluster: one Secret in the API's namespace. The operator makes it, the API reads it."""

import base64
import binascii
import logging

from agentmemory_operator.adapters.kubernetes.handover import KEY, KEY_SECRET
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.adapters.signing_key import key_from
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports.access import SigningKey

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0


class KubernetesSigningKey:
    """Implements ports.SigningKeys.

    Args:
        namespace: the API's.
    """

    def __init__(self, transport: KubernetesTransport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{KEY_SECRET}"

    async def read(self) -> SigningKey:
        """The key; the reason why there is none names our own rights, and is the log's alone."""
        try:
            key = await self._read()
        except AgentMemoryError as exc:
            log.warning("user tokens cannot be checked: %s", exc)
            raise TransientError("user tokens cannot be checked for now", retry_after_s=RETRY_AFTER_S) from exc
        if key is None:
            log.warning("user tokens cannot be checked: Secret %s/%s holds no key", self._namespace, KEY_SECRET)
            raise TransientError("user tokens cannot be checked for now", retry_after_s=RETRY_AFTER_S)
        return key

    async def _read(self) -> SigningKey | None:
        secret = await self._transport.call("GET", self._path)
        try:
            text = base64.b64decode((secret.get("data") or {}).get(KEY, "")).decode("ascii")
        except (binascii.Error, ValueError):
            return None
        return key_from(text)
