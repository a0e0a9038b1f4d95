"""docs/presets.md: the types of each preset, and the tests of the rows marked as working."""

import pathlib
import re

import pytest

from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn, SearchIn
from agentmemory_operator.entrypoints.api.memory_schemas import ItemStoredOut, MemoryOut
from agentmemory_operator.memories.rules.record import PAYLOAD_KEYS, TOMBSTONE_KEY
from agentmemory_operator.spec.presets import PRESETS
from tests.support.pages import DOCS
from tests.support.spec.golden import read_table

TESTS = pathlib.Path(__file__).parents[2]
PAGE = (DOCS / "presets.md").read_text()
FIGURES, ROWS = PAGE.split("\n## Row by row\n")
SECTIONS = {section.split("\n", 1)[0]: section for section in FIGURES.split("\n## ")[1:]}
# Tests of each row, by preset.
SHOWN = {(preset, row["row"]): row["tests"] for preset, rows in read_table("designs.yaml").items() for row in rows}
STATES = {"works", "differs", "not yet"}


def rows_of(preset: str) -> list[tuple[str, str]]:
    """Return the rows of a design: requirement and state."""
    section = ROWS.split(f"### Requirements of the design `{preset}`\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| asked for")]
    return [(cells[0].strip(), cells[2].strip()) for line in lines for cells in [line.strip("|").split("|")]]


def test_every_preset_has_a_section() -> None:
    assert set(SECTIONS) == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_section_names_every_type_of_its_preset(preset: str) -> None:
    named = set(re.findall(r"[`|] ?([a-z]+)`? ?", SECTIONS[preset]))

    assert {type_.name for type_ in PRESETS[preset][-1].types} <= named


def test_named_tests_exist() -> None:
    named = {name: name.split(": ") for names in SHOWN.values() for name in names}

    assert all(SHOWN.values())
    assert [test for test, (file, name) in named.items() if f"def {name}(" not in (TESTS / file).read_text()] == []


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset not in ("none", "standard")])
def test_working_rows_are_those_with_tests(preset: str) -> None:
    rows = rows_of(preset)

    assert {state for _, state in rows} <= STATES
    assert [row for row, state in rows if state == "works"] == [row for of, row in SHOWN if of == preset]
    assert len(rows) >= 10


def test_names_on_points_exist_in_the_code() -> None:
    lines = [line for line in PAGE.split("\n### Names on points\n")[1].splitlines() if line.startswith("| `")]
    keys = {key for line in lines for key in re.findall(r"`([a-zA-Z]+)`", line.strip("|").split("|")[2])}
    sent = {key for line in lines for key in re.findall(r"`([a-z_]+)`", line.strip("|").split("|")[3])}

    assert {line.split("`")[1] for line in lines} == {"cortex", "brain", "keyed", "cognitive", "importance"}
    known = {*PAYLOAD_KEYS.values(), TOMBSTONE_KEY, "ttl", "description"}
    assert keys <= known
    fields = {*MemoryOut.model_fields, *SearchIn.model_fields, *MemoryIn.model_fields, *ItemStoredOut.model_fields}
    assert sent <= fields | {"explain", "similarity", "score", "ttl"}
