"""Kubernetes Events: one Event object per distinct message about an object, with a count of its repetitions.

The name contains a hash of object, type, reason and message, so a restarted operator continues the count. The API
server deletes an Event an hour after its last update by default (`--event-ttl`).
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from agentmemory_operator.adapters.kubernetes.transport import MERGE_PATCH, KubernetesConflict, KubernetesTransport
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.runtime.rules.fair_shares import TokenBuckets
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, Metadata
from agentmemory_operator.spec.times import render_second

log = logging.getLogger(__name__)

COMPONENT = "agentmemory-operator"
MAX_MESSAGE_CHARS, MAX_NAME_CHARS = 1024, 200
# Rate limit per object, as in Kubernetes' own components: a burst of 25 events, then one in 5 minutes.
BURST, REFILL_S = 25, 300.0
MAX_COUNTS = 10_000


class KubernetesEvents:
    """Posts Events. An Event that cannot be posted is dropped, but counted.

    Args:
        transport: Transport to the API server.
        now_s: Returns the monotonic time in seconds.
    """

    def __init__(self, transport: KubernetesTransport, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._now_s = now_s
        self._allowances = TokenBuckets(BURST, REFILL_S)
        self._counts: dict[str, int] = {}
        self._dropped: Counter[str] = Counter()

    async def post(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Post an event about an object.

        If that fails, or is beyond the object's rate limit, only count it for the next equal event.
        """
        name = event_name(metadata, event)
        for counts in (self._counts, self._dropped):
            if len(counts) > MAX_COUNTS:
                del counts[next(iter(counts))]
        if not self._allowances.take(metadata.uid, self._now_s()):
            self._dropped[name] += 1
            log.info("event %s on %s/%s dropped: rate limit reached", event.reason, metadata.namespace, metadata.name)
            return
        times = self._dropped.pop(name, 0) + 1
        try:
            self._counts[name] = await self._write(_body(kind, metadata, event, name=name), times)
        except (TransientError, NotFound) as exc:
            self._dropped[name] += times
            log.warning("event %s on %s/%s dropped: %s", event.reason, metadata.namespace, metadata.name, exc)

    async def _write(self, body: Json, times: int) -> int:
        """Create the Event with count `times`, or increase its count by `times`; return the new count."""
        folder, name = f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body["metadata"]["name"]
        count = self._counts.get(name)
        if count is None:
            try:
                await self._transport.call("POST", folder, body | {"count": times})
            except KubernetesConflict:
                count = (await self._transport.call("GET", f"{folder}/{name}")).get("count") or 1
            else:
                return times
        patch = {"count": count + times, "lastTimestamp": body["lastTimestamp"]}
        try:
            await self._transport.call("PATCH", f"{folder}/{name}", patch, content_type=MERGE_PATCH)
        except NotFound:
            # Create the Event again, which the API server has deleted because of its age.
            await self._transport.call("POST", folder, body | {"count": times})
            return times
        return count + times


def event_name(metadata: Metadata, event: Event) -> str:
    """Return the name of the Event object: equal for equal type, reason and message about the same object."""
    identity = "\0".join((metadata.uid, event.type, event.reason, event.message))
    prefix = metadata.name[:MAX_NAME_CHARS].rstrip("-.")
    return f"{prefix}.{hashlib.sha256(identity.encode(errors='replace')).hexdigest()[:16]}"


def _body(kind: str, metadata: Metadata, event: Event, *, name: str) -> Json:
    now = render_second(time.time())
    return {
        "metadata": {"name": name, "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE_CHARS],
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
