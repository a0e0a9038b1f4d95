"""MCP's own test suite, where MCP_CONFORMANCE names its program, and the list of its results in docs/mcp.md."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.pages import DOCS
from tests.support.web.api_stack import Stack

EXPECTED_FAILURES = Path(__file__).parents[1] / "golden" / "mcp-conformance.yaml"
SUITE = os.environ.get("MCP_CONFORMANCE", "")


def results_of_page() -> dict[str, str]:
    """Return the result of each scenario on the page."""
    section = (DOCS / "mcp.md").read_text().split("## Conformance\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (pass|fail).*\|$", section, re.M)
    return {name: result for scenarios, result in rows for name in re.findall(r"`([a-z0-9-]+)`", scenarios)}


def test_page_lists_the_failures() -> None:
    failing = {name for name, result in results_of_page().items() if result == "fail"}

    assert failing == set(yaml.safe_load(EXPECTED_FAILURES.read_text())["server"])


@pytest.mark.skipif(not SUITE, reason='needs MCP_CONFORMANCE="npx @modelcontextprotocol/conformance@0.1.16", Node 22')
def test_suite_passes_but_for_the_list(stack: Stack, user: str, tmp_path: Path) -> None:
    url = f"{stack.api_url}/mcp?agent=words&user_id={user}"
    options = ("--url", url, "--expected-failures", str(EXPECTED_FAILURES))

    done = subprocess.run(
        [*shlex.split(SUITE), "server", *options],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert set(re.findall(r"^[✓✗] ([a-z0-9-]+):", done.stdout, re.M)) == results_of_page().keys()
