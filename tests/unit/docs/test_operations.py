"""`docs/operations.md` names what there is, and nothing else."""

import pathlib
import re
from typing import Any, cast

import typer
from typer.core import TyperGroup

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.entrypoints.cli import Verbs, build_cli
from agentmemory_operator.services.metering import FAILED, GONE, OperatorMeter, call_counter
from agentmemory_operator.services.metrics import Metric
from agentmemory_operator.services.objects import Key, ObjectTable
from agentmemory_operator.services.workqueue import WorkQueue

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()


def metrics() -> list[Metric]:
    async def run(_: Key) -> None:
        return None

    return [*OperatorMeter(ObjectTable()).metrics(WorkQueue(run), lambda: True), call_counter()]


def test_every_metric_is_explained_with_its_labels() -> None:
    rows = re.findall(r"^\| `(agentmemory_\w+)` \|([^|]*)\|[^|]+\|$", PAGE, re.M)

    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == {
        metric.name: metric.labels for metric in metrics()
    }


def test_the_outcomes_that_are_no_reason_are_explained() -> None:
    assert not {GONE, FAILED} & set(Reason)
    assert f"`{GONE}`" in PAGE
    assert f"`{FAILED}`" in PAGE


def test_every_option_of_the_operator_is_explained() -> None:
    cli = cast(TyperGroup, typer.main.get_command(build_cli(cast(Verbs, Anything()))))
    options = {name for option in cli.commands["operator"].params for name in option.opts}

    assert set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M)) == options


class Anything:
    """What the command line never calls here."""

    def __getattr__(self, name: str) -> Any:
        return None
