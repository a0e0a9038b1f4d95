"""What is next for a plain collection on its way behind an alias: the table, row by row."""

import pytest

from agentmemory_operator.domain.plain_moves import Next, Scene, awaits_alias, next_of
from agentmemory_operator.domain.rebuilding import REBUILD_KEY, Record, Step, record_to_json

ALIAS = "agent_memory_bot"
TARGET = f"{ALIAS}__1"
BEFORE = [Step.CREATE, Step.COPY, Step.CATCH_UP, Step.CONVERGE, Step.VERIFY]


def record_of(step: Step, source: str = ALIAS) -> Record:
    return Record(source=source, target=TARGET, digest="0", begun_ms=1, since_ms=1, step=step)


@pytest.mark.parametrize(
    ("has_plain", "leads_to", "step", "has_way_back", "then"),
    [
        (True, None, Step.MOVE, False, Next.KEEP),
        (True, None, Step.MOVE, True, Next.REPLACE),
        (False, None, Step.MOVE, True, Next.LINK),
        (False, TARGET, Step.MOVE, True, Next.DONE),
        (False, TARGET, Step.MOVE, False, Next.DONE),
        (False, None, Step.MOVE, False, Next.LINK),
        *((False, None, step, True, Next.LOST) for step in BEFORE),
        (False, f"{ALIAS}__7", Step.MOVE, True, Next.TAKEN),
    ],
)
def test_what_is_there_says_what_is_next(
    has_plain: bool, leads_to: str | None, step: Step, has_way_back: bool, then: Next
) -> None:
    scene = Scene(has_plain=has_plain, leads_to=leads_to, record=record_of(step), has_way_back=has_way_back)

    assert next_of(scene) is then


@pytest.mark.parametrize("step", list(Step))
def test_a_target_awaits_the_alias_while_it_is_moved_and_at_no_other_time(step: Step) -> None:
    metadata = {REBUILD_KEY: record_to_json(record_of(step))}

    assert awaits_alias(metadata, ALIAS) is (step is Step.MOVE)


@pytest.mark.parametrize(
    "metadata", [None, {}, {REBUILD_KEY: record_to_json(record_of(Step.MOVE, source=f"{ALIAS}__4"))}]
)
def test_another_collection_awaits_no_alias(metadata: dict[str, object] | None) -> None:
    assert not awaits_alias(metadata, ALIAS)
