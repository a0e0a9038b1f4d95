"""`docs/operations.md` names what there is, and nothing else."""

import pathlib
import re
from typing import Any, cast

import typer
from typer.core import TyperGroup

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.kubernetes.cluster import WATCH_TIMEOUT_S
from agentmemory_operator.collections.rules.capacity import NEW_AGENTS, need_of
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.connections.capacity import Capacity
from agentmemory_operator.consolidation.meter import ConsolidationMeter
from agentmemory_operator.entrypoints.api.app import ALWAYS_READY, gauges_of
from agentmemory_operator.entrypoints.api.edge import STALE_HEADER, STALE_S
from agentmemory_operator.entrypoints.api.load.limits import Limits
from agentmemory_operator.entrypoints.api.load.pressure import Pressure
from agentmemory_operator.entrypoints.cli.commands import build_cli
from agentmemory_operator.entrypoints.cli.composition import Verbs
from agentmemory_operator.lifecycle.cleanup_schedule import CleaningMeter
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.rebuilds.budget import RebuildMeter
from agentmemory_operator.runtime.cache import Key, ObjectTable
from agentmemory_operator.runtime.metrics import FAILED, GONE, Counter, Metric, OperatorMeter, call_counter, told_by
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.runtime.queue import WorkQueue
from agentmemory_operator.snapshots.controller import SnapshotMeter
from agentmemory_operator.snapshots.retention import removed_counter
from agentmemory_operator.snapshots.schedule import ScheduleMeter
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.webhooks.deliver import WebhookMeter
from agentmemory_operator.zones.upkeep import trouble_gauge

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()


def test_the_table_of_what_a_server_carries_is_what_the_formula_gives() -> None:
    rows = re.findall(r"^\| (\d) segments?, (.*?) indexes \|(.*)\|$", PAGE, re.M)

    assert [row[0] for row in rows] == ["1", "2"]
    for segments, indexes, cells in rows:
        numbers = [int(number) for number in indexes.split(" / ")]
        maps = [need_of(shape(int(segments), number)).maps for number in numbers]
        told = [[int(number.replace(",", "")) for number in cell.split(" / ")] for cell in cells.split("|")]
        carried = [[int(NEW_AGENTS * limit / each) for each in maps] for limit in (65_530, 262_144, 1_048_576)]
        assert told[1:] == [maps, *carried]


def shape(segments: int, indexes: int) -> Collection:
    named = tuple((str(number), "keyword") for number in range(indexes))
    return Collection(size=8, distance="Dot", default_segment_number=segments, indexes=named)


def metrics() -> list[Metric]:
    async def run(_: Key) -> None:
        return None

    passes = told_by(OperatorMeter(ObjectTable()).metrics(WorkQueue(run)), is_leading=True)
    passes += Capacity().metrics
    snapshots = [*ScheduleMeter().metrics, *SnapshotMeter().metrics, removed_counter()]
    return [
        *passes,
        *CleaningMeter().metrics,
        *ConsolidationMeter().metrics,
        *WebhookMeter().metrics,
        trouble_gauge(dict),
        *snapshots,
        *RebuildMeter().metrics,
        call_counter(),
    ]


def api_metrics() -> list[Metric]:
    counts = AccessCounts(cast(Any, None), SystemClock(), writer="w")
    return [*ApiMeter().metrics(), *counts.metrics(), *gauges_of(Pressure(Limits()), ALWAYS_READY)]


def test_every_metric_is_explained_with_its_labels() -> None:
    rows = re.findall(r"^\| `(agentmemory_\w+)` \|([^|]*)\|[^|]+\|$", PAGE, re.M)

    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == {
        metric.name: metric.labels for metric in (*metrics(), *api_metrics())
    }


def test_the_outcomes_that_are_no_reason_are_explained() -> None:
    assert not {GONE, FAILED} & set(Reason)
    assert f"`{GONE}`" in PAGE
    assert f"`{FAILED}`" in PAGE


def test_every_option_of_the_operator_is_explained() -> None:
    cli = cast(TyperGroup, typer.main.get_command(build_cli(cast(Verbs, Anything()))))
    options = {name for option in cli.commands["operator"].params for name in option.opts}

    assert set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M)) == options


def test_the_warning_of_old_settings_is_named_with_its_age() -> None:
    assert f"for more than {STALE_S:.0f} s every answer under `/v1` carries `{STALE_HEADER}`" in " ".join(PAGE.split())
    assert f"every {WATCH_TIMEOUT_S} s" in PAGE
    assert WATCH_TIMEOUT_S < STALE_S


class Anything:
    """What the command line never calls here."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


def test_what_only_grows_is_a_counter_called_total_and_nothing_else_is() -> None:
    kinds = {metric.name: type(metric) for metric in (*metrics(), *api_metrics())}

    assert {name for name, kind in kinds.items() if kind is Counter} == {
        name for name in kinds if name.endswith("_total")
    }
