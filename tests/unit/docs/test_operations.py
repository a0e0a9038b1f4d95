"""docs/operations.md: metrics, options and server capacity as in the code."""

import pathlib
import re
from typing import Any, cast

import typer
from typer.core import TyperGroup

from agentmemory_operator.collections.rules.capacity import MAX_SHARE_NEW_AGENTS, need_of
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.entrypoints.cli.commands import build_cli
from agentmemory_operator.entrypoints.cli.composition import CommandDependencies
from agentmemory_operator.spec.presets.table import Optimizers
from tests.support.metrics import api_metrics, describe, operator_metrics

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
METRICS = describe(*operator_metrics(), *api_metrics())


def test_capacity_table_follows_the_formula() -> None:
    rows = re.findall(r"^\| (\d) segments?, (.*?) indexes \|(.*)\|$", PAGE, re.M)

    assert [row[0] for row in rows] == ["1", "2"]
    for segments, indexes, cells in rows:
        numbers = [int(number) for number in indexes.split(" / ")]
        maps = [need_of(shape(int(segments), number)).maps for number in numbers]
        shown = [[int(number.replace(",", "")) for number in cell.split(" / ")] for cell in cells.split("|")]
        carried = [
            [int(MAX_SHARE_NEW_AGENTS * limit / each) for each in maps] for limit in (65_530, 262_144, 1_048_576)
        ]
        assert shown[1:] == [maps, *carried]


def shape(segments: int, indexes: int) -> Collection:
    named = tuple((str(number), "keyword") for number in range(indexes))
    return Collection(size=8, distance="Dot", optimizers=Optimizers(default_segment_number=segments), indexes=named)


def test_every_metric_is_explained_with_its_labels() -> None:
    rows = re.findall(r"^\| `((?:agentmemory|process)_\w+)` \|([^|]*)\|[^|]+\|$", PAGE, re.M)

    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == {
        name: metric.labels for name, metric in METRICS.items()
    }


def test_every_option_of_the_operator_is_explained() -> None:
    cli = cast(TyperGroup, typer.main.get_command(build_cli(cast(CommandDependencies, Anything()))))
    options = {name for option in cli.commands["operator"].params for name in option.opts}

    assert set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M)) == options


class Anything:
    """Stand-in for dependencies that no test here calls."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


def test_only_counters_end_in_total() -> None:
    assert {name for name, metric in METRICS.items() if metric.kind == "counter"} == {
        name for name in METRICS if name.endswith("_total")
    }
