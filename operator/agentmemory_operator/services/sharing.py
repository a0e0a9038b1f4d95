"""Connections as objects of any namespace refer to them; a namespace's labels are read once in a while."""

import asyncio
from collections.abc import Mapping

from agentmemory_operator.domain.resources import QdrantConnection
from agentmemory_operator.domain.sharing import asks_labels, check_allowed
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports import Namespaces

LABELS_S = 30.0
"""For how many seconds labels are believed: one who takes a label away waits as long."""


class Sharing:
    """Decides whether a namespace may use a connection.

    Args:
        namespaces: where labels are read; None where no namespace has any.
    """

    def __init__(self, namespaces: Namespaces | None) -> None:
        self._namespaces = namespaces
        self._labels: dict[str, tuple[float, Mapping[str, str]]] = {}

    async def check(self, connection: QdrantConnection, namespace: str) -> None:
        """Pass where objects of the namespace may refer to the connection.

        Raises:
            SpecInvalid: they may not.
            TransientError: the namespace's labels cannot be read and never were.
        """
        labels = await self._labels_of(namespace) if asks_labels(connection, namespace) else {}
        check_allowed(connection, namespace, labels)

    async def _labels_of(self, namespace: str) -> Mapping[str, str]:
        now = asyncio.get_running_loop().time()
        read_at, labels = self._labels.get(namespace, (None, {}))
        if self._namespaces is None or (read_at is not None and now - read_at < LABELS_S):
            return labels
        try:
            labels = await self._namespaces.labels(namespace)
        except TransientError:
            # Kubernetes' own trouble takes no agent from service.
            if read_at is None:
                raise
        self._labels[namespace] = now, labels
        return labels
