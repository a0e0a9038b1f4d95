"""Probe searches look as far as agents' own searches do."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.rebuilding import Record
from agentmemory_operator.ports import Json
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.recall_probing import RecallProbing
from agentmemory_operator.services.servers import Server
from tests.support.clocks import FakeClock
from tests.support.fakes import memory_document, observed_of
from tests.support.plans import desired_of

POINT = {"id": "a", "payload": {"userId": "ada", "content": "bees", "rev": 1}, "vector": [1.0]}


@dataclass
class Points:
    """Remembers what it was asked.

    Attributes:
        eligible: memories of the user.
    """

    eligible: int
    asked: list[Json] = field(default_factory=list)

    async def count(self, collection: str, filter_: Json, *, exact: bool = True) -> int:
        return self.eligible

    async def query_batch(self, collection: str, bodies: list[Json]) -> list[list[Json]]:
        self.asked += bodies
        return [[{"id": "a", "score": 1.0}] for _ in bodies]

    async def retrieve(self, collection: str, ids: list[str], *, keys: Any = None) -> list[Json]:
        return [{"id": "a", "payload": {"rev": 1}}]


@pytest.mark.parametrize(
    ("eligible", "limits", "params"),
    [
        (100, {}, {"exact": True}),
        # Five lists share the 3,000 candidates.
        (50_000, {}, {"hnsw_ef": 600}),
        (50_000, {"enabled": True, "search_max_hnsw_ef": 128}, {"hnsw_ef": 128}),
    ],
)
async def test_the_index_looks_as_far_as_for_all_candidates_of_a_search(
    eligible: int, limits: dict[str, Any], params: Json
) -> None:
    points, unused = Points(eligible), None
    live = observed_of(replace(desired_of(), strict_mode=tuple(sorted(limits.items()))))

    async def check() -> None:
        """Go on."""

    async def show(record: Record, message: str) -> None:
        """Nobody looks."""

    fake: Any = points
    none: Any = unused
    task = Task(
        memory=parse_agent_memory(memory_document("mine")),
        server=Server(Endpoint("http://q", None, 1), none, none, fake),
        source=live,
        desired=live.collection,
        record=Record(source="s", target="t", digest="d", begun_ms=0, since_ms=0),
        clock=FakeClock(),
        embedder=None,
        check=check,
        show=show,
    )

    recall = await RecallProbing(task, live, None).measure([POINT], {"a"})

    exact, approximate = points.asked[:2]
    assert exact["params"] == {"exact": True}
    assert {name: approximate["params"].get(name) for name in params} == params
    assert {body["limit"] for body in points.asked} == {20}
    assert (recall.probes, recall.neighbours, recall.index_after) == (1, 1.0, 1.0)
