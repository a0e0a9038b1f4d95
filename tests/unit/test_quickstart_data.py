"""Quickstart: manifests, history and questions are valid and consistent."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "quickstart"
KEYS = [
    "days_ago",
    "expires_in_days",
    "ref",
    "supersedes_ref",
    "user_id",
    "content",
    "type",
    "importance",
    "tags",
    "source",
    "session_id",
    "confidence",
    "metadata",
]

Row = dict[str, Any]

HISTORY: list[Row] = [json.loads(line) for line in (FOLDER / "history.ndjson").read_text("utf-8").splitlines()]
BY_REF: dict[str, Row] = {row["ref"]: row for row in HISTORY if "ref" in row}
SUPERSEDED = {row["supersedes_ref"] for row in HISTORY if "supersedes_ref" in row}
QUESTIONS_FILE: dict[str, Any] = tomllib.loads((FOLDER / "questions.toml").read_text("utf-8"))
QUESTIONS: list[Row] = QUESTIONS_FILE["questions"]
WEIGHT_CHANGES: list[Row] = QUESTIONS_FILE["weight_changes"]


def is_current(row: Row) -> bool:
    """Return whether a search may return the memory."""
    return row.get("ref") not in SUPERSEDED and row.get("expires_in_days", 1) > 0


def contents(user_id: str, *, current: bool) -> list[str]:
    """Return the texts of one user that a search may, or may not, return."""
    return [row["content"] for row in HISTORY if row["user_id"] == user_id and is_current(row) is current]


def names(rows: list[Row]) -> list[str]:
    """Return the names of the questions, for the test ids."""
    return [row["name"] for row in rows]


def test_lines_are_sorted_oldest_first() -> None:
    ages = [row["days_ago"] for row in HISTORY]

    assert ages == sorted(ages, reverse=True)


def test_fields_are_known_and_ordered() -> None:
    for row in HISTORY:
        assert list(row) == [key for key in KEYS if key in row], row["content"]


def test_refs_are_unique() -> None:
    assert len(BY_REF) == sum("ref" in row for row in HISTORY)


def test_superseding_line_follows_its_predecessor() -> None:
    """Both lines have the same user and type."""
    by_ref: dict[str, Row] = {}
    for row in HISTORY:
        if "supersedes_ref" in row:
            older = by_ref[row["supersedes_ref"]]
            assert (older["user_id"], older["type"]) == (row["user_id"], row["type"]), row["content"]
        if "ref" in row:
            by_ref[row["ref"]] = row


@pytest.mark.parametrize("question", QUESTIONS, ids=names(QUESTIONS))
def test_expected_answer_is_one_current_memory(question: Row) -> None:
    found = [text for text in contents(question["user_id"], current=True) if question["expect"] in text]

    assert len(found) == 1


@pytest.mark.parametrize("question", [row for row in QUESTIONS if "never" in row], ids=lambda row: row["name"])
def test_excluded_answer_is_superseded_or_expired(question: Row) -> None:
    user_id, never = question["user_id"], question["never"]

    assert any(never in text for text in contents(user_id, current=False))
    assert not any(never in text for text in contents(user_id, current=True))


@pytest.mark.parametrize("change", WEIGHT_CHANGES, ids=names(WEIGHT_CHANGES))
def test_weight_change_promotes_newer_memory(change: Row) -> None:
    own = [row for row in HISTORY if row["user_id"] == change["user_id"] and is_current(row)]
    [before] = [row for row in own if change["first_before"] in row["content"]]
    [after] = [row for row in own if change["first_after"] in row["content"]]

    assert before["days_ago"] > after["days_ago"] + 100


@pytest.mark.parametrize("name", sorted(QUESTIONS_FILE["weights"]))
def test_weights_sum_to_one(name: str) -> None:
    assert sum(QUESTIONS_FILE["weights"][name].values()) == pytest.approx(1, abs=1e-6)


def test_kubectl_applies_namespace_first() -> None:
    """Kubectl applies every .yaml, .yml and .json file of a folder, in the order of the names."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in {".yaml", ".yml", ".json"})
    kinds = [document["kind"] for path in files for document in yaml.safe_load_all(path.read_text("utf-8"))]

    assert kinds == ["Namespace", "QdrantConnection", "AgentMemory"]


def test_agent_matches_connection_and_questions() -> None:
    connection = yaml.safe_load((FOLDER / "10-connection.yaml").read_text("utf-8"))
    agent = yaml.safe_load((FOLDER / "20-support-bot.yaml").read_text("utf-8"))
    spec = agent["spec"]

    assert agent["metadata"]["namespace"] == connection["metadata"]["namespace"]
    assert spec["connectionRef"] == {"name": connection["metadata"]["name"]}
    assert spec["embedding"] == {"provider": "wordllama"}
    assert spec["scoring"]["weights"] == QUESTIONS_FILE["weights"]["balanced"]
