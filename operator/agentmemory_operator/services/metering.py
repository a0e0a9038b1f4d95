"""What the operator counts; `docs/operations.md` explains each metric. No label names an object."""

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentmemory_operator.domain.conditions import condition_of
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.tracing import Span, Tracer
from agentmemory_operator.services.metrics import Counter, Gauge, Histogram, Labels, Metric
from agentmemory_operator.services.objects import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.services.tracing import NO_TRACES
from agentmemory_operator.services.workqueue import WorkQueue

GONE, FAILED = "Gone", "Failed"
# Of several conditions that hold, the first of these says how a pass ended.
_TELLING = ("Suspended", "Stalled", "Reconciling", "Progressing", "InSync", "Succeeded")
# These tell by their being False too.
_SAYING = ("InSync", "Succeeded")


def call_counter() -> Counter:
    """Return the counter of calls to Qdrant; outcome is 2xx, 4xx, 5xx or unreachable."""
    return Counter("agentmemory_qdrant_calls_total", "Calls to Qdrant.", ("method", "outcome"))


class OperatorMeter:
    """Counts passes, and reads table and queue when asked.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(
        self, table: ObjectTable, *, tracer: Tracer = NO_TRACES, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._tracer = tracer
        self._now_s = now_s
        self._started_s: float | None = None
        self._successes: dict[Key, float] = {}
        self._durations = Histogram("agentmemory_reconcile_duration_seconds", "Seconds a pass took.", ("kind",))
        self._passes = Counter("agentmemory_reconciles_total", "Passes by how they ended.", ("kind", "reason"))
        self._woken = Counter("agentmemory_collections_woken_total", "Grey collections that were woken.", ())

    async def measure(self, key: Key, run: Callable[[Key], Awaitable[float | None]]) -> float | None:
        """Run a pass; count and trace it by how it ended."""
        with self._tracer.span("reconcile") as span:
            span.note("agentmemory.kind", key.kind)
            span.note("k8s.namespace.name", key.namespace)
            span.note("agentmemory.name", key.name)
            return await self._measure(key, run, span)

    async def _measure(self, key: Key, run: Callable[[Key], Awaitable[float | None]], span: Span) -> float | None:
        started_s = self._now_s()
        if self._started_s is None:
            self._started_s = started_s
        reason, woken_at = FAILED, self._woken_at(key)
        try:
            due_s = await run(key)
            reason = self._note(key)
            if self._woken_at(key) not in (None, woken_at):
                self._woken.add()
            return due_s
        except StoreUnavailable:
            reason = self._note(key)
            raise
        finally:
            self._durations.observe(self._now_s() - started_s, key.kind)
            self._passes.add(key.kind, reason)
            span.note("agentmemory.reason", reason)

    def metrics(self, queue: WorkQueue[Key], is_leading: Callable[[], bool]) -> list[Metric]:
        """Return everything that is counted."""
        return [
            self._durations,
            self._passes,
            self._woken,
            Gauge("agentmemory_queue_length", "Objects that wait for a pass.", (), lambda: {(): queue.length}),
            Gauge("agentmemory_objects", "Objects by kind and Ready.", ("kind", "ready"), self._objects),
            Gauge("agentmemory_drifted_fields", "Fields in status.drift of all objects.", (), self._drift),
            Gauge(
                "agentmemory_oldest_success_seconds",
                "Seconds since the last pass without an error, of the object where it is longest.",
                (),
                lambda: {(): self._oldest_s()},
            ),
            Gauge("agentmemory_leader", "1 while this process runs passes.", (), lambda: {(): float(is_leading())}),
        ]

    def _note(self, key: Key) -> str:
        """Return how the pass ended, and remember when it ended well."""
        document = self._table.get(key)
        if document is None:
            self._successes.pop(key, None)
            return GONE
        condition = _telling(document)
        if condition.get("type") not in ("Stalled", "Reconciling"):
            self._successes[key] = self._now_s()
        return str(condition.get("reason", FAILED))

    def _woken_at(self, key: Key) -> str | None:
        status = (self._table.get(key) or {}).get("status") or {}
        woken_at: str | None = (status.get("collection") or {}).get("wokenAt")
        return woken_at

    def _objects(self) -> Mapping[Labels, float]:
        tally: Tally[Labels] = Tally()
        for kind in (AGENT_MEMORY, QDRANT_CONNECTION):
            for key in self._table.keys(kind):
                ready = condition_of((self._table.get(key) or {}).get("status"), "Ready")
                tally[kind, ready.get("status", "Unknown")] += 1
        return dict(tally)

    def _drift(self) -> Mapping[Labels, float]:
        documents = (self._table.get(key) or {} for key in self._table.keys(AGENT_MEMORY))
        return {(): float(sum(len((document.get("status") or {}).get("drift") or ()) for document in documents))}

    def _oldest_s(self) -> float:
        """Return the longest time since a success, or the first pass of this process; suspended objects aside."""
        first_s = self._started_s
        if first_s is None:
            return 0.0
        known = [key for key in self._table.keys(AGENT_MEMORY) if not self._is_suspended(key)]
        return max((self._now_s() - self._successes.get(key, first_s) for key in known), default=0.0)

    def _is_suspended(self, key: Key) -> bool:
        return condition_of((self._table.get(key) or {}).get("status"), "Suspended").get("status") == "True"


def _telling(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says how the last pass ended."""
    for kind in _TELLING:
        condition = condition_of(document.get("status"), kind)
        if condition and (condition["status"] == "True" or kind in _SAYING):
            return condition
    return condition_of(document.get("status"), "Ready")
