"""What a server says of itself: its version, its cluster, its machine and its process."""

import re
from collections.abc import Mapping
from typing import Any

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.replicas import QdrantReplicas
from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected

ANY_NAME = "agentmemory"
_VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,64}")

# Name in Qdrant's /metrics (since 1.16) -> field. Its setting `service.metrics_prefix` may put anything before it.
_FIELDS = {
    "process_open_mmaps": "open_maps",
    "system_max_mmaps": "max_maps",
    "process_open_fds": "open_files",
    "process_max_fds": "max_files",
    "collections_total": "collections",
}
# A line of its own without labels: what is named by others stands in labels.
_LINE = re.compile(r"[a-zA-Z0-9_:]* ([0-9]{1,18})(?:\.0+)?[ \r]*")
_MOST_LINE, _MOST_TRIES = 256, 1_000
"""Characters of such a line; times that a name is looked for: what answers may be no Qdrant, and nobody waits long."""


class QdrantServer:
    """Asks one server, any of its cluster; what its telemetry says it is asked once for each version.

    Args:
        qdrant: the client of that server.
        replicas: of the same server.
    """

    def __init__(self, qdrant: QdrantControl, replicas: QdrantReplicas) -> None:
        self._qdrant = qdrant
        self._replicas = replicas
        self._telemetry: dict[str, Mapping[str, Any]] = {}

    async def capabilities(self) -> ServerCapabilities:
        """What the server says of itself, having shown it the key."""
        # One that was away in between may have been started with other settings.
        known, self._telemetry = self._telemetry, {}
        # The server tells anybody its version; whether it takes our key, only a call that needs one finds out.
        await self._qdrant.collections.collection_exists(ANY_NAME)
        told: Any = await self._qdrant.service.root()
        with understood():
            # It goes into status; another server's description of itself does not.
            if not _VERSION.fullmatch(version := told["version"]):
                raise ValueError("no version")
        app = known.get(version) or await self._app()
        # Others may ask at the same time: what they keep is theirs.
        self._telemetry = {version: app}
        system = app.get("system") or {}
        with understood():
            has_jwt_rbac = bool(app.get("jwt_rbac")) if app else None
            return ServerCapabilities(
                version,
                await self._peers(),
                has_jwt_rbac,
                disk_bytes=_bytes(system.get("disk_size")),
                ram_bytes=_bytes(system.get("ram_size")),
            )

    async def process(self) -> Process:
        """What the server says of its process; nothing where its key may not ask, or it has no metrics."""
        try:
            return process_from(await self._qdrant.service.metrics())
        except (StoreRejected, NotFound):
            return Process()

    async def _peers(self) -> int | None:
        peers = await self._replicas.peers()
        # A key for the collections alone may not ask.
        return None if peers is None else len(peers) or 1

    async def _app(self) -> Mapping[str, Any]:
        """What the server's telemetry says of itself and its machine; nothing where it does not tell."""
        try:
            told = await result_of(self._qdrant.service.telemetry(details_level=1))
            with understood():
                app: Mapping[str, Any] = dict(told.get("app") or {})
                return app
        except AgentMemoryError:
            # Nothing depends on it; a server that is away is found by the other calls.
            return {}


def _bytes(kibibytes: Any) -> int | None:
    """Bytes of a size of the telemetry, which counts by 1024."""
    return int(kibibytes) * 1024 if kibibytes else None


def process_from(text: str) -> Process:
    """What metrics in Prometheus' text format say; None of each that is not there, or no whole number."""
    told = {field: _number(text, name) for name, field in _FIELDS.items()}
    return Process(**told)


def _number(text: str, name: str) -> int | None:
    at = -1
    for _ in range(_MOST_TRIES):
        if (at := text.find(f"{name} ", at + 1)) < 0:
            return None
        start = text.rfind("\n", max(0, at - _MOST_LINE), at) + 1
        end = text.find("\n", at, at + _MOST_LINE)
        line = text[start : end if end >= 0 else at + _MOST_LINE]
        if found := _LINE.fullmatch(line):
            return int(found[1])
    return None
