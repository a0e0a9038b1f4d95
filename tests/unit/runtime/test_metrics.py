"""Operator metrics, on a fake clock."""

import pytest

from agentmemory_operator.errors import StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.metrics import LiveGauge, OperatorMeter, exported_metrics
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.runtime.work_queue import WorkQueue
from tests.support.metrics import collect_samples
from tests.support.spec.documents import connection_document, memory_document


class MeteredTable:
    """Meter over a table, with passes that set conditions."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.table = ObjectTable()
        self.meter = OperatorMeter(self.table, now_s=lambda: self.now_s)
        self.queue: WorkQueue[Key] = WorkQueue(self.run)
        self.leads = True
        self.metrics = self.meter.metrics(self.queue)
        self.error: Exception | None = None

    def put(self, document: Json, **conditions: str) -> Key:
        """Put an object whose last pass left these conditions, each STATUS/Reason."""
        entries = [
            {"type": kind, "status": has.split("/")[0], "reason": has.split("/")[1]} for kind, has in conditions.items()
        ]
        self.table.put(document | {"status": {"conditions": entries}})
        return key_of(document)

    async def run(self, key: Key) -> float | None:
        self.now_s += 0.2
        if self.error:
            raise self.error
        return 300.0

    async def measure(self, key: Key) -> None:
        await self.meter.measure(key, self.run)

    def samples(self, start: str) -> dict[str, float]:
        """Return the samples of the metrics whose names start with `start`."""
        samples = collect_samples(*exported_metrics(self.metrics, is_leading=self.leads))
        return {name: pytest.approx(value) for name, value in samples.items() if name.startswith(start)}


@pytest.fixture
def scene() -> MeteredTable:
    return MeteredTable()


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
async def test_pass_is_counted_by_reason(scene: MeteredTable, conditions: dict[str, str], reason: str) -> None:
    key = scene.put(memory_document(), **conditions)

    await scene.measure(key)

    assert scene.samples("agentmemory_reconciles_total") == {
        f'agentmemory_reconciles_total{{kind="AgentMemory",reason="{reason}"}}': 1
    }
    durations = scene.samples("agentmemory_reconcile_duration_seconds")
    assert durations['agentmemory_reconcile_duration_seconds_count{kind="AgentMemory"}'] == 1
    assert durations['agentmemory_reconcile_duration_seconds_bucket{kind="AgentMemory",le="0.25"}'] == 1
    assert durations['agentmemory_reconcile_duration_seconds_bucket{kind="AgentMemory",le="0.1"}'] == 0


async def test_kubernetes_error_counts_as_failed(scene: MeteredTable) -> None:
    key = scene.put(memory_document(), Ready="True/Serving", InSync="True/Converged")
    scene.error = TransientError("Kubernetes cannot be reached")

    with pytest.raises(TransientError):
        await scene.measure(key)

    assert [*scene.samples("agentmemory_reconciles_total")] == [
        'agentmemory_reconciles_total{kind="AgentMemory",reason="Failed"}'
    ]


async def test_qdrant_outage_is_counted_by_reason(scene: MeteredTable) -> None:
    key = scene.put(memory_document(), Ready="False/QdrantUnavailable", Reconciling="True/QdrantUnavailable")
    scene.error = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await scene.measure(key)

    assert [*scene.samples("agentmemory_reconciles_total")] == [
        'agentmemory_reconciles_total{kind="AgentMemory",reason="QdrantUnavailable"}'
    ]


async def test_oldest_success_is_that_of_failing_object(scene: MeteredTable) -> None:
    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 0}
    good = scene.put(memory_document("good"), Ready="True/Serving", InSync="True/Converged")
    bad = scene.put(memory_document("bad"), Ready="False/QdrantUnavailable", Reconciling="True/QdrantUnavailable")
    scene.put(memory_document("asleep"), Ready="True/Serving", Suspended="True/Suspended")
    await scene.measure(bad)

    scene.now_s = 160.0
    await scene.measure(good)
    scene.now_s = 200.0

    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 100}
    scene.table.remove(bad)
    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 39.8}


@pytest.mark.parametrize(
    ("kind", "reason", "seconds"),
    [
        ("Stalled", "InvalidSpec", 40),
        ("Stalled", "SlugTaken", 40),
        ("Stalled", "ConnectionNotFound", 40),
        ("Stalled", "ScoringRejected", 40),
        ("Stalled", "QdrantRejected", 100.4),
        ("Stalled", "TLSFailed", 100.4),
        ("Stalled", "ChangeIgnored", 100.4),
        ("Reconciling", "QdrantUnavailable", 100.4),
    ],
)
async def test_user_errors_count_as_success(scene: MeteredTable, kind: str, reason: str, seconds: float) -> None:
    key = scene.put(memory_document(), **{"Ready": f"False/{reason}", kind: f"True/{reason}"})
    await scene.measure(key)
    scene.now_s += 60
    await scene.measure(key)
    scene.now_s += 40

    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": seconds}


async def test_failed_pass_over_invalid_object_counts(scene: MeteredTable) -> None:
    key = scene.put(memory_document(), Ready="False/InvalidSpec", Stalled="True/InvalidSpec")
    await scene.measure(key)
    scene.error = TransientError("Kubernetes cannot be reached")
    scene.now_s += 500
    with pytest.raises(TransientError):
        await scene.measure(key)

    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 500.2}


def test_new_object_counts_from_first_scrape(scene: MeteredTable) -> None:
    scene.put(memory_document())
    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 0}

    scene.now_s += 1000

    assert scene.samples("agentmemory_oldest_success") == {"agentmemory_oldest_success_seconds": 1000}


def test_objects_are_counted_by_kind_and_readiness(scene: MeteredTable) -> None:
    scene.put(memory_document("one"), Ready="True/Serving")
    scene.put(memory_document("two"), Ready="True/Serving")
    scene.put(memory_document("new"))
    scene.put(connection_document(), Ready="False/QdrantTooOld")

    assert scene.samples("agentmemory_objects") == {
        'agentmemory_objects{kind="AgentMemory",ready="True"}': 2,
        'agentmemory_objects{kind="AgentMemory",ready="Unknown"}': 1,
        'agentmemory_objects{kind="QdrantConnection",ready="False"}': 1,
    }


def test_drift_is_summed_over_objects(scene: MeteredTable) -> None:
    scene.table.put(memory_document("one") | {"status": {"drift": [{"path": "a"}, {"path": "b"}]}})
    scene.table.put(memory_document("two") | {"status": {"drift": [{"path": "a"}]}})

    assert scene.samples("agentmemory_drifted_fields") == {"agentmemory_drifted_fields": 3}


async def test_queue_and_lease_are_read_on_scrape(scene: MeteredTable) -> None:
    scene.queue.request(scene.put(memory_document()))

    assert scene.samples("agentmemory_queue_length") == {"agentmemory_queue_length": 1}
    assert scene.samples("agentmemory_leader") == {"agentmemory_leader": 1}


async def test_standby_exports_no_object_gauges(scene: MeteredTable) -> None:
    key = scene.put(memory_document(), Ready="True/Serving", InSync="True/Converged")
    await scene.measure(key)
    scene.queue.request(key)
    names = {sample.partition("{")[0] for sample in scene.samples("agentmemory_")}
    scene.leads = False

    samples = scene.samples("agentmemory_")

    gauges = {metric.name for metric in scene.metrics if isinstance(metric, LiveGauge)}
    assert {"agentmemory_queue_length", "agentmemory_objects", "agentmemory_oldest_success_seconds"} <= gauges <= names
    assert {sample.partition("{")[0] for sample in samples} == names - gauges
    assert samples["agentmemory_leader"] == 0


async def test_woken_collection_is_counted_once(scene: MeteredTable) -> None:
    key = scene.put(memory_document(), Ready="True/Serving")

    async def wake(key: Key) -> float | None:
        document = scene.table.get(key)
        assert document is not None
        document["status"] = {"collection": {"wokenAt": "2026-01-01T00:00:00Z"}}
        return 5.0

    await scene.meter.measure(key, wake)
    await scene.meter.measure(key, wake)

    assert scene.samples("agentmemory_collections_woken_total") == {"agentmemory_collections_woken_total": 1}
