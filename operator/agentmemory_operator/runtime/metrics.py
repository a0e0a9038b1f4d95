"""Metrics for Prometheus, the meter of the operator's passes, and the tracer that does nothing.

`docs/operations.md` explains each metric. No label names an object.
"""

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.tracing import Span, SpanKind, Tracer
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition

Labels = tuple[str, ...]

# Histogram buckets, from a pass over an unchanged object to the creation of a collection on a busy server.
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Disable creation times, which the text format would export as separate metrics.
disable_created_metrics()
PROCESS = ProcessCollector(registry=None)


@dataclass(frozen=True, slots=True)
class LiveGauge(Collector):
    """Gauge whose values are read at each scrape.

    Attributes:
        read: Returns the values by label values.
    """

    name: str
    help: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge with its current values."""
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in sorted(self.read().items()):
            family.add_metric(labels, value)
        yield family


class MetricSet:
    """Base class of meters. `metrics` collects the counters and histograms that a meter creates."""

    def __init__(self) -> None:
        self.metrics: list[Collector] = []

    def add_counter(self, name: str, help_text: str, *labels: str) -> Counter:
        """Create a counter, append it to `metrics`, and return it. It is in no global registry."""
        counter = Counter(name, help_text, labels, registry=None)
        self.metrics.append(counter)
        return counter

    def add_histogram(self, name: str, help_text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        """Create a histogram with these upper bounds, append it to `metrics`, and return it."""
        histogram = Histogram(name, help_text, labels, buckets=buckets, registry=None)
        self.metrics.append(histogram)
        return histogram


def render(collectors: Sequence[Collector]) -> bytes:
    """Render the metrics of the collectors in Prometheus' text format."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


class _NoSpan:
    """Implements ports.Span without effect."""

    headers: Mapping[str, str] = {}

    def note(self, name: str, value: str | int) -> None:
        """Do nothing."""

    def fail(self, kind: str) -> None:
        """Do nothing."""


