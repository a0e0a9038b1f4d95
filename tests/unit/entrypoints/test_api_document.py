"""docs/http-api.md lists what the code has."""

import pathlib
import re

from agentmemory_operator.entrypoints.api.problems import PROBLEMS

DOCUMENT = (pathlib.Path(__file__).parents[3] / "docs" / "http-api.md").read_text()


def test_every_kind_of_error_is_listed() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)

    assert rows == [(problem.name, str(problem.status), problem.title) for problem in PROBLEMS]
