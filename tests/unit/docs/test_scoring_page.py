"""docs/scoring.md: variables, ranges and functions as in the code, and valid examples."""

import pathlib
import re

import pytest

from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from agentmemory_operator.spec.expression.typing import ARITIES, check_expression
from agentmemory_operator.spec.expression.variables import NAMES, RANGES
from agentmemory_operator.spec.presets import CORTEX

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scoring.md").read_text()
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*\|$", PAGE, re.M)}


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_is_explained(name: str) -> None:
    assert name in ROWS


@pytest.mark.parametrize("name", RANGES)
def test_range_is_that_of_the_expression_check(name: str) -> None:
    assert f"{RANGES[name].low:g} to {RANGES[name].high:g}" in ROWS[name]


@pytest.mark.parametrize("name", ARITIES)
def test_every_function_is_explained(name: str) -> None:
    assert re.search(rf"^\|.*`{name}\(.*\|$", PAGE, re.M)


def test_expression_on_the_page_is_accepted() -> None:
    text = re.search(r'^  expression: "(.*)"$', PAGE, re.M)

    assert text
    assert check_expression(text[1].replace('\\"', '"'), CORTEX.types, "Cosine")


def test_the_example_is_accepted() -> None:
    assert check_manifests([ROOT / "examples" / "scoring" / "expression.yaml"], is_recursive=False).findings == []
