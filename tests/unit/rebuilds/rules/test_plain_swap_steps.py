"""State of a plain collection that is moved behind an alias, by the record of its target."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.rebuild_record import (
    RebuildRecord,
    RebuildStep,
    record_from_json,
    record_to_json,
)
from agentmemory_operator.rebuilds.rules.plain_swap_steps import (
    awaits_alias,
    is_plain_deleted,
    with_way_back_as_source,
)

ALIAS = "agent_memory_bot"
TARGET, WAY_BACK = f"{ALIAS}__1", f"{ALIAS}__2"


def record_of(step: RebuildStep, source: str = ALIAS) -> RebuildRecord:
    return RebuildRecord(
        source=source, target=TARGET, digest="0", started_ms=1, since_ms=1, step=step, way_back=WAY_BACK
    )


@pytest.mark.parametrize("step", list(RebuildStep))
def test_target_awaits_alias_only_in_move_step(step: RebuildStep) -> None:
    assert awaits_alias(record_of(step), ALIAS) is (step is RebuildStep.MOVE)


@pytest.mark.parametrize("record", [None, record_of(RebuildStep.MOVE, source=f"{ALIAS}__4")])
def test_other_collection_awaits_no_alias(record: RebuildRecord | None) -> None:
    assert not awaits_alias(record, ALIAS)


def test_target_is_kept_once_plain_is_deleted() -> None:
    before = record_of(RebuildStep.MOVE)

    assert (is_plain_deleted(before, ALIAS), is_plain_deleted(replace(before, deleted_ms=2), ALIAS)) == (False, True)


def test_source_becomes_the_way_back() -> None:
    moved = with_way_back_as_source(replace(record_of(RebuildStep.MOVE), deleted_ms=100), ALIAS, 350)

    assert (moved.source, moved.pause_ms) == (WAY_BACK, 250)
    assert with_way_back_as_source(moved, ALIAS, 900) == moved


def test_measured_pause_is_kept() -> None:
    measured = replace(record_of(RebuildStep.MOVE), deleted_ms=100, pause_ms=7)

    assert with_way_back_as_source(measured, ALIAS, 350).pause_ms == 7


def test_way_back_is_recorded() -> None:
    record = record_of(RebuildStep.KEEP)

    assert record_from_json({"agentmemoryRebuild": record_to_json(record)}) == record
