"""What is to be done about an agent's rebuilds, by what is there and what is wanted."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildRecord, RebuildStep, resume_at
from agentmemory_operator.rebuilds.rules.decision import Decision, RebuildWish, decide
from tests.support.spec.plans import observed_of

ONE, TWO, THREE = (f"agent_memory_a__{number}" for number in (1, 2, 3))
BEGUN = RebuildRecord(source=ONE, target=TWO, digest="d1", begun_ms=1, since_ms=1, step=RebuildStep.COPY)
OTHER = replace(BEGUN, target=THREE, digest="d0")
MOVED = replace(BEGUN, step=RebuildStep.DRAIN)
DONE = replace(BEGUN, step=RebuildStep.DONE)
TAKING = replace(BEGUN, source="agent_memory_a", step=RebuildStep.MOVE)
GOING = replace(TAKING, gone_ms=2)
BACK = RebuildRecord(
    kind=RebuildKind.ROLLBACK, source=TWO, target=ONE, digest="d1", begun_ms=1, since_ms=1, step=RebuildStep.CATCH_UP
)


def live(physical: str, record: RebuildRecord | None = None) -> Observed:
    return observed_of(Collection(size=4, distance="Cosine"), physical=physical, record=record)


def plain() -> Observed:
    return replace(live("agent_memory_a"), is_aliased=False)


@pytest.mark.parametrize(
    ("there", "records", "wish", "decision"),
    [
        pytest.param(None, [BEGUN], RebuildWish(digest="d1"), Decision(), id="no collection, nothing is touched"),
        pytest.param(live(ONE), [], RebuildWish(), Decision(), id="nothing wanted, nothing there"),
        pytest.param(live(ONE), [], RebuildWish(digest="d1"), Decision(begins=RebuildKind.REBUILD), id="begun"),
        pytest.param(live(ONE), [BEGUN], RebuildWish(digest="d1"), Decision(going_on=BEGUN), id="gone on with"),
        pytest.param(live(ONE), [BEGUN], RebuildWish(), Decision(unwanted=(BEGUN,)), id="not wanted any more"),
        pytest.param(
            plain(), [TAKING], RebuildWish(), Decision(unwanted=(TAKING,)), id="a plain collection that stays"
        ),
        pytest.param(
            plain(),
            [GOING],
            RebuildWish(),
            Decision(going_on=GOING, is_urgent=True),
            id="a plain collection about to go",
        ),
        pytest.param(
            live(ONE),
            [OTHER, BEGUN],
            RebuildWish(digest="d1"),
            Decision(going_on=BEGUN, unwanted=(OTHER,)),
            id="one of an older plan goes",
        ),
        pytest.param(
            live(ONE),
            [OTHER],
            RebuildWish(digest="d1"),
            Decision(begins=RebuildKind.REBUILD, unwanted=(OTHER,)),
            id="begun anew",
        ),
        pytest.param(live(TWO, MOVED), [MOVED], RebuildWish(), Decision(going_on=MOVED), id="the move is behind it"),
        pytest.param(
            live(TWO, BEGUN),
            [BEGUN],
            RebuildWish(),
            Decision(going_on=BEGUN),
            id="moved, and killed before that was noted",
        ),
        pytest.param(live(TWO, DONE), [DONE], RebuildWish(), Decision(), id="ended"),
        pytest.param(
            live(TWO, DONE),
            [DONE],
            RebuildWish(rollback=TWO),
            Decision(begins=RebuildKind.ROLLBACK),
            id="to be taken back",
        ),
        pytest.param(
            live(TWO, DONE), [DONE, BACK], RebuildWish(rollback=TWO), Decision(going_on=BACK), id="being taken back"
        ),
        pytest.param(
            live(TWO, DONE), [DONE, BACK], RebuildWish(), Decision(unwanted=(BACK,)), id="not to be taken back"
        ),
        pytest.param(
            live(ONE),
            [],
            RebuildWish(rollback=ONE),
            Decision(begins=RebuildKind.ROLLBACK),
            id="nothing to take back: it says so",
        ),
        pytest.param(live(ONE), [DONE], RebuildWish(rollback=TWO), Decision(), id="taken back already"),
        pytest.param(
            live(THREE),
            [BEGUN],
            RebuildWish(digest="d1"),
            Decision(begins=RebuildKind.REBUILD, unwanted=(BEGUN,)),
            id="source moved",
        ),
    ],
)
def test_what_is_done_follows_from_what_is_there(
    there: Observed | None, records: list[RebuildRecord], wish: RebuildWish, decision: Decision
) -> None:
    assert decide(there, records, wish) == decision


def test_the_steps_after_a_move_begin_with_what_late_writers_left() -> None:
    assert resume_at(RebuildStep.COPY, is_moved=False) is RebuildStep.COPY
    assert resume_at(RebuildStep.MOVE, is_moved=True) is RebuildStep.DRAIN
    assert resume_at(RebuildStep.SETTLE, is_moved=True) is RebuildStep.SETTLE
