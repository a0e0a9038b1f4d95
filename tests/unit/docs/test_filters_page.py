"""docs/filters.md: the fields for filters, and a valid example."""

import json
import re

import pytest

from agentmemory_operator.memories.rules.criteria import FIELDS
from agentmemory_operator.memories.rules.criteria_json import (
    OPERATORS,
    parse_filters,
)
from tests.support.pages import DOCS

PAGE = (DOCS / "filters.md").read_text()
ROWS = {name: re.findall(r"`(\w+)`", rest) for name, rest in re.findall(r"^\| `(\w+)` \| (`eq`,.*) \|$", PAGE, re.M)}


def test_listed_fields_are_the_existing_ones() -> None:
    assert ROWS.keys() == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_listed_with_its_operators(name: str) -> None:
    assert ROWS[name] == list(OPERATORS[FIELDS[name].kind])


def test_example_is_valid() -> None:
    example = json.loads(PAGE.split("```json\n")[1].split("```")[0])

    assert parse_filters(example["filters"]) is not None
