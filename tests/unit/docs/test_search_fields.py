"""docs/http-api.md: the table of search fields has every field of the request, with its default and its bounds."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentmemory_operator.entrypoints.api.memory_requests import SearchIn
from tests.support.pages import DOCS

SECTION = (DOCS / "http-api.md").read_text().split("\n### The fields of a search\n")[1].split("\n## ")[0]
CELLS = {
    name: [cell.strip() for cell in rest.split("|")]
    for name, rest in re.findall(r"^\| `(\w+)` \|(.+)\|$", SECTION, re.M)
}
PROPERTIES = SearchIn.model_json_schema()["properties"]
BOUNDS = ("minimum", "maximum", "maxLength", "maxItems")
# Bounds that depend on the agent, or that the table describes in words.
IN_WORDS = {"vector": "the agent's dimensions", "threshold": "any float32", "fields": "fields of a memory"}

# The bounds of these fields are years, not lengths of the text.
TIMES = ("at_time", "reference_time")


def bounds_of(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the bounds and the allowed values of a field, as the table writes them."""
    for part in (schema, *schema.get("anyOf", [])):
        yield from (f"{part[name]:,g}" for name in BOUNDS if name in part)
        yield from (f"`{value}`" for value in part.get("enum", []))


def test_every_field_has_a_row() -> None:
    assert set(CELLS) == set(SearchIn.model_fields)
    assert {name: len(cells) for name, cells in CELLS.items() if len(cells) != 4} == {}


@pytest.mark.parametrize("name", [name for name in SearchIn.model_fields if name not in {*IN_WORDS, *TIMES}])
def test_row_has_the_bounds(name: str) -> None:
    bounds = list(bounds_of(PROPERTIES[name]))

    assert [
        bound for bound in bounds if not re.search(rf"(?<!\d)(?<!\d,){re.escape(bound)}(?!,?\d)", CELLS[name][2])
    ] == []


@pytest.mark.parametrize("name", SearchIn.model_fields)
def test_row_has_the_default(name: str) -> None:
    field = SearchIn.model_fields[name]
    if field.is_required():
        assert CELLS[name][1] == "required"
    elif isinstance(field.default, bool | str):
        assert CELLS[name][1].strip("`") == str(field.default).lower()


@pytest.mark.parametrize(("name", "words"), IN_WORDS.items())
def test_other_bounds_are_in_words(name: str, words: str) -> None:
    assert CELLS[name][2] == words
