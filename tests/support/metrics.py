"""All metrics of the operator and of the API, as in their documentation pages."""

from dataclasses import dataclass
from typing import Any, cast

from prometheus_client.metrics import Histogram, MetricWrapperBase
from prometheus_client.registry import Collector

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.connections.server_capacity import Capacity
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationMeter
from agentmemory_operator.entrypoints.api.app import ALWAYS_READY, build_gauges
from agentmemory_operator.entrypoints.api.load.overload import AdmissionControl
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.lifecycle.cleanup_schedule import CleanupMeter
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.rebuilds.budget import RebuildMeter
from agentmemory_operator.runtime.metrics import (
    PROCESS,
    LiveGauge,
    OperatorMeter,
    call_counter,
    exported_metrics,
    render,
)
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.snapshots.controller import SnapshotMeter
from agentmemory_operator.snapshots.retention import removed_counter
from agentmemory_operator.snapshots.schedule import ScheduleMeter
from agentmemory_operator.webhooks.deliver import WebhookMeter
from agentmemory_operator.zones.key_checks import trouble_gauge


def operator_metrics() -> list[Collector]:
    """Return the metrics of an operator that leads."""

    async def run(_: Key) -> None:
        return None

    passes = exported_metrics(OperatorMeter(ObjectTable()).metrics(WorkQueue(run)), is_leading=True)
    passes += Capacity().metrics
    snapshots = [*ScheduleMeter().metrics, *SnapshotMeter().metrics, removed_counter()]
    return [
        *passes,
        *CleanupMeter().metrics,
        *ConsolidationMeter().metrics,
        *WebhookMeter().metrics,
        trouble_gauge(dict),
        *snapshots,
        *RebuildMeter().metrics,
        call_counter(),
    ]


def api_metrics() -> list[Collector]:
    """Return the metrics of an API process."""
    counts = AccessCounts(cast(Any, None), SystemClock(), writer="w")
    return [*ApiMeter().metrics, *counts.metrics(), *build_gauges(AdmissionControl(Limits()), ALWAYS_READY), PROCESS]


def parse_samples(text: str) -> dict[str, float]:
    """Parse a scrape; return the value of each sample by name and labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def collect_samples(*collectors: Collector) -> dict[str, float]:
    """Return the samples of the collectors."""
    return parse_samples(render(collectors).decode())


@dataclass(frozen=True, slots=True)
class Description:
    """A metric in its documentation page."""

    kind: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


def describe(*collectors: Collector) -> dict[str, Description]:
    """Return the description of each metric by its name in a scrape."""
    found = {}
    for collector in collectors:
        labels = collector.labels if isinstance(collector, LiveGauge) else getattr(collector, "_labelnames", ())
        bounds = tuple(collector._kwargs["buckets"]) if isinstance(collector, Histogram) else ()
        for family in collector.describe() if isinstance(collector, MetricWrapperBase) else collector.collect():
            name = family.name + "_total" * (family.type == "counter")
            found[name] = Description(family.type, tuple(labels), family.documentation, bounds)
    return found
