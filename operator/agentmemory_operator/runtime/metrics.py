"""What is measured and traced: the forms that Prometheus reads, and what the operator counts.

`docs/operations.md` explains each metric. No label names an object.
"""

import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.tracing import Span, SpanKind, Tracer
from agentmemory_operator.runtime.cache import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.queue import WorkQueue
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of

Labels = tuple[str, ...]
Bounds = tuple[float, ...]

# From a pass over a converged object to the creation of a collection on a busy server.
SECONDS: Bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Counter:
    """A number that only grows, for each combination of labels; without labels it begins with 0."""

    name: str
    help: str
    labels: Labels
    values: dict[Labels, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.labels:
            # Who asks for its rate sees the first one too.
            self.values.setdefault((), 0)

    @property
    def total(self) -> int:
        """The sum over all labels."""
        return sum(self.values.values())

    def add(self, *labels: str, number: int = 1) -> None:
        """Count one, or a number at once."""
        self.values[labels] = self.values.get(labels, 0) + number

    def lines(self) -> Iterator[str]:
        """Yield the counter as text."""
        yield from _head(self.name, self.help, "counter")
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{_shown(self.labels, labels)} {value}"


@dataclass(slots=True)
class Gauge:
    """Numbers that are read when somebody asks."""

    name: str
    help: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]

    def lines(self) -> Iterator[str]:
        """Yield the gauge as text."""
        yield from _head(self.name, self.help, "gauge")
        for labels, value in sorted(self.read().items()):
            yield f"{self.name}{_shown(self.labels, labels)} {value:.15g}"


@dataclass(slots=True)
class Histogram:
    """How often something took how many seconds, or came to how many, for each combination of labels."""

    name: str
    help: str
    labels: Labels
    bounds: Bounds = SECONDS
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=dict)

    def observe(self, value: float, *labels: str) -> None:
        """Count one of this value."""
        self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))[bisect_left(self.bounds, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + value

    def lines(self) -> Iterator[str]:
        """Yield the histogram as text."""
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in sorted(self.counts.items()):
            below = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                below += count
                yield f"{self.name}_bucket{_shown((*self.labels, 'le'), (*labels, bound))} {below}"
            yield f"{self.name}_sum{_shown(self.labels, labels)} {self.sums[labels]:.6f}"
            yield f"{self.name}_count{_shown(self.labels, labels)} {below}"


Metric = Counter | Gauge | Histogram


def render(metrics: Sequence[Metric]) -> str:
    """All metrics as one text."""
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _head(name: str, help_: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _shown(names: Labels, values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _NoSpan:
    """Implements ports.Span; keeps nothing."""

    headers: Mapping[str, str] = {}

    def note(self, name: str, value: str | int) -> None:
        """Do nothing."""

    def fail(self, kind: str) -> None:
        """Do nothing."""


class _NoTracer:
    """Implements ports.Tracer; makes nothing."""

    def __init__(self) -> None:
        self._span = nullcontext(_NoSpan())

    def span(
        self, name: str, *, kind: SpanKind = "internal", parent: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Open nothing."""
        return self._span

    async def close(self) -> None:
        """Do nothing."""


NO_TRACES: Tracer = _NoTracer()


GONE, FAILED = "Gone", "Failed"
# Of several conditions that hold, the first of these says how a pass ended.
_TELLING = ("Suspended", "Stalled", "Reconciling", "Progressing", "InSync", "Succeeded")
# These tell by their being False too.
_SAYING = ("InSync", "Succeeded")
# For these a person has to look after a server: the operator did not get through.
_REFUSED = (Reason.QDRANT_REJECTED, Reason.TLS_FAILED, Reason.CHANGE_IGNORED)


def call_counter() -> Counter:
    """The counter of calls to Qdrant; outcome is 2xx, 4xx, 5xx or unreachable."""
    return Counter("agentmemory_qdrant_calls_total", "Calls to Qdrant.", ("method", "outcome"))


def told_by(metrics: Sequence[Metric], *, is_leading: bool) -> list[Metric]:
    """What this process tells.

    What is so of all objects (gauges) the leader alone knows: of a standby it would be counted twice, or never change.
    What a process did itself (counters, histograms) it goes on telling.
    """
    leader = Gauge("agentmemory_leader", "1 while this process is the leader.", (), lambda: {(): float(is_leading)})
    return [*(metric for metric in metrics if is_leading or not isinstance(metric, Gauge)), leader]


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
        self._durations = Histogram(
            "agentmemory_reconcile_duration_seconds", "Duration of passes in seconds.", ("kind",)
        )
        self._passes = Counter("agentmemory_reconciles_total", "Passes by kind and result.", ("kind", "reason"))
        self._woken = Counter(
            "agentmemory_collections_woken_total", "Grey collections whose optimizers were woken.", ()
        )

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

    def metrics(self, queue: WorkQueue[Key]) -> list[Metric]:
        """Everything that is counted."""
        return [
            self._durations,
            self._passes,
            self._woken,
            Gauge("agentmemory_queue_length", "Objects waiting for a pass.", (), lambda: {(): queue.length}),
            Gauge("agentmemory_objects", "Objects by kind and condition Ready.", ("kind", "ready"), self._objects),
            Gauge("agentmemory_drifted_fields", "Fields in status.drift of all objects.", (), self._drift),
            Gauge(
                "agentmemory_oldest_success_seconds",
                "Seconds since the last successful pass, of the object with the oldest one.",
                (),
                lambda: {(): self._oldest_s()},
            ),
        ]

    def _note(self, key: Key) -> str:
        """The outcome of a pass; remembers when one got through: to its end, or to a fault of the object's."""
        document = self._table.get(key)
        if document is None:
            self._successes.pop(key, None)
            return GONE
        condition = _telling(document)
        reason = condition.get("reason")
        if condition.get("type") != "Reconciling" and reason not in _REFUSED:
            self._successes[key] = self._now_s()
        # A label of ours: whoever writes statuses has no series of their own.
        return str(reason) if reason in set(Reason) else FAILED

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
        """The longest time since a pass got through, or since somebody first asked; suspended objects aside."""
        if self._started_s is None:
            self._started_s = self._now_s()
        first_s = self._started_s
        known = [key for key in self._table.keys(AGENT_MEMORY) if not self._is_suspended(key)]
        return max((self._now_s() - self._successes.get(key, first_s) for key in known), default=0.0)

    def _is_suspended(self, key: Key) -> bool:
        return condition_of((self._table.get(key) or {}).get("status"), "Suspended").get("status") == "True"


def _telling(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that says how the last pass ended."""
    for kind in _TELLING:
        condition = condition_of(document.get("status"), kind)
        if condition and (condition["status"] == "True" or kind in _SAYING):
            return condition
    return condition_of(document.get("status"), "Ready")
