"""docs/scoring.md: variables, ranges and functions as in the code, and valid examples."""

import pathlib
import re

from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from agentmemory_operator.spec.expression.typing import ARITIES, check_expression
from agentmemory_operator.spec.expression.variables import NAMES, RANGES
from agentmemory_operator.spec.presets import CORTEX

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scoring.md").read_text()
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*\|$", PAGE, re.M)}


def test_variables_and_functions_are_explained_with_their_range() -> None:
    assert set(NAMES) <= ROWS.keys()
    assert [name for name, span in RANGES.items() if f"{span.low:g} to {span.high:g}" not in ROWS[name]] == []
    assert [name for name in ARITIES if not re.search(rf"^\|.*`{name}\(.*\|$", PAGE, re.M)] == []


def test_expression_on_the_page_is_accepted() -> None:
    text = re.search(r'^  expression: "(.*)"$', PAGE, re.M)

    assert text
    assert check_expression(text[1].replace('\\"', '"'), CORTEX.types, "Cosine")


def test_the_example_is_accepted() -> None:
    assert check_manifests([ROOT / "examples" / "scoring" / "expression.yaml"], is_recursive=False).findings == []
