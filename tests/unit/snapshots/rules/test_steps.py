"""Status of a snapshot: its step, its result, and its files."""

from typing import Any

import pytest

from agentmemory_operator.errors import DeletionPending
from agentmemory_operator.snapshots.rules.final import build_final_manifest, final_name, find_fault
from agentmemory_operator.snapshots.rules.steps import (
    SnapshotStep,
    copied_files,
    failed_status,
    has_succeeded,
    is_ended,
    is_verified,
    read_failure,
    recorded_files,
    running_status,
    succeeded_status,
    unrecorded_files,
)
from agentmemory_operator.spec.kinds.conditions import ConditionState
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import memory_document

NOW = "2026-11-22T09:00:00Z"
GOOD = ConditionState("Verified", True, "Verified", "10 memories")
BAD = ConditionState("Verified", False, "CopyDiffers", "3 points are missing")
PHYSICAL = "agent_memory_bot__1"


def status_of(*places: str, file: str = "a", proof: ConditionState = GOOD) -> dict[str, Any]:
    locations = [{"type": place, "physical": PHYSICAL, "name": file} for place in places]
    return succeeded_status({"locations": locations, "sizeBytes": 7, "step": "Verify"}, proof, generation=1, now=NOW)


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {item["type"]: f"{item['status']}/{item['reason']}" for item in status["conditions"]}


def test_running_snapshot_shows_its_step() -> None:
    status = running_status({"step": SnapshotStep.COPY}, generation=1, now=NOW, detail="3 of 7 bytes")

    assert conditions(status) == {"Succeeded": "Unknown/Running", "Progressing": "True/Running"}
    assert status["progress"] == "copying the snapshot off the server: 3 of 7 bytes"
    assert not is_ended(status)


def test_completed_snapshot_shows_no_progress() -> None:
    status = status_of("Qdrant")

    assert conditions(status) == {"Succeeded": "True/SnapshotTaken", "Verified": "True/Verified"}
    assert {"step", "progress"}.isdisjoint(status)
    assert is_ended(status)
    assert has_succeeded(status)
    assert is_verified(status)


def test_failure_is_kept_during_and_after_cleanup() -> None:
    cleaning = running_status(
        {"step": SnapshotStep.CLEAN},
        generation=1,
        now=NOW,
        detail="3 points are missing",
        reason="CopyDiffers",
        proof=BAD,
    )
    status = failed_status(cleaning, *read_failure(cleaning), generation=1, now=NOW)

    assert conditions(status) == {"Succeeded": "False/CopyDiffers", "Verified": "False/CopyDiffers"}
    assert read_failure(status) == ("CopyDiffers", "3 points are missing")
    assert is_ended(status)
    assert not is_verified(status)


@pytest.mark.parametrize(
    ("places", "words"),
    [(("Qdrant",), "same disk"), (("Qdrant", "S3"), "off the server too"), (("S3",), "off the server")],
)
def test_message_names_the_location(places: tuple[str, ...], words: str) -> None:
    assert words in status_of(*places)["conditions"][0]["message"]


def test_recorded_and_copied_files_are_listed() -> None:
    statuses = [status_of("Qdrant", file="a"), status_of("Qdrant", "S3", file="b"), status_of("S3", file="c"), {}]

    assert recorded_files(statuses, PHYSICAL) == {"a", "b"}
    assert copied_files(statuses, PHYSICAL) == {"b"}
    assert recorded_files(statuses, "another") == set()


def test_incomplete_copy_does_not_count() -> None:
    status = running_status(status_of("Qdrant", "S3"), generation=1, now=NOW)

    assert copied_files([status], PHYSICAL) == set()


def test_unrecorded_files_are_newer_and_unnamed() -> None:
    files = [(30, "c"), (10, "old"), (20, "b"), (25, "another's")]

    assert unrecorded_files(files, newest_before_ms=10, named={"another's"}) == ["b", "c"]


class TestLastOne:
    @pytest.mark.parametrize("name", ["bot", "b" * 253])
    def test_name_contains_the_agent_and_fits(self, name: str) -> None:
        memory = parse_agent_memory(memory_document(name, metadata={"uid": "1234ABCD-rest"}, agent="bot"))

        made_name = final_name(memory.metadata)

        assert made_name.endswith("-final-1234abcd")
        assert len(made_name) <= 253
        assert build_final_manifest(memory)["metadata"]["name"] == made_name

    @pytest.mark.parametrize("document", [None, {}, {"status": running_status({}, generation=1, now=NOW)}])
    def test_unfinished_snapshot_is_awaited(self, document: dict[str, Any] | None) -> None:
        with pytest.raises(DeletionPending, match="MemorySnapshot last"):
            find_fault(document, "last")

    def test_only_verified_snapshot_is_accepted(self) -> None:
        unknown = ConditionState("Verified", None, "DeadlineExceeded", "not in time")

        assert find_fault({"status": status_of("Qdrant")}, "last") is None
        assert "DeadlineExceeded: not in time" in str(find_fault({"status": status_of(proof=unknown)}, "last"))
