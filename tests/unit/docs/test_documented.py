"""What people can meet in a status is explained."""

import ast
import pathlib
import re

import pytest

from agentmemory_operator.domain.conditions import Reason

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator" / "agentmemory_operator"
PAGE = (ROOT / "docs" / "conditions.md").read_text()
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*\|$", PAGE, re.M)}
RAISED = {"SpecInvalid", "NotOwned"}


def literal_reasons(*folders: str) -> set[str]:
    """Return the reasons that the given layers write as text in `SpecInvalid(...)` and `NotOwned(...)`."""
    calls = [
        node
        for folder in folders
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args
    ]
    return {str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained_with_what_to_do(reason: Reason) -> None:
    cells = [cell.strip() for cell in ROWS[reason].strip("|").split("|")]

    assert len(cells) == 4
    assert all(cells)


def test_no_reason_is_explained_that_does_not_exist() -> None:
    table = PAGE.split("## Reasons")[1].split("## Events")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(Reason)


def test_every_reason_that_a_pass_can_meet_is_of_the_closed_set() -> None:
    assert literal_reasons("domain", "services") <= set(Reason)


def test_every_reason_is_used() -> None:
    used = literal_reasons("domain", "services") | {"SecretNotFound"}
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))

    unused = [reason for reason in Reason if reason not in used and f"Reason.{reason.name}" not in source]

    assert unused == []


@pytest.mark.parametrize(
    "reason",
    sorted(
        set(
            re.findall(
                r'Event\("\w+", "(\w+)"',
                "".join(
                    (PACKAGE / "services" / f"{name}.py").read_text()
                    for name in ("passes", "news", "release", "cleaning")
                ),
            )
        )
    ),
)
def test_every_event_is_explained(reason: str) -> None:
    assert reason in ROWS
