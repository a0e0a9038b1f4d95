"""Probe searches use the same limits as searches of the agent."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.probe import RecallMeasurement
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import desired_of, observed_of

POINT = {"id": "a", "payload": {"userId": "ada", "content": "bees", "rev": 1}, "vector": [1.0]}


@dataclass
class Points:
    """Records the queries.

    Attributes:
        eligible: Number of memories of the user.
    """

    eligible: int
    queries: list[Json] = field(default_factory=list)

    async def count(self, collection: str, filter_: Json, *, exact: bool = True) -> int:
        return self.eligible

    async def query_batch(self, collection: str, bodies: list[Json]) -> list[list[Json]]:
        self.queries += bodies
        return [[{"id": "a", "score": 1.0}] for _ in bodies]

    async def retrieve(self, collection: str, ids: list[str], **how: Any) -> list[Json]:
        return [{"id": "a", "payload": {"rev": 1}}]


@pytest.mark.parametrize(
    ("preset", "eligible", "limits", "params"),
    [
        ("cortex", 100, {}, {"exact": True}),
        # Five lists share the 1,500 candidates of effort Balanced.
        ("cortex", 50_000, {}, {"hnsw_ef": 300}),
        ("cortex", 50_000, {"enabled": True, "search_max_hnsw_ef": 128}, {"hnsw_ef": 128}),
        # The list beside the one by words.
        ("standard", 50_000, {}, {"hnsw_ef": 200}),
        ("standard", 1500, {}, {"exact": True}),
        ("standard", 1501, {}, {"hnsw_ef": 200}),
    ],
)
async def test_index_search_covers_all_candidates(
    preset: str, eligible: int, limits: dict[str, Any], params: Json
) -> None:
    points, unused = Points(eligible), None
    live = observed_of(replace(desired_of(), strict_mode=tuple(sorted(limits.items()))))

    async def check() -> None:
        """Never cancel."""

    async def show(record: RebuildRecord, message: str) -> None:
        """Ignore the progress."""

    fake: Any = points
    none: Any = unused
    task = RebuildRun(
        memory=parse_agent_memory(memory_document("mine", preset=preset)),
        server=Server(Endpoint("http://q", None, 1), none, none, fake),
        source=live,
        desired=live.collection,
        record=RebuildRecord(source="s", target="t", digest="d", started_ms=0, since_ms=0),
        clock=FakeClock(),
        embedder=None,
        check=check,
        report_progress=show,
    )

    recall = await RecallMeasurement(task, live, None).measure([POINT], {"a"})

    exact, approximate = points.queries[:2]
    assert exact["params"] == {"exact": True}
    assert {name: approximate["params"].get(name) for name in params} == params
    assert {body["limit"] for body in points.queries} == {20}
    assert (recall.probes, recall.neighbours, recall.index_after) == (1, 1.0, 1.0)
