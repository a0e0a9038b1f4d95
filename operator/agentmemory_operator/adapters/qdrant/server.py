"""Version, cluster size, machine and process metrics of a Qdrant server, as the server reports them."""

import re
from collections.abc import Mapping
from typing import Any

from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.replicas import QdrantReplicas
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.errors import AgentMemoryError, RouteNotFound, StoreRejected

ANY_NAME = "agentmemory"
_VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,64}")

# Metric name in Qdrant's /metrics (since 1.16) -> field. The setting `service.metrics_prefix` can add any prefix.
_FIELDS = {
    "process_open_mmaps": "open_maps",
    "system_max_mmaps": "max_maps",
    "process_open_fds": "open_files",
    "process_max_fds": "max_files",
    "collections_total": "collections",
}
# Matches only metrics without labels, because text that clients can choose occurs only in labels.
_LINE = re.compile(r"[a-zA-Z0-9_:]* ([0-9]{1,18})(?:\.0+)?[ \r]*")
_MAX_LINE_CHARS, _MAX_TRIES = 256, 1_000
"""Maximum characters of a metric's line, and maximum occurrences of its name to check. Both bound the parsing time."""


class QdrantServer:
    """Reads the properties of one server. Telemetry is cached until the version changes, or `capabilities` fails.

    Args:
        qdrant: Client of the server.
        replicas: Replica calls of the same server.
    """

    def __init__(self, qdrant: QdrantControl, replicas: QdrantReplicas) -> None:
        self._qdrant = qdrant
        self._replicas = replicas
        self._telemetry: dict[str, Mapping[str, Any]] = {}

    async def capabilities(self) -> ServerCapabilities:
        """Check the API key by a call, then return version, cluster size and resources of the server.

        Raises:
            StoreRejected: If the server rejects the key.
            StoreUnavailable: If the server is unavailable, or is not Qdrant. The next call reads the telemetry again.
        """
        # Forget the telemetry unless this call succeeds, because the server may have restarted with other settings.
        cached, self._telemetry = self._telemetry, {}
        # Check the key by a call that needs one, because the version is readable without a key.
        await self._qdrant.collections.collection_exists(ANY_NAME)
        result: Any = await self._qdrant.service.root()
        with map_parse_errors():
            # The version goes into statuses, so do not accept arbitrary text of another server.
            if not _VERSION.fullmatch(version := result["version"]):
                raise ValueError("no version")
        app = cached.get(version) or await self._app()
        # Replace the dict instead of updating it, because concurrent calls use the old dict as their `cached`.
        self._telemetry = {version: app}
        system = app.get("system") or {}
        with map_parse_errors():
            has_jwt_rbac = bool(app.get("jwt_rbac")) if app else None
            return ServerCapabilities(
                version,
                await self._peers(),
                has_jwt_rbac,
                disk_bytes=_bytes(system.get("disk_size")),
                ram_bytes=_bytes(system.get("ram_size")),
            )

    async def process(self) -> Process:
        """Return the process metrics of the server.

        A field is None if its metric is missing; all are None if the key may not read metrics, or there are none.

        Raises:
            StoreUnavailable: If the server is unavailable.
        """
        try:
            return parse_process(await self._qdrant.service.metrics())
        except (RouteNotFound, StoreRejected):
            return Process()

    async def _peers(self) -> int | None:
        peers = await self._replicas.peers()
        # Return None if the key is restricted to collections, and may not read the cluster state.
        return None if peers is None else len(peers) or 1

    async def _app(self) -> Mapping[str, Any]:
        """Return the section `app` of the server's telemetry; empty if it cannot be read."""
        try:
            result = await result_of(self._qdrant.service.telemetry(details_level=1))
            with map_parse_errors():
                app: Mapping[str, Any] = dict(result.get("app") or {})
                return app
        except AgentMemoryError:
            # Continue without these optional data. The other calls detect an unavailable server.
            return {}


def _bytes(kibibytes: Any) -> int | None:
    """Convert KiB of the telemetry to bytes; None if the number is missing or 0."""
    return int(kibibytes) * 1024 if kibibytes else None


def parse_process(text: str) -> Process:
    """Parse metrics in Prometheus' text format; a field is None if its metric is missing or no whole number."""
    values = {field: _number(text, name) for name, field in _FIELDS.items()}
    return Process(**values)


def _number(text: str, name: str) -> int | None:
    index = -1
    for _ in range(_MAX_TRIES):
        if (index := text.find(f"{name} ", index + 1)) < 0:
            return None
        start = text.rfind("\n", max(0, index - _MAX_LINE_CHARS), index) + 1
        end = text.find("\n", index, index + _MAX_LINE_CHARS)
        line = text[start : end if end >= 0 else index + _MAX_LINE_CHARS]
        if match := _LINE.fullmatch(line):
            return int(match[1])
    return None
