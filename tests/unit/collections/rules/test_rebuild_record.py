"""Rebuild records in a collection's metadata."""

import pytest

from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    read_epoch_text,
    record_from_json,
    record_to_json,
)

RECORD = RebuildRecord(
    source="agent_memory_a__1", target="agent_memory_a__2", digest="0123456789ab", started_ms=5, since_ms=4, total=9
)


def test_record_round_trips() -> None:
    record = RebuildRecord(
        **{name: getattr(RECORD, name) for name in ("source", "target", "digest", "started_ms", "since_ms")},
        kind=RebuildKind.ROLLBACK,
        step=RebuildStep.DRAIN,
        cursor="0190c2a4-0000-7000-8000-000000000000",
        moved_ms=7,
    )
    assert record_from_json({REBUILD_KEY: record_to_json(record)}) == record
    assert record_from_json({REBUILD_KEY: record_to_json(RECORD)}) == RECORD


@pytest.mark.parametrize("value", [None, "x", {}, {"kind": "Rebuild", "step": "Fly"}, {"step": "Copy"}])
def test_invalid_record_is_none(value: object) -> None:
    assert record_from_json({REBUILD_KEY: value}) is None


def test_unknown_key_is_ignored() -> None:
    assert record_from_json({REBUILD_KEY: record_to_json(RECORD) | {"shine": 1}}) == RECORD


def test_epoch_text_names_target() -> None:
    assert read_epoch_text({REBUILD_KEY: record_to_json(RECORD)}) == "agent_memory_a__2"
    assert read_epoch_text({}) == "" == read_epoch_text(None)
