"""docs/filters.md: the fields for filters, and a valid example."""

import json
import re

from agentmemory_operator.memories.rules.criteria import FIELDS
from agentmemory_operator.memories.rules.criteria_json import (
    OPERATORS,
    parse_filters,
)
from tests.support.pages import DOCS

PAGE = (DOCS / "filters.md").read_text()
ROWS = {name: re.findall(r"`(\w+)`", rest) for name, rest in re.findall(r"^\| `(\w+)` \| (`eq`,.*) \|$", PAGE, re.M)}


def test_each_field_is_listed_with_its_operators() -> None:
    assert {name: list(OPERATORS[field.kind]) for name, field in FIELDS.items()} == ROWS


def test_example_is_valid() -> None:
    example = json.loads(PAGE.split("```json\n")[1].split("```")[0])

    assert parse_filters(example["filters"]) is not None
