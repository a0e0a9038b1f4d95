"""What is counted, on a clock that only moves when told."""

import pytest

from agentmemory_operator.errors import StoreUnavailable, TransientError
from agentmemory_operator.ports import Json
from agentmemory_operator.services.metering import OperatorMeter, call_counter
from agentmemory_operator.services.metrics import Histogram, render
from agentmemory_operator.services.objects import Key, ObjectTable, key_of
from agentmemory_operator.services.workqueue import WorkQueue
from tests.support.fakes import connection_document, memory_document


class Scene:
    """A meter over a table, with passes that leave a condition behind."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.table = ObjectTable()
        self.meter = OperatorMeter(self.table, now_s=lambda: self.now_s)
        self.queue: WorkQueue[Key] = WorkQueue(self.run)
        self.leads = True
        self.metrics = self.meter.metrics(self.queue, lambda: self.leads)
        self.error: Exception | None = None

    def put(self, document: Json, **conditions: str) -> Key:
        """Put an object whose last pass left these conditions, each STATUS/Reason."""
        told = [
            {"type": kind, "status": has.split("/")[0], "reason": has.split("/")[1]} for kind, has in conditions.items()
        ]
        self.table.put(document | {"status": {"conditions": told}})
        return key_of(document)

    async def run(self, key: Key) -> float | None:
        self.now_s += 0.2
        if self.error:
            raise self.error
        return 300.0

    async def measure(self, key: Key) -> None:
        await self.meter.measure(key, self.run)

    def lines(self, start: str) -> list[str]:
        """Return the samples of a metric."""
        return [line for line in render(self.metrics).splitlines() if line.startswith(start)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"Ready": "True/Serving", "InSync": "True/Converged"}, "Converged"),
        ({"Ready": "True/Serving", "InSync": "False/Indexing"}, "Indexing"),
        ({"Ready": "False/InvalidSpec", "Stalled": "True/InvalidSpec"}, "InvalidSpec"),
        ({"Ready": "True/Serving", "InSync": "True/Converged", "Suspended": "True/Suspended"}, "Suspended"),
        ({}, "Failed"),
    ],
)
async def test_a_pass_is_counted_by_the_reason_it_left(scene: Scene, conditions: dict[str, str], reason: str) -> None:
    key = scene.put(memory_document(), **conditions)

    await scene.measure(key)

    assert scene.lines("agentmemory_reconciles_total") == [
        f'agentmemory_reconciles_total{{kind="AgentMemory",reason="{reason}"}} 1'
    ]
    assert scene.lines("agentmemory_reconcile_duration_seconds_count")[0].endswith(" 1")
    assert 'agentmemory_reconcile_duration_seconds_bucket{kind="AgentMemory",le="0.25"} 1' in render(scene.metrics)
    assert 'agentmemory_reconcile_duration_seconds_bucket{kind="AgentMemory",le="0.1"} 0' in render(scene.metrics)


async def test_a_pass_that_kubernetes_spoiled_is_no_outcome_of_the_object(scene: Scene) -> None:
    key = scene.put(memory_document(), Ready="True/Serving", InSync="True/Converged")
    scene.error = TransientError("Kubernetes cannot be reached")

    with pytest.raises(TransientError):
        await scene.measure(key)

    assert 'reason="Failed"' in scene.lines("agentmemory_reconciles_total")[0]


async def test_a_pass_over_a_server_that_is_away_is_counted_by_its_reason(scene: Scene) -> None:
    key = scene.put(memory_document(), Ready="False/QdrantUnavailable", Reconciling="True/QdrantUnavailable")
    scene.error = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await scene.measure(key)

    assert 'reason="QdrantUnavailable"' in scene.lines("agentmemory_reconciles_total")[0]


async def test_the_oldest_success_is_that_of_the_object_that_fails(scene: Scene) -> None:
    assert scene.lines("agentmemory_oldest_success") == ["agentmemory_oldest_success_seconds 0"]
    good = scene.put(memory_document("good"), Ready="True/Serving", InSync="True/Converged")
    bad = scene.put(memory_document("bad"), Ready="False/SlugTaken", Stalled="True/SlugTaken")
    scene.put(memory_document("asleep"), Ready="True/Serving", Suspended="True/Suspended")
    await scene.measure(bad)

    scene.now_s = 160.0
    await scene.measure(good)
    scene.now_s = 200.0

    assert scene.lines("agentmemory_oldest_success") == ["agentmemory_oldest_success_seconds 100"]
    scene.table.remove(bad)
    assert scene.lines("agentmemory_oldest_success") == ["agentmemory_oldest_success_seconds 39.8"]


def test_objects_are_counted_by_kind_and_ready_and_never_named(scene: Scene) -> None:
    scene.put(memory_document("one"), Ready="True/Serving")
    scene.put(memory_document("two"), Ready="True/Serving")
    scene.put(memory_document("new"))
    scene.put(connection_document(), Ready="False/QdrantTooOld")

    assert scene.lines("agentmemory_objects") == [
        'agentmemory_objects{kind="AgentMemory",ready="True"} 2',
        'agentmemory_objects{kind="AgentMemory",ready="Unknown"} 1',
        'agentmemory_objects{kind="QdrantConnection",ready="False"} 1',
    ]


def test_drift_is_summed_over_the_objects(scene: Scene) -> None:
    scene.table.put(memory_document("one") | {"status": {"drift": [{"path": "a"}, {"path": "b"}]}})
    scene.table.put(memory_document("two") | {"status": {"drift": [{"path": "a"}]}})

    assert scene.lines("agentmemory_drifted_fields") == ["agentmemory_drifted_fields 3"]


async def test_the_queue_and_the_lease_are_read_when_asked(scene: Scene) -> None:
    scene.queue.request(scene.put(memory_document()))
    scene.leads = False

    assert scene.lines("agentmemory_queue_length") == ["agentmemory_queue_length 1"]
    assert scene.lines("agentmemory_leader") == ["agentmemory_leader 0"]


def test_calls_are_counted_by_method_and_outcome() -> None:
    calls = call_counter()
    calls.add("GET", "2xx")
    calls.add("GET", "2xx")

    assert 'agentmemory_qdrant_calls_total{method="GET",outcome="2xx"} 2' in render([calls])


def test_a_histogram_counts_what_is_longer_than_its_last_bound() -> None:
    histogram = Histogram("h", "x", ())
    histogram.observe(100.0)
    histogram.observe(0.005)

    text = render([histogram])

    assert 'h_bucket{le="0.005"} 1\n' in text
    assert 'h_bucket{le="60.0"} 1\n' in text
    assert 'h_bucket{le="+Inf"} 2\nh_sum 100.005000\nh_count 2\n' in text


async def test_a_collection_that_a_pass_woke_is_counted_once(scene: Scene) -> None:
    key = scene.put(memory_document(), Ready="True/Serving")

    async def wake(key: Key) -> float | None:
        document = scene.table.get(key)
        assert document is not None
        document["status"] = {"collection": {"wokenAt": "2026-01-01T00:00:00Z"}}
        return 5.0

    await scene.meter.measure(key, wake)
    await scene.meter.measure(key, wake)

    assert scene.lines("agentmemory_collections_woken_total") == ["agentmemory_collections_woken_total 1"]
