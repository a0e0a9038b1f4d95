"""Each claim of the security page has a test, and each folder of hostile tests is on it."""

import pathlib
import re

import pytest

from tests.support.pages import DOCS, NAMED_TESTS, names_in

TEXT = (DOCS / "security.md").read_text()
SHOWN = TEXT.split("## What is shown\n")[1].split("\n## ")[0]
CLAIMS = [line.strip("|").split("|") for line in SHOWN.splitlines() if line.startswith("| ") and "| test |" not in line]
FILES = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)?`")
SECURITY = DOCS.parent / "tests" / "security"


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row[0].strip())
def test_every_claim_has_a_test(row: list[str]) -> None:
    _, tests = row

    assert FILES.findall(tests)
    assert [path for path in FILES.findall(tests) if not (DOCS.parent / path).is_file()] == []
    assert [name for path, name in NAMED_TESTS.findall(tests) if name not in names_in(path)] == []


def test_every_file_of_hostile_tests_is_on_the_page() -> None:
    named = set(FILES.findall(SHOWN))
    files = {str(path.relative_to(DOCS.parent)) for path in pathlib.Path(SECURITY).glob("test_*.py")}

    assert files - named == {"tests/security/test_development_identity.py"}, "of one's own machine"
