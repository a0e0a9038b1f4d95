"""Pass over a QdrantConnection: probe its server, and write the result into its status.

If the server responds again, or the status changed in more than its capacity, request passes over the AgentMemories
that use the connection.
"""

import math
import random
from dataclasses import dataclass

from agentmemory_operator.collections.rules.capacity import without_capacity
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.events import capacity_event
from agentmemory_operator.controllers.rules.status import connection_status
from agentmemory_operator.controllers.status_writer import StatusWriter
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.work_queue import MAX_RETRY_S, Request, jittered
from agentmemory_operator.spec.kinds.agent_memory import Metadata

# Probes of an unavailable server back off up to 3 times the period.
PROBE_GROWTH, MAX_PROBE_GROWTH = 1.5, 3.0


@dataclass(frozen=True, slots=True)
class ConnectionPasses:
    """Probes the server of a QdrantConnection, and writes the status of the object.

    Attributes:
        request: Requests a pass over another object.
        probe_s: Seconds between two probes of a connection that responds (`probe_growth`).
        reconnect_passes_per_s: Average number of passes per second over the objects of a connection that responds
            again.
    """

    table: ObjectTable
    connections: Connections
    cluster: Cluster
    request: Request
    writer: StatusWriter
    probe_s: float
    reconnect_passes_per_s: float

    async def run(self, key: Key, document: Json) -> float:
        """Do one pass; return the seconds until the next probe, which grow while the server is unavailable.

        Raises:
            TransientError: If Kubernetes failed, or this process may no longer write. Errors of Qdrant go into the
                status.
        """
        metadata = Metadata.model_validate(document["metadata"])
        old = document.get("status") or {}
        try:
            server, was_down = await self.connections.probe(document)
        except AgentMemoryError as exc:
            if await self.writer.write_failure(document, metadata, exc):
                self._request_users(key)
            requested_delay_s = min(exc.retry_after_s, MAX_RETRY_S) if isinstance(exc, TransientError) else 0.0
            return max(jittered(self.probe_s * probe_growth(self.connections.failures(key))), requested_delay_s)
        loads = await self.connections.loads(document)
        status = connection_status(server, loads, old=old, generation=metadata.generation, now=self.writer.statuses.now)
        if event := capacity_event(old, status):
            await self.cluster.post_event(QDRANT_CONNECTION, metadata, event)
        is_changed = without_capacity(status) != without_capacity(old)
        if (await self.writer.write(document, metadata, status) and is_changed) or was_down:
            self._request_users(key, per_s=self.reconnect_passes_per_s if was_down else math.inf)
        return jittered(self.probe_s)

    def _request_users(self, connection: Key, *, per_s: float = math.inf) -> None:
        """Request passes over the connection's AgentMemories: about `per_s` a second, or all now if it is infinite."""
        users = self.table.find_users(connection)
        for key in users:
            self.request(key, after_s=random.uniform(0.0, len(users) / per_s))


def probe_growth(failures: int) -> float:
    """Return the factor by which the probe period grows after that many failed probes in a row: 1 to 3."""
    # Limit the exponent, because a float power overflows at much larger exponents.
    return float(min(PROBE_GROWTH ** min(failures, 10), MAX_PROBE_GROWTH))
