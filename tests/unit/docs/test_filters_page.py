"""docs/filters.md lists what can be filtered on, and its example is one that is read."""

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


def test_no_other_fields_are_listed_than_there_are() -> None:
    assert ROWS.keys() == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_listed_with_its_operators(name: str) -> None:
    assert ROWS[name] == list(OPERATORS[FIELDS[name].kind])


def test_the_example_is_read() -> None:
    example = json.loads(PAGE.split("```json\n")[1].split("```")[0])

    assert parse_filters(example["filters"]) is not None
