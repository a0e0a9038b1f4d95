"""docs/conditions.md: every condition type, reason and event of a status."""

import pathlib
import re

import pytest

from agentmemory_operator.spec.kinds.conditions import TYPES, Reason

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator" / "agentmemory_operator"
PAGE = (ROOT / "docs" / "conditions.md").read_text()
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*\|$", PAGE, re.M)}
EVENTS = {
    name
    for names in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE.split("## Events")[1], re.M)
    for name in re.findall(r"\w+", names)
}
RAISED = re.compile(r'(?<![\w.])(?:SpecInvalid|NotOwned)\(\s*"([^"]*)"')


def documented_types() -> dict[str, set[str]]:
    """Return the types of conditions that the page lists, by kind."""
    kinds = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.split("## Reasons")[0], re.M))
    return {kind: {type_ for type_, on in kinds.items() if kind in on} for kind in TYPES}


def test_every_condition_type_is_listed_by_kind() -> None:
    assert documented_types() == {kind: set(types) for kind, types in TYPES.items()}


def test_code_sets_only_known_condition_types() -> None:
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))

    assert set(re.findall(r"State\(\s*\"(\w+)\"", source)) <= {type_ for types in TYPES.values() for type_ in types}


def rooms() -> list[pathlib.Path]:
    """Return the modules that raise reasons of a status."""
    others = {"adapters", "entrypoints", "main"}
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in others]


def literal_reasons() -> set[str]:
    """Return the reasons that these modules write as text in `SpecInvalid(...)` and `NotOwned(...)`."""
    return {reason for path in rooms() for reason in RAISED.findall(path.read_text())}


def test_every_reason_is_explained_with_remedy() -> None:
    cells = {reason: [cell.strip() for cell in ROWS[reason].strip("|").split("|")] for reason in Reason}

    assert [reason for reason, texts in cells.items() if len(texts) != 4 or not all(texts)] == []


def test_literal_reasons_are_known() -> None:
    assert literal_reasons() <= set(Reason)


def test_every_reason_is_used() -> None:
    used = literal_reasons() | {"SecretNotFound"}
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))

    unused = [reason for reason in Reason if reason not in used and f"Reason.{reason.name}" not in source]

    assert unused == []


@pytest.mark.parametrize(
    "reason", sorted({found for path in rooms() for found in re.findall(r'Event\("\w+", "(\w+)"', path.read_text())})
)
def test_every_event_is_explained(reason: str) -> None:
    assert reason in EVENTS | ROWS.keys()


def test_reasons_are_sorted() -> None:
    reasons = re.findall(r"^\| `(\w+)` \|", PAGE.split("\n## Reasons\n")[1].split("\n## Events\n")[0], re.M)

    assert reasons == sorted(set(reasons), key=str.lower)
