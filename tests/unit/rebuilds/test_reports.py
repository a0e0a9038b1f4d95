"""Explanation of a refused plan by the state of the rebuild."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.plan import Plan
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.runtime.object_table import ObjectTable, key_of
from agentmemory_operator.spec.kinds.conditions import Reason
from tests.support.engine.fakes import FakeClock, FakeCluster
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import observed_of

SHORT = Refusal(Reason.INSUFFICIENT_SPACE, "no room", (), digest="d1")
LIVE = observed_of(Collection(size=4, distance="Cosine"))


@pytest.mark.parametrize(
    ("rebuild", "reason"),
    [
        ({"state": "Running", "digest": "d1"}, Reason.REBUILD_RUNNING),
        ({"state": "Failed", "digest": "d1", "endTime": "2026-01-01T00:00:00Z"}, Reason.INSUFFICIENT_SPACE),
        ({"state": "Running", "digest": "d0"}, Reason.INSUFFICIENT_SPACE),
        ({}, Reason.INSUFFICIENT_SPACE),
    ],
)
def test_space_of_running_rebuild_is_no_shortage(rebuild: dict[str, str], reason: Reason) -> None:
    table, document = ObjectTable(), memory_document("a")
    table.put(document | {"status": {"rebuild": rebuild}})
    reports = RebuildReports(table, FakeCluster(), FakeClock())
    found = PassOutcome(LIVE, Plan(LIVE.physical, ()), SHORT, Plan(LIVE.physical, ()))

    refusal = reports.explain(key_of(document), found).refusal

    assert refusal is not None
    assert refusal.reason == reason
    assert replace(refusal, reason=SHORT.reason, message=SHORT.message) == SHORT
