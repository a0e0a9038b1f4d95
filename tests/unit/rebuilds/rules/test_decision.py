"""Decisions about the rebuild of an agent, from its collections, records and request."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildRecord, RebuildStep, resume_step
from agentmemory_operator.rebuilds.rules.decision import RebuildDecision, RebuildRequest, decide
from tests.support.spec.plans import observed_of

ONE, TWO, THREE = (f"agent_memory_a__{number}" for number in (1, 2, 3))
BEGUN = RebuildRecord(source=ONE, target=TWO, digest="d1", started_ms=1, since_ms=1, step=RebuildStep.COPY)
OTHER = replace(BEGUN, target=THREE, digest="d0")
MOVED = replace(BEGUN, step=RebuildStep.DRAIN)
DONE = replace(BEGUN, step=RebuildStep.DONE)
REPLACING = replace(BEGUN, source="agent_memory_a", step=RebuildStep.MOVE)
DELETING = replace(REPLACING, deleted_ms=2)
BACK = RebuildRecord(
    kind=RebuildKind.ROLLBACK, source=TWO, target=ONE, digest="d1", started_ms=1, since_ms=1, step=RebuildStep.CATCH_UP
)


def live(physical: str, record: RebuildRecord | None = None) -> Observation:
    return observed_of(Collection(size=4, distance="Cosine"), physical=physical, record=record)


def plain() -> Observation:
    return replace(live("agent_memory_a"), is_aliased=False)


@pytest.mark.parametrize(
    ("there", "records", "wish", "decision"),
    [
        pytest.param(None, [BEGUN], RebuildRequest(digest="d1"), RebuildDecision(), id="no collection"),
        pytest.param(live(ONE), [], RebuildRequest(), RebuildDecision(), id="nothing requested"),
        pytest.param(
            live(ONE), [], RebuildRequest(digest="d1"), RebuildDecision(new_kind=RebuildKind.REBUILD), id="started"
        ),
        pytest.param(live(ONE), [BEGUN], RebuildRequest(digest="d1"), RebuildDecision(current=BEGUN), id="continued"),
        pytest.param(
            live(ONE), [BEGUN], RebuildRequest(), RebuildDecision(obsolete=(BEGUN,)), id="no longer requested"
        ),
        pytest.param(
            plain(),
            [REPLACING],
            RebuildRequest(),
            RebuildDecision(obsolete=(REPLACING,)),
            id="plain collection not yet deleted",
        ),
        pytest.param(
            plain(),
            [DELETING],
            RebuildRequest(),
            RebuildDecision(current=DELETING, is_urgent=True),
            id="plain collection being deleted",
        ),
        pytest.param(
            live(ONE),
            [OTHER, BEGUN],
            RebuildRequest(digest="d1"),
            RebuildDecision(current=BEGUN, obsolete=(OTHER,)),
            id="older plan is dropped",
        ),
        pytest.param(
            live(ONE),
            [OTHER],
            RebuildRequest(digest="d1"),
            RebuildDecision(new_kind=RebuildKind.REBUILD, obsolete=(OTHER,)),
            id="restarted",
        ),
        pytest.param(live(TWO, MOVED), [MOVED], RebuildRequest(), RebuildDecision(current=MOVED), id="alias moved"),
        pytest.param(
            live(TWO, BEGUN),
            [BEGUN],
            RebuildRequest(),
            RebuildDecision(current=BEGUN),
            id="killed after the move, before its record",
        ),
        pytest.param(live(TWO, DONE), [DONE], RebuildRequest(), RebuildDecision(), id="done"),
        pytest.param(
            live(TWO, DONE),
            [DONE],
            RebuildRequest(rollback=TWO),
            RebuildDecision(new_kind=RebuildKind.ROLLBACK),
            id="rollback requested",
        ),
        pytest.param(
            live(TWO, DONE),
            [DONE, BACK],
            RebuildRequest(rollback=TWO),
            RebuildDecision(current=BACK),
            id="rollback in progress",
        ),
        pytest.param(
            live(TWO, DONE),
            [DONE, BACK],
            RebuildRequest(),
            RebuildDecision(obsolete=(BACK,)),
            id="rollback no longer requested",
        ),
        pytest.param(
            live(ONE),
            [],
            RebuildRequest(rollback=ONE),
            RebuildDecision(new_kind=RebuildKind.ROLLBACK),
            id="nothing to roll back",
        ),
        pytest.param(live(ONE), [DONE], RebuildRequest(rollback=TWO), RebuildDecision(), id="rolled back already"),
        pytest.param(
            live(THREE),
            [BEGUN],
            RebuildRequest(digest="d1"),
            RebuildDecision(new_kind=RebuildKind.REBUILD, obsolete=(BEGUN,)),
            id="source moved",
        ),
    ],
)
def test_decision_follows_from_state(
    there: Observation | None, records: list[RebuildRecord], wish: RebuildRequest, decision: RebuildDecision
) -> None:
    assert decide(there, records, wish) == decision


def test_steps_after_a_move_start_with_drain() -> None:
    assert resume_step(RebuildStep.COPY, is_moved=False) is RebuildStep.COPY
    assert resume_step(RebuildStep.MOVE, is_moved=True) is RebuildStep.DRAIN
    assert resume_step(RebuildStep.SETTLE, is_moved=True) is RebuildStep.SETTLE
