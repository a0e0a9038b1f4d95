"""The page on connections says what the code does."""

import pathlib
import re

import yaml

from agentmemory_operator.domain.capabilities import SINCE
from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.services.passes import LARGEST_PROBE_GROWTH, Periods
from agentmemory_operator.services.workqueue import LANE_WIDTH

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "connections.md").read_text()


def test_its_manifests_are_valid() -> None:
    documents = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]

    assert [parse_connection(document).metadata.name for document in documents] == ["main"]


def test_its_table_of_capabilities_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+)\.(\d+) \|$", PAGE, re.M)

    assert {name: (int(major), int(minor)) for name, major, minor in rows} == SINCE


def test_its_figures_are_the_codes() -> None:
    periods, text = Periods(), " ".join(PAGE.split())

    assert f"every {periods.probe_s:.0f} s, and up to every {periods.probe_s * LARGEST_PROBE_GROWTH:.0f} s" in text
    assert f"about {periods.returning_per_s:.0f} a second, {LANE_WIDTH} at a time for each connection" in text
