"""Conversion of a memory to the payload of a point and back."""

from typing import Any, ClassVar

import pytest

from agentmemory_operator.memories.rules.record import MemoryRecord, build_fast, payload_of, record_of, tombstone_of

RECORD = MemoryRecord(
    id="i",
    agent_id="a",
    user_id="u",
    type="fact",
    content="c",
    created_at=1,
    updated_at=2,
    tags=("x", "y"),
    metadata={"ticket": 7},
    supersedes_id="h",
)


def test_round_trip() -> None:
    assert record_of(payload_of(RECORD)) == RECORD


def test_absent_values_are_left_out() -> None:
    """A scoring formula fails on null."""

    assert None not in payload_of(RECORD).values()


def test_unknown_keys_are_ignored() -> None:
    assert record_of(payload_of(RECORD) | {"accessMarks": ["w:1"], "x": None}) == RECORD


def test_tombstone_has_no_content() -> None:
    tombstone = tombstone_of(payload_of(RECORD), 9)

    assert tombstone == {
        "id": "i",
        "agentId": "a",
        "userId": "u",
        "type": "fact",
        "supersedesId": "h",
        "rev": 2,
        "updatedAt": 9,
        "deletedAt": 9,
        "loggedAt": 9,
        "pending": True,
    }


class TestFilled:
    VALUES: ClassVar[dict[str, Any]] = {
        "user_id": "ada",
        "content": "c",
        "id": "1",
        "agent_id": "bot",
        "type": "fact",
        "created_at": 1,
    }

    def test_equals_the_constructor_result(self) -> None:
        values = self.VALUES | {"updated_at": 2, "tags": ("a",)}

        assert build_fast(MemoryRecord, values) == MemoryRecord(**values)
        assert build_fast(MemoryRecord, values).metadata is not build_fast(MemoryRecord, values).metadata

    @pytest.mark.parametrize("wrong", [{}, {"updated_at": 2, "colour": "red"}], ids=["missing", "unknown"])
    def test_rejects_what_the_constructor_rejects(self, wrong: dict[str, object]) -> None:
        with pytest.raises(TypeError):
            build_fast(MemoryRecord, self.VALUES | wrong)
