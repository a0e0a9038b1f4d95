"""Each row of the pages on faults and on other operators, and each claim on security, has a test that shows it."""

import itertools
import re

import pytest

from tests.support.pages import DOCS, read_test_names
from tests.support.spec.golden import read_table

CLAIMS = read_table("claims.yaml")
SHOWN = {page: [entry for entries in sections.values() for entry in entries] for page, sections in CLAIMS.items()}
NOT_SHOWN = {"public image"}
"""Features of other operators that this one does not have yet."""


def stated(page: str) -> dict[str, list[str]]:
    """Return the first cells of a page's tables (of the security page: its claims), by section."""
    found = {}
    for section in re.split(r"^#+ ", (DOCS / f"{page}.md").read_text(), flags=re.M)[1:]:
        heading, text = section.split("\n", 1)
        found[heading] = bullets(text) if page == "security" else first_cells(text)
    return found


def first_cells(text: str) -> list[str]:
    lines = text.splitlines()
    rows = [line for line, below in itertools.pairwise([*lines, ""]) if line.startswith("| ") and below[:3] != "|--"]
    return [row.split("|")[1].strip() for row in rows]


def bullets(text: str) -> list[str]:
    items = re.findall(r"^- ((?:.+\n?)+?)(?=\n|- |\Z)", text, re.M)
    return [" ".join(item.split()).removesuffix(".") for item in items]


@pytest.mark.parametrize(("page", "section"), [(page, section) for page in CLAIMS for section in CLAIMS[page]])
def test_table_has_the_rows_of_the_page_in_order(page: str, section: str) -> None:
    assert [entry["row"] for entry in CLAIMS[page][section]] == stated(page)[section]


@pytest.mark.parametrize("page", SHOWN)
def test_named_tests_exist(page: str) -> None:
    named = {test: test.partition("::") for entry in SHOWN[page] for test in entry["tests"]}

    assert {entry["row"] for entry in SHOWN[page] if not entry["tests"]} == (
        NOT_SHOWN if page == "comparison" else set()
    )
    assert [test for test, (path, _, _) in named.items() if not (DOCS.parent / path).is_file()] == []
    assert [test for test, (path, _, name) in named.items() if name and name not in read_test_names(path)] == []


def shown_by(page: str) -> set[str]:
    return {test for entry in SHOWN[page] for test in entry["tests"]}


@pytest.mark.parametrize(
    "path", ["test_cluster_faults", "test_generated_specs", "test_operator_kills", "test_rebuild_faults"]
)
def test_every_fault_test_belongs_to_a_row(path: str) -> None:
    named = {test.partition("::")[2] for test in shown_by("faults")}

    assert read_test_names(f"tests/faults/{path}.py") - named == set()


def test_every_security_test_file_shows_a_claim() -> None:
    named = {test.partition("::")[0] for test in shown_by("security")}
    files = {str(path.relative_to(DOCS.parent)) for path in (DOCS.parent / "tests" / "security").glob("test_*.py")}

    assert files - named == {"tests/security/test_development_identity.py"}, "of one's own machine"
