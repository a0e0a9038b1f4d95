"""Each fault of the page has a test, and the tests of faults are on the page."""

import pathlib

import pytest

from tests.support.pages import NAMED_TESTS as NAMED
from tests.support.pages import names_in

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")]
FAULTS = [row.strip("|").split("|") for row in ROWS if not row.startswith("| fault |")]


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row[0].strip())
def test_every_fault_has_a_test(row: list[str]) -> None:
    named = NAMED.findall(row[-1])

    assert len(row) == 3
    assert named
    assert [name for path, name in named if name not in names_in(path)] == []


@pytest.mark.parametrize(
    "path", ["test_cluster_faults", "test_generated_specs", "test_operator_kills", "test_rebuild_faults"]
)
def test_every_test_of_a_fault_is_on_the_page(path: str) -> None:
    named = {name for row in FAULTS for _, name in NAMED.findall(row[-1])}

    assert names_in(f"tests/faults/{path}.py") - named == set()