class _NoTracer:
    """Implements ports.Tracer without effect."""

    def __init__(self) -> None:
        self._span = nullcontext(_NoSpan())

    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Return a context with a span that does nothing."""
        return self._span

    async def close(self) -> None:
        """Do nothing."""


NO_TRACES: Tracer = _NoTracer()


GONE, FAILED = "Gone", "Failed"
# Condition types by precedence: the first that applies is the result of a pass.
_RESULT_TYPES = ("Suspended", "Stalled", "Reconciling", "Progressing", "InSync", "Succeeded")
# Condition types that are a result also when False.
_RESULT_TYPES_IF_FALSE = ("InSync", "Succeeded")
# Reasons of a pass that failed at the server, not at the object, so that an administrator has to act.
_SERVER_REASONS = (Reason.QDRANT_REJECTED, Reason.TLS_FAILED, Reason.CHANGE_IGNORED)


def call_counter() -> Counter:
    """Build the counter of calls to Qdrant by method and outcome: class of the status, such as 2xx, or unreachable."""
    return Counter("agentmemory_qdrant_calls_total", "Calls to Qdrant.", ("method", "outcome"), registry=None)


def exported_metrics(metrics: Sequence[Collector], *, is_leading: bool) -> list[Collector]:
    """Return the metrics that this process exports, leader or standby.

    Gauges over all objects are exported only by the leader: a standby's would be counted twice, or never change.
    Counters and histograms of its own work are always exported.
    """
    leader = LiveGauge("agentmemory_leader", "1 while this process is the leader.", (), lambda: {(): float(is_leading)})
    return [*(metric for metric in metrics if is_leading or not isinstance(metric, LiveGauge)), leader, PROCESS]


class OperatorMeter:
    """Counts and traces passes; reads gauges from the table and the queue at each scrape.

    Args:
        now_s: Monotonic clock.
    """

    def __init__(
        self, table: ObjectTable, *, tracer: Tracer = NO_TRACES, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._tracer = tracer
        self._now_s = now_s
        self._started_s: float | None = None
        self._successes: dict[Key, float] = {}
        self._durations = Histogram(
            "agentmemory_reconcile_duration_seconds",
            "Duration of passes in seconds.",
            ("kind",),
            buckets=DURATION_BUCKETS_S,
            registry=None,
        )
        self._passes = Counter(
            "agentmemory_reconciles_total", "Passes by kind and result.", ("kind", "reason"), registry=None
        )
        self._woken = Counter(
            "agentmemory_collections_woken_total", "Grey collections whose optimizers were woken.", registry=None
        )

    async def measure(self, key: Key, run: Callable[[Key], Awaitable[float | None]]) -> float | None:
        """Run a pass; count, time and trace it. Exceptions of `run` pass through.

        Returns:
            Result of `run`: seconds until the next pass, or None.
        """
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
            delay_s = await run(key)
            reason = self._record_result(key)
            if self._woken_at(key) not in (None, woken_at):
                self._woken.inc()
            return delay_s
        except StoreUnavailable:
            reason = self._record_result(key)
            raise
        finally:
            self._durations.labels(key.kind).observe(self._now_s() - started_s)
            self._passes.labels(key.kind, reason).inc()
            span.note("agentmemory.reason", reason)

    def metrics(self, queue: WorkQueue[Key]) -> list[Collector]:
        """Return the metrics of passes, and the gauges of all objects and of the length of `queue`."""
        return [
            self._durations,
            self._passes,
            self._woken,
            LiveGauge("agentmemory_queue_length", "Objects waiting for a pass.", (), lambda: {(): queue.length}),
            LiveGauge("agentmemory_objects", "Objects by kind and condition Ready.", ("kind", "ready"), self._objects),
            LiveGauge("agentmemory_drifted_fields", "Fields in status.drift of all objects.", (), self._drift),
            LiveGauge(
                "agentmemory_oldest_success_seconds",
                "Seconds since the last successful pass, of the object with the oldest one.",
                (),
                lambda: {(): self._oldest_s()},
            ),
        ]

    def _record_result(self, key: Key) -> str:
        """Return the reason label of a pass. Record its time, unless it must be retried or failed at the server."""
        document = self._table.get(key)
        if document is None:
            self._successes.pop(key, None)
            return GONE
        condition = _result_condition(document)
        reason = condition.get("reason")
        if condition.get("type") != "Reconciling" and reason not in _SERVER_REASONS:
            self._successes[key] = self._now_s()
        # Use only known reasons as labels, because tenants can write statuses, and must not create time series.
        return str(reason) if reason in set(Reason) else FAILED

    def _woken_at(self, key: Key) -> str | None:
        status = (self._table.get(key) or {}).get("status") or {}
        woken_at: str | None = (status.get("collection") or {}).get("wokenAt")
        return woken_at

    def _objects(self) -> Mapping[Labels, float]:
        tally: Tally[Labels] = Tally()
        for kind in (AGENT_MEMORY, QDRANT_CONNECTION):
            for key in self._table.keys(kind):
                ready = find_condition((self._table.get(key) or {}).get("status"), "Ready")
                tally[kind, ready.get("status", "Unknown")] += 1
        return dict(tally)

    def _drift(self) -> Mapping[Labels, float]:
        documents = (self._table.get(key) or {} for key in self._table.keys(AGENT_MEMORY))
        return {(): float(sum(len((document.get("status") or {}).get("drift") or ()) for document in documents))}

    def _oldest_s(self) -> float:
        """Return the longest time since a successful pass, or since measuring started; skip suspended objects."""
        if self._started_s is None:
            self._started_s = self._now_s()
        started_s = self._started_s
        active = [key for key in self._table.keys(AGENT_MEMORY) if not self._is_suspended(key)]
        return max((self._now_s() - self._successes.get(key, started_s) for key in active), default=0.0)

    def _is_suspended(self, key: Key) -> bool:
        return find_condition((self._table.get(key) or {}).get("status"), "Suspended").get("status") == "True"


def _result_condition(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that describes the result of the last pass: Ready if no other does; empty without any."""
    for kind in _RESULT_TYPES:
        condition = find_condition(document.get("status"), kind)
        if condition and (condition["status"] == "True" or kind in _RESULT_TYPES_IF_FALSE):
            return condition
    return find_condition(document.get("status"), "Ready")
