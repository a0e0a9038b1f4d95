"""docs/connections.md: capabilities and numbers as in the code."""

import pathlib
import re

from agentmemory_operator.connections.probe import PROBE_TIMEOUT_S
from agentmemory_operator.connections.rules.capabilities import SINCE
from agentmemory_operator.controllers.connection_pass import MAX_PROBE_GROWTH
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.runtime.work_queue import LANE_WIDTH, TENANT_SHARE

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "connections.md").read_text()


def test_capability_table_matches_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+)\.(\d+) \|$", PAGE, re.M)

    assert {name: (int(major), int(minor)) for name, major, minor in rows} == SINCE


def test_numbers_match_the_code() -> None:
    periods, text = Periods(), " ".join(PAGE.split())

    assert f"every {periods.probe_s:.0f} s, and up to every {periods.probe_s * MAX_PROBE_GROWTH:.0f} s" in text
    assert (
        f"about {periods.reconnect_passes_per_s:.0f} a second,"
        f" {LANE_WIDTH} at a time for each namespace on a connection" in text
    )
    assert f"has {TENANT_SHARE} passes at a time" in text
    assert f"has {LANE_WIDTH}, all namespaces together {2 * LANE_WIDTH}" in text
    assert f"end after {PROBE_TIMEOUT_S:.0f} s" in text
