"""What is to be done about an agent's rebuilds, by what is there and what is wanted."""

from dataclasses import replace

import pytest

from agentmemory_operator.domain.collection import Collection, Observed
from agentmemory_operator.domain.rebuild_decision import Decision, Wish, decide
from agentmemory_operator.domain.rebuilding import Kind, Record, Step, steps_from
from tests.support.fakes import observed_of

ONE, TWO, THREE = (f"agent_memory_a__{number}" for number in (1, 2, 3))
BEGUN = Record(source=ONE, target=TWO, digest="d1", begun_ms=1, since_ms=1, step=Step.COPY)
OTHER = replace(BEGUN, target=THREE, digest="d0")
MOVED = replace(BEGUN, step=Step.DRAIN)
DONE = replace(BEGUN, step=Step.DONE)
TAKING = replace(BEGUN, source="agent_memory_a", step=Step.MOVE)
GOING = replace(TAKING, gone_ms=2)
BACK = Record(kind=Kind.ROLLBACK, source=TWO, target=ONE, digest="d1", begun_ms=1, since_ms=1, step=Step.CATCH_UP)


def live(physical: str, record: Record | None = None) -> Observed:
    return observed_of(Collection(size=4, distance="Cosine"), physical=physical, record=record)


def plain() -> Observed:
    return replace(live("agent_memory_a"), is_aliased=False)


@pytest.mark.parametrize(
    ("there", "records", "wish", "decision"),
    [
        pytest.param(None, [BEGUN], Wish(digest="d1"), Decision(), id="no collection, nothing is touched"),
        pytest.param(live(ONE), [], Wish(), Decision(), id="nothing wanted, nothing there"),
        pytest.param(live(ONE), [], Wish(digest="d1"), Decision(begins=Kind.REBUILD), id="begun"),
        pytest.param(live(ONE), [BEGUN], Wish(digest="d1"), Decision(going_on=BEGUN), id="gone on with"),
        pytest.param(live(ONE), [BEGUN], Wish(), Decision(unwanted=(BEGUN,)), id="not wanted any more"),
        pytest.param(plain(), [TAKING], Wish(), Decision(unwanted=(TAKING,)), id="a plain collection that stays"),
        pytest.param(
            plain(), [GOING], Wish(), Decision(going_on=GOING, is_urgent=True), id="a plain collection about to go"
        ),
        pytest.param(
            live(ONE),
            [OTHER, BEGUN],
            Wish(digest="d1"),
            Decision(going_on=BEGUN, unwanted=(OTHER,)),
            id="one of an older plan goes",
        ),
        pytest.param(
            live(ONE), [OTHER], Wish(digest="d1"), Decision(begins=Kind.REBUILD, unwanted=(OTHER,)), id="begun anew"
        ),
        pytest.param(live(TWO, MOVED), [MOVED], Wish(), Decision(going_on=MOVED), id="the move is behind it"),
        pytest.param(
            live(TWO, BEGUN), [BEGUN], Wish(), Decision(going_on=BEGUN), id="moved, and killed before that was noted"
        ),
        pytest.param(live(TWO, DONE), [DONE], Wish(), Decision(), id="ended"),
        pytest.param(
            live(TWO, DONE), [DONE], Wish(rollback=TWO), Decision(begins=Kind.ROLLBACK), id="to be taken back"
        ),
        pytest.param(live(TWO, DONE), [DONE, BACK], Wish(rollback=TWO), Decision(going_on=BACK), id="being taken back"),
        pytest.param(live(TWO, DONE), [DONE, BACK], Wish(), Decision(unwanted=(BACK,)), id="not to be taken back"),
        pytest.param(
            live(ONE), [], Wish(rollback=ONE), Decision(begins=Kind.ROLLBACK), id="nothing to take back: it says so"
        ),
        pytest.param(live(ONE), [DONE], Wish(rollback=TWO), Decision(), id="taken back already"),
        pytest.param(
            live(THREE), [BEGUN], Wish(digest="d1"), Decision(begins=Kind.REBUILD, unwanted=(BEGUN,)), id="source moved"
        ),
    ],
)
def test_what_is_done_follows_from_what_is_there(
    there: Observed | None, records: list[Record], wish: Wish, decision: Decision
) -> None:
    assert decide(there, records, wish) == decision


def test_the_steps_after_a_move_begin_with_what_late_writers_left() -> None:
    assert steps_from(Step.COPY, is_moved=False)[0] is Step.COPY
    assert steps_from(Step.MOVE, is_moved=True) == (Step.DRAIN, Step.SETTLE)
    assert steps_from(Step.SETTLE, is_moved=True) == (Step.SETTLE,)
