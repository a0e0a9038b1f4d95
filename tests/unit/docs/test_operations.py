"""`docs/operations.md` names what there is, and nothing else."""

import pathlib
import re
from typing import Any, cast

import typer
from typer.core import TyperGroup

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.kubernetes_cluster import WATCH_TIMEOUT_S
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.entrypoints.api.app import ALWAYS_READY, gauges_of
from agentmemory_operator.entrypoints.api.edge import STALE_HEADER, STALE_S
from agentmemory_operator.entrypoints.api.pressure import Limits, Pressure
from agentmemory_operator.entrypoints.cli import Verbs, build_cli
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.cleaning import CleaningMeter
from agentmemory_operator.services.metering import FAILED, GONE, OperatorMeter, call_counter
from agentmemory_operator.services.metrics import Metric
from agentmemory_operator.services.objects import Key, ObjectTable
from agentmemory_operator.services.rebuild_metering import RebuildMeter
from agentmemory_operator.services.retention import removed_counter
from agentmemory_operator.services.snapshot_metering import SnapshotMeter
from agentmemory_operator.services.snapshot_schedule import ScheduleMeter
from agentmemory_operator.services.workqueue import WorkQueue

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()


def metrics() -> list[Metric]:
    async def run(_: Key) -> None:
        return None

    passes = OperatorMeter(ObjectTable()).metrics(WorkQueue(run), lambda: True)
    snapshots = [*ScheduleMeter().metrics, *SnapshotMeter().metrics, removed_counter()]
    return [*passes, *CleaningMeter().metrics, *snapshots, *RebuildMeter().metrics, call_counter()]


def api_metrics() -> list[Metric]:
    counts = AccessCounts(cast(Any, None), SystemClock(), writer="w")
    return [*ApiMeter().metrics(counts), *gauges_of(Pressure(Limits()), ALWAYS_READY)]


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
        return None
