"""Passes over objects: their writes, next pass, and conditions for errors."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.agent_memory_pass import Passes
from agentmemory_operator.controllers.connection_pass import MAX_PROBE_GROWTH, PROBE_GROWTH, probe_growth
from agentmemory_operator.controllers.deletion import FINALIZER
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    NotFound,
    NotOwned,
    SecretMissing,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TlsVerificationFailed,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.runtime.work_queue import MAX_RETRY_S
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.status_agent_memory import AgentMemoryStatus
from agentmemory_operator.spec.kinds.status_connection import QdrantConnectionStatus
from agentmemory_operator.spec.presets import KEYED
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClock, FakeCluster, FakeSecrets
from tests.support.engine.passes import passes_over
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.plans import with_changes

PERIODS = Periods(converged_s=300, busy_s=5, stalled_s=30, probe_s=6, release_s=60)
FIRST = "agent_memory_probe__1"
DELETED_AT = "2026-11-18T00:00:00Z"


@dataclass(slots=True)
class Stage:
    """Passes over fakes. Status writes return to the table, like with a watch."""

    store: FakeCollectionStore = field(default_factory=FakeCollectionStore)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    secrets: FakeSecrets = field(default_factory=FakeSecrets)
    clock: FakeClock = field(default_factory=FakeClock)
    table: ObjectTable = field(default_factory=ObjectTable)
    requested: list[Key] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    passes: Passes = field(init=False)

    def __post_init__(self) -> None:
        connections = Connections(self.table, self.secrets, lambda endpoint: self.store)
        self.passes = passes_over(self.table, connections, self.cluster, self.clock, self.request, periods=PERIODS)

    def request(self, key: Key, *, after_s: float = 0.0) -> None:
        self.requested.append(key)
        self.delays.append(after_s)

    def put(self, *documents: Json) -> Key:
        """Put objects into the table; return the key of the last."""
        for document in documents:
            self.table.put(document)
        return key_of(documents[-1])

    async def run(self, key: Key) -> float | None:
        return await self.passes.run(key)

    def status(self, key: Key) -> Json:
        document = self.table.get(key)
        assert document is not None
        status: Json = document.get("status") or {}
        return status

    def short(self, key: Key) -> list[tuple[str, str, str]]:
        return [(entry["type"], entry["status"], entry["reason"]) for entry in self.status(key)["conditions"]]


@pytest.fixture
def stage() -> Stage:
    """Return a stage with the connection that objects refer to."""
    stage = Stage()
    stage.put(connection_document())
    return stage


READY = [("Ready", "True", "Serving"), ("InSync", "True", "Converged")]


async def test_first_pass_makes_object_ready(stage: Stage) -> None:
    key = stage.put(memory_document())

    due_s = await stage.run(key)

    assert stage.short(key) == READY
    assert 240 <= (due_s or 0) <= 360
    assert [event.reason for event in stage.cluster.events] == ["Applied"]
    assert "create collection agent_memory_probe__1" in stage.cluster.events[0].message


async def test_pass_over_converged_object_writes_nothing(stage: Stage) -> None:
    key = stage.put(memory_document(deletionPolicy="Retain"))
    await stage.run(key)
    writes, changes = stage.cluster.writes, list(stage.store.changes)
    stage.clock.move(days=1)

    await stage.run(key)

    assert (stage.cluster.writes, stage.store.changes) == (writes, changes)


async def test_spec_is_parsed_once_per_version(stage: Stage) -> None:
    key = stage.put(memory_document())
    before = stage.table.parse(stage.table.get(key) or {})

    await stage.run(key)
    stage.put({**(stage.table.get(key) or {})})
    await stage.run(key)

    after = stage.table.parse(stage.table.get(key) or {})
    assert after.spec is before.spec
    assert after.status == stage.status(key) != before.status


async def test_status_matches_schema(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    await stage.run(key_of(connection_document()))

    AgentMemoryStatus.model_validate(stage.status(key), by_alias=True, by_name=False)
    connection = stage.status(key_of(connection_document()))
    QdrantConnectionStatus.model_validate(connection, by_alias=True, by_name=False)


async def test_new_point_count_is_written_once(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.points["agent_memory_probe__1"] = 5

    await stage.run(key)
    await stage.run(key)

    assert [status["collection"]["points"] for _, _, status in stage.cluster.statuses] == [0, 5]


async def test_indexing_collection_is_read_again_soon(stage: Stage) -> None:
    stage.store.is_busy = True

    assert await stage.run(stage.put(memory_document())) == PERIODS.busy_s


async def create_drifted(stage: Stage, policy: str, **figures: Any) -> Key:
    """Create a converged object, then change its collection; return its key."""
    key = stage.put(memory_document(driftPolicy=policy))
    await stage.run(key)
    stage.cluster.events.clear()
    stage.store.collections[FIRST] = with_changes(stage.store.collections[FIRST], **figures)
    return key


async def test_reported_drift_posts_one_event_per_difference(stage: Stage) -> None:
    key = await create_drifted(stage, "Report", m=24)
    await stage.run(key)
    await stage.run(key)
    stage.store.collections[FIRST] = with_changes(stage.store.collections[FIRST], ef_construct=7)
    await stage.run(key)
    await stage.run(key)

    events = [(event.type, event.reason, event.message) for event in stage.cluster.events]
    assert [entry[:2] for entry in events] == [("Warning", "Drifted")] * 2
    assert "index.hnsw.m is 24, expected 16" in events[0][2]
    assert "efConstruct is 7" in events[1][2]
    assert "index.hnsw.m " not in events[1][2]
    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "Drifted")]


async def test_corrected_drift_posts_event_only(stage: Stage) -> None:
    key = await create_drifted(stage, "Correct", m=24)
    before = stage.status(key)

    await stage.run(key)
    await stage.run(key)

    events = [(event.type, event.reason, event.message) for event in stage.cluster.events]
    assert events == [("Normal", "DriftCorrected", "index.hnsw.m reset from 24 to 16")]
    assert stage.status(key) == before


async def test_ignored_drift_is_not_reported(stage: Stage) -> None:
    key = await create_drifted(stage, "Ignore", m=24)

    await stage.run(key)

    assert (stage.cluster.events, stage.short(key)) == ([], READY)
    assert stage.store.collections[FIRST].hnsw.m == 24


async def test_drift_needing_rebuild_awaits_approval(stage: Stage) -> None:
    key = await create_drifted(stage, "Correct", m=24, distance="Dot")
    stage.store.points[FIRST] = 1

    await stage.run(key)
    await stage.run(key)

    assert [event.reason for event in stage.cluster.events] == ["DriftCorrected", "AwaitingApproval"]
    assert stage.short(key)[1] == ("InSync", "False", "AwaitingApproval")
    assert [entry["path"] for entry in stage.status(key)["drift"]] == ["index.distance"]


async def test_grey_collection_posts_one_event_until_green(stage: Stage) -> None:
    """Only the first wake-up before the collection is green posts an event."""
    key = stage.put(memory_document())
    await stage.run(key)
    stage.cluster.events.clear()

    for state in ("grey", "grey", "yellow", "green"):
        stage.store.states[FIRST] = state
        await stage.run(key)
    assert [event.reason for event in stage.cluster.events] == ["OptimizersWoken"]
    stage.store.states[FIRST] = "grey"
    await stage.run(key)

    assert [event.reason for event in stage.cluster.events] == ["OptimizersWoken"] * 2
    assert stage.store.changes[3:] == ["WakeOptimizers"] * 3


async def test_red_collection_is_reported_and_polled_slowly(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.states[FIRST] = "red"

    assert await stage.run(key) == PERIODS.stalled_s
    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "CollectionRed")]


async def test_deleted_object_gets_no_further_pass(stage: Stage) -> None:
    assert await stage.run(Key("AgentMemory", "agents", "gone")) is None
    assert stage.cluster.writes == 0


async def test_withheld_plan_posts_one_event(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    status, stage.store.points[FIRST] = stage.status(key), 1
    key = stage.put(memory_document(metadata={"generation": 2}, index={"distance": "Dot"}) | {"status": status})

    await stage.run(key)
    await stage.run(key)

    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "AwaitingApproval")]
    assert [(event.type, event.reason) for event in stage.cluster.events] == [
        ("Normal", "Applied"),
        ("Warning", "AwaitingApproval"),
    ]


async def test_withheld_rebuild_has_costs_of_contents(stage: Stage) -> None:
    key = stage.put(memory_document(embedding={"provider": "openai"}))
    await stage.run(key)
    stage.store.points[FIRST], stage.store.lengths[FIRST] = 640, [400, 0]
    new_spec = {"embedding": {"provider": "openai", "model": "text-embedding-3-large"}}
    rebuild = {"embeddingPricePerMillionTokens": 10, "maxEmbeddingCallsPerHour": 5}
    stage.put(memory_document(metadata={"generation": 2}, **new_spec, rebuild=rebuild) | {"status": stage.status(key)})

    await stage.run(key)

    costs = stage.status(key)["plan"]["costs"]
    shown = {name: costs[name] for name in ("points", "embeddingCalls", "tokens", "price", "minutes")}
    assert shown == {"points": 640, "embeddingCalls": 10, "tokens": 32_000, "price": 0.32, "minutes": 120}


async def test_request_is_acknowledged_in_128_characters(stage: Stage) -> None:
    request = "x" * 10_000
    key = stage.put(memory_document(metadata={"annotations": {RECONCILE_REQUESTED_AT: request}}))
    await stage.run(key)
    assert stage.status(key)["lastHandledReconcileAt"] == request[:128]
    status, writes = stage.status(key), stage.cluster.writes

    stage.put(memory_document(metadata={"annotations": {RECONCILE_REQUESTED_AT: "again"}}) | {"status": status})
    await stage.run(key)
    await stage.run(key)

    assert stage.status(key) == status | {"lastHandledReconcileAt": "again"}
    assert stage.cluster.writes == writes + 1
    stage.put(memory_document() | {"status": stage.status(key)})
    await stage.run(key)
    assert "lastHandledReconcileAt" not in stage.status(key)


@pytest.mark.parametrize("spec", [{"suspend": True}, {"connectionRef": 5}, {"connectionRef": {"name": "none"}}])
async def test_failed_pass_acknowledges_request(stage: Stage, spec: dict[str, Any]) -> None:
    key = stage.put(memory_document(metadata={"annotations": {RECONCILE_REQUESTED_AT: "now"}}, **spec))

    with contextlib.suppress(AgentMemoryError):
        await stage.run(key)

    assert stage.status(key)["lastHandledReconcileAt"] == "now"


@pytest.mark.parametrize(
    ("spec", "preset"),
    [
        ({"suspend": True}, "cortex"),
        ({"connectionRef": {"name": "none"}, "preset": "brain", "agent": "other"}, "brain"),
        ({"preset": "brain", "scoring": 5}, "brain"),
        ({"preset": "brian"}, None),
        ({"preset": ["brain"]}, None),
    ],
)
async def test_agent_and_preset_are_shown_before_first_pass(
    stage: Stage, spec: dict[str, Any], preset: str | None
) -> None:
    """Both are shown even without a valid spec, a connection or a collection."""
    key = stage.put(memory_document(**spec))

    await stage.run(key)

    assert stage.status(key)["agent"] == spec.get("agent", "probe")
    assert stage.status(key).get("effective") == (preset and {"preset": preset})
    AgentMemoryStatus.model_validate(stage.status(key))


async def test_shown_preset_follows_spec_until_in_force(stage: Stage) -> None:
    key = stage.put(memory_document(preset="brain", suspend=True))
    await stage.run(key)
    stage.put(memory_document(preset="keyed", suspend=True) | {"status": stage.status(key)})
    await stage.run(key)
    assert stage.status(key)["effective"] == {"preset": "keyed"}

    stage.put(memory_document(preset="keyed") | {"status": stage.status(key)})
    await stage.run(key)
    in_force = stage.status(key)["effective"]
    stage.put(memory_document(preset="brain", suspend=True) | {"status": stage.status(key)})
    await stage.run(key)

    assert in_force["presetRevision"] == KEYED.revision
    assert stage.status(key)["effective"] == in_force


async def test_new_points_repeat_no_event_of_withheld_plan(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.points[FIRST] = 1
    stage.put(memory_document(index={"distance": "Dot"}) | {"status": stage.status(key)})
    await stage.run(key)
    stage.cluster.events.clear()

    stage.store.points[FIRST] = 50_000
    await stage.run(key)

    assert stage.status(key)["plan"]["costs"]["points"] == 50_000
    assert stage.cluster.events == []


async def test_rebuild_over_size_limit_is_refused(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.points[FIRST] = 5
    stage.passes.connections.max_rebuild_bytes = 1000
    spec = {"index": {"distance": "Dot"}, "changePolicy": "Apply"}
    stage.put(memory_document(**spec) | {"status": stage.status(key)})

    await stage.run(key)

    assert stage.short(key)[1] == ("InSync", "False", "InsufficientSpace")


async def test_invalid_spec_stalls_and_names_field(stage: Stage) -> None:
    key = stage.put(memory_document(scoring={"weights": {"similarity": 1, "recency": 1, "utility": 1}}))

    assert await stage.run(key) == PERIODS.stalled_s
    assert stage.short(key) == [("Ready", "False", "InvalidSpec"), ("Stalled", "True", "InvalidSpec")]
    assert "spec.scoring.weights" in stage.status(key)["conditions"][0]["message"]
    assert stage.store.calls == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"index": {"hnsw": {"m": 1}}}, "uses the last valid settings and the current spec.access"),
        ({"access": {"subjects": ["everybody"]}}, "spec.access is invalid too: until it is corrected, the API"),
    ],
)
async def test_invalid_spec_message_states_api_access(stage: Stage, spec: dict[str, Any], message: str) -> None:
    key = stage.put(memory_document(**spec))

    await stage.run(key)

    assert all(message in condition["message"] for condition in stage.status(key)["conditions"])
    assert message in stage.cluster.events[0].message


async def test_invalid_object_is_written_once(stage: Stage) -> None:
    key = stage.put(memory_document(index={"hnsw": {"m": 1}}))
    await stage.run(key)
    writes = stage.cluster.writes

    await stage.run(key)

    assert (writes, stage.cluster.writes) == (2, 2)


async def test_older_object_keeps_slug(stage: Stage) -> None:
    older = stage.put(memory_document("old", agent="bot"))
    younger = stage.put(memory_document("new", agent="bot", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"}))

    assert await stage.run(younger) == PERIODS.stalled_s
    await stage.run(older)

    assert stage.short(younger)[1] == ("Stalled", "True", "SlugTaken")
    assert "the older AgentMemory old" in stage.status(younger)["conditions"][0]["message"]
    assert stage.short(older) == READY


async def test_successor_does_not_inherit_collection(stage: Stage) -> None:
    older = stage.put(memory_document("old", agent="bot"))
    await stage.run(older)
    stage.table.remove(older)
    younger = stage.put(memory_document("new", agent="bot"))

    await stage.run(younger)

    assert stage.short(younger)[1] == ("Stalled", "True", "CollectionNotOwned")


async def run_takeover(stage: Stage, uid: str = "uid-old") -> Key:
    """Run a pass over an object whose takeover annotation has this uid; return its key."""
    older = stage.put(memory_document("old", agent="bot"))
    await stage.run(older)
    stage.table.remove(older)
    stage.store.points["agent_memory_bot__1"] = 3
    key = stage.put(memory_document("new", agent="bot", metadata={"annotations": {"agentmemory.dev/takeover": uid}}))
    await stage.run(key)
    return key


async def test_refused_object_shows_foreign_owner(stage: Stage) -> None:
    key = await run_takeover(stage, "uid-of-nobody")

    assert stage.short(key)[1] == ("Stalled", "True", "CollectionNotOwned")
    owner = {"clusterId": "cluster-1", "namespace": "agents", "name": "old", "uid": "uid-old"}
    assert stage.status(key)["foreignOwner"] == owner
    AgentMemoryStatus.model_validate(stage.status(key), by_alias=True, by_name=False)


async def test_takeover_annotation_transfers_collection(stage: Stage) -> None:
    key = await run_takeover(stage)

    assert stage.short(key) == READY
    assert "foreignOwner" not in stage.status(key)
    marker = stage.store.collections["agent_memory_bot__1"].marker
    assert marker is not None
    assert (marker.name, marker.uid) == ("new", "uid-new")
    assert stage.status(key)["collection"]["points"] == 3
    messages = {event.reason: event.message for event in stage.cluster.events}
    assert messages["CollectionTakenOver"] == "took over agent_memory_bot__1 from AgentMemory agents/old (uid uid-old)"


async def test_takeover_is_reported_once(stage: Stage) -> None:
    key = await run_takeover(stage)
    writes, changes = stage.cluster.writes, list(stage.store.changes)

    await stage.run(key)

    assert (stage.cluster.writes, stage.store.changes) == (writes, changes)


async def test_foreign_owner_is_cleared_with_refusal(stage: Stage) -> None:
    key = await run_takeover(stage, "uid-of-nobody")
    stage.store.error = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await stage.run(key)

    assert "foreignOwner" not in stage.status(key)


async def test_missing_connection_stalls_object(stage: Stage) -> None:
    key = stage.put(memory_document(connectionRef={"name": "none"}))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "ConnectionNotFound")
    assert "agents/none" in stage.status(key)["conditions"][0]["message"]


async def test_missing_secret_stalls_object(stage: Stage) -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}
    key = stage.put(memory_document(embedding=embedding))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "SecretNotFound")
    assert "agents/openai" in stage.status(key)["conditions"][0]["message"]
    assert stage.store.calls == []


async def test_created_secret_unstalls_object(stage: Stage) -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}
    key = stage.put(memory_document(embedding=embedding))
    await stage.run(key)
    stage.secrets.values = {("agents", "openai", "api-key"): "sk"}

    await stage.run(key)

    assert stage.short(key) == READY


async def test_unavailable_server_makes_object_not_ready(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.error = StoreUnavailable("Qdrant cannot be reached: refused")

    with pytest.raises(StoreUnavailable):
        await stage.run(key)

    assert stage.short(key) == [("Ready", "False", "QdrantUnavailable"), ("Reconciling", "True", "QdrantUnavailable")]
    assert stage.status(key)["collection"]["physical"] == "agent_memory_probe__1"
    stage.store.error = None
    await stage.run(key)
    assert stage.short(key) == READY


async def test_kubernetes_errors_leave_status_unchanged(stage: Stage) -> None:
    key = stage.put(memory_document(deletionPolicy="Delete"))
    stage.cluster.error = TransientError("Kubernetes answered 409 Conflict")

    with pytest.raises(TransientError, match="409"):
        await stage.run(key)

    assert stage.status(key) == {}


@pytest.mark.parametrize(
    ("error", "reason", "is_stalled"),
    [
        (SpecInvalid("InvalidSpec", "m"), Reason.INVALID_SPEC, True),
        (SpecInvalid("CollectionLost", "m"), Reason.COLLECTION_LOST, True),
        (SpecInvalid("ChangeIgnored", "m"), Reason.CHANGE_IGNORED, True),
        (SpecInvalid("QdrantTooOld", "m"), Reason.QDRANT_TOO_OLD, True),
        (SpecInvalid("ConnectionNotFound", "m"), Reason.CONNECTION_NOT_FOUND, True),
        (SecretMissing("n", "s", "k"), Reason.SECRET_NOT_FOUND, True),
        (NotOwned("SlugTaken", "m"), Reason.SLUG_TAKEN, True),
        (NotOwned("CollectionNotOwned", "m"), Reason.COLLECTION_NOT_OWNED, True),
        (StoreRejected(401, "m"), Reason.QDRANT_REJECTED, True),
        (TlsVerificationFailed("m"), Reason.TLS_FAILED, True),
        (StoreUnavailable("m"), Reason.QDRANT_UNAVAILABLE, False),
        (NotFound("m"), Reason.QDRANT_UNAVAILABLE, False),
    ],
)
def test_error_has_reason(error: AgentMemoryError, reason: Reason, is_stalled: bool) -> None:
    assert reason_of(error) == (reason, is_stalled)


@pytest.mark.parametrize(
    ("policy", "finalizers", "written"),
    [
        ("Delete", [], [FINALIZER]),
        ("Delete", ["other/one"], ["other/one", FINALIZER]),
        ("Delete", [FINALIZER], None),
        ("Delete", [FINALIZER, "other/one"], None),
        ("Retain", [], None),
        ("Retain", ["other/one"], None),
        ("Retain", ["other/one", FINALIZER], ["other/one"]),
    ],
)
async def test_finalizer_follows_deletion_policy(
    stage: Stage, policy: str, finalizers: list[str], written: list[str] | None
) -> None:
    key = stage.put(memory_document(metadata={"finalizers": finalizers}, deletionPolicy=policy))

    await stage.run(key)

    assert stage.cluster.finalizers == ([("probe", written)] if written is not None else [])


async def test_finalizer_precedes_collection(stage: Stage) -> None:
    stage.cluster.error = TransientError("Kubernetes is away")

    with pytest.raises(TransientError):
        await stage.run(stage.put(memory_document(deletionPolicy="Delete")))

    assert stage.store.calls == []


async def test_unfinalized_deleted_object_reads_nothing(stage: Stage) -> None:
    stage.table.remove(key_of(connection_document()))
    metadata = {"deletionTimestamp": DELETED_AT, "finalizers": ["other/one"]}
    key = stage.put(memory_document(metadata=metadata, deletionPolicy="Delete", index="nonsense"))

    assert await stage.run(key) is None
    assert (stage.secrets.reads, stage.store.calls, stage.cluster.writes) == (0, [], 0)


async def test_deletion_waits_for_server_within_limit(stage: Stage) -> None:
    stage.store.error = StoreUnavailable("away")
    metadata: dict[str, Any] = {"finalizers": [FINALIZER], "deletionTimestamp": DELETED_AT}
    key = stage.put(memory_document(metadata=metadata, deletionPolicy="Delete"))
    stage.clock.value_ms = 1_794_960_000_000  # DELETED_AT

    with pytest.raises(StoreUnavailable):
        await stage.run(key)
    stage.clock.move(ms=int(PERIODS.release_s * 1000) + 1)
    await stage.run(key)

    assert stage.cluster.finalizers == [("probe", [])]
    assert [event.reason for event in stage.cluster.events] == ["DeletionWaiting", "CollectionKept"]


CONNECTION = key_of(connection_document())


def is_about(expected_s: float, due_s: float | None) -> bool:
    """Return whether a period is the expected one within its jitter of 20 %."""
    return due_s is not None and 0.8 * expected_s <= due_s <= 1.2 * expected_s


async def test_new_connection_requests_passes_once(stage: Stage) -> None:
    user = stage.put(memory_document())

    assert is_about(PERIODS.probe_s, await stage.run(CONNECTION))
    await stage.run(CONNECTION)

    assert stage.status(CONNECTION)["version"] == "1.18.3"
    assert stage.requested == [user]
    assert len(stage.cluster.statuses) == 1


async def test_connection_changes_request_passes(stage: Stage) -> None:
    user = stage.put(memory_document())
    await stage.run(CONNECTION)
    stage.store.error = StoreUnavailable("away")
    await stage.run(CONNECTION)
    await stage.run(CONNECTION)
    assert stage.short(CONNECTION)[0] == ("Ready", "False", "QdrantUnavailable")
    stage.store.error = None

    await stage.run(CONNECTION)

    assert stage.requested == [user] * 3
    unknown = ("NearCapacity", "Unknown", "CapacityUnknown")
    assert stage.short(CONNECTION) == [("Ready", "True", "Serving"), ("Reachable", "True", "Answers"), unknown]


async def test_objects_skip_unavailable_server(stage: Stage) -> None:
    key = stage.put(memory_document())
    stage.store.error = StoreUnavailable("away")
    await stage.run(CONNECTION)
    stage.store.error = None

    due_s = await stage.run(key)

    assert stage.store.calls == []
    assert stage.short(key)[0] == ("Ready", "False", "QdrantUnavailable")
    assert is_about(PERIODS.converged_s, due_s), "the connection asks for the pass when it comes back"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRejected(401, "key"), TlsVerificationFailed("who")])
async def test_failed_pass_requests_one_probe(stage: Stage, error: AgentMemoryError) -> None:
    key = stage.put(memory_document())
    stage.store.error = error

    with contextlib.suppress(TransientError):
        await stage.run(key)

    assert (stage.requested, stage.delays) == ([CONNECTION], [0.0])


async def test_extra_probes_are_delayed(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(CONNECTION)
    stage.store.error = StoreUnavailable("away")
    stage.requested.clear()
    stage.delays.clear()

    with pytest.raises(StoreUnavailable):
        await stage.run(key)

    assert stage.requested == [CONNECTION]
    assert 0.5 <= stage.delays[0] <= 1.0


async def test_invalid_object_requests_no_probe(stage: Stage) -> None:
    await stage.run(stage.put(memory_document(index={"hnsw": {"m": 1}})))

    assert stage.requested == []


async def test_probe_period_grows_up_to_limit(stage: Stage) -> None:
    stage.store.error = StoreUnavailable("away")

    waits = [await stage.run(CONNECTION) or 0.0 for _ in range(8)]

    assert waits[0] <= PERIODS.probe_s * PROBE_GROWTH * 1.2
    assert all(is_about(PERIODS.probe_s * MAX_PROBE_GROWTH, wait) for wait in waits[3:])
    stage.store.error = None
    assert is_about(PERIODS.probe_s, await stage.run(CONNECTION))


async def test_probe_honours_retry_after_up_to_limit(stage: Stage) -> None:
    stage.store.error = StoreUnavailable("throttled", retry_after_s=50)
    assert await stage.run(CONNECTION) == 50

    stage.store.error = StoreUnavailable("throttled", retry_after_s=86_400)
    assert await stage.run(CONNECTION) == MAX_RETRY_S


async def test_passes_after_outage_are_spread(stage: Stage) -> None:
    """A thousand passes at once would overload the server."""
    for number in range(200):
        stage.put(memory_document(f"m{number}"))
    stage.store.error = StoreUnavailable("away")
    await stage.run(CONNECTION)
    assert set(stage.delays) == {0.0}, "an outage is reported at once"
    stage.store.error = None
    stage.delays.clear()

    await stage.run(CONNECTION)

    spread_s = 200 / PERIODS.reconnect_passes_per_s
    assert len(stage.delays) == 200
    assert max(stage.delays) <= spread_s
    buckets = [sum(low <= delay < low + spread_s / 4 for delay in stage.delays) for low in (0, 0.5, 1.0, 1.5)]
    assert min(buckets) >= 20, "passes are spread evenly"


@pytest.mark.parametrize(
    ("version", "error", "reason"),
    [
        ("1.17.9", None, "QdrantTooOld"),
        ("1.18.3", StoreRejected(401, "Invalid API key"), "QdrantRejected"),
    ],
)
async def test_unusable_server_stalls_connection_and_objects(
    stage: Stage, version: str, error: AgentMemoryError | None, reason: str
) -> None:
    key = stage.put(memory_document())
    stage.store.server_version, stage.store.error = version, error

    assert is_about(PERIODS.probe_s, await stage.run(CONNECTION)), "what a person corrects is looked at again soon"
    await stage.run(key)

    assert stage.short(CONNECTION)[:2] == [("Ready", "False", reason), ("Stalled", "True", reason)]
    assert stage.short(key) == [("Ready", "False", reason), ("Stalled", "True", reason)]


async def test_missing_secret_stalls_connection(stage: Stage) -> None:
    key = stage.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "SecretNotFound")
    assert "agents/qdrant" in stage.status(key)["conditions"][0]["message"]


async def test_secrets_stay_out_of_status_and_events(stage: Stage) -> None:
    stage.secrets.values = {("agents", "qdrant", "k"): "s3cret"}
    stage.store.error = StoreUnavailable("away")
    key = stage.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}))

    await stage.run(key)

    assert "s3cret" not in str(stage.cluster.statuses) + str(stage.cluster.events)


async def test_waiting_deletion_reports_deadline_once(stage: Stage) -> None:
    metadata: dict[str, Any] = {"finalizers": [FINALIZER], "deletionTimestamp": DELETED_AT}
    key = stage.put(memory_document(metadata=metadata, deletionPolicy="Delete"))
    stage.clock.value_ms = 1_794_960_000_000  # DELETED_AT
    stage.store.error = StoreUnavailable("away")

    for _ in range(2):
        with pytest.raises(TransientError, match="waits for Qdrant"):
            await stage.run(key)
        stage.clock.move(ms=10_000)

    assert stage.short(key) == [("Ready", "False", "DeletionWaiting"), ("Reconciling", "True", "DeletionWaiting")]
    assert "until 2026-11-18T00:01:00Z" in stage.status(key)["conditions"][0]["message"]
    assert [(event.type, event.reason) for event in stage.cluster.events] == [("Warning", "DeletionWaiting")]
    assert len(stage.cluster.statuses) == 1


class TestSuspended:
    async def test_makes_no_calls_and_keeps_status(self) -> None:
        stage = Stage()
        key = stage.put(connection_document(), memory_document())
        await stage.run(key)
        served = stage.status(key)
        stage.store.calls.clear()

        stage.put(
            memory_document(metadata={"generation": 2}, suspend=True, index={"hnsw": {"m": 24}}) | {"status": served}
        )
        due_s = await stage.run(key)

        assert (stage.store.calls, due_s) == ([], None)
        assert stage.status(key)["observedGeneration"] == 2
        kept = {condition["type"]: condition["reason"] for condition in stage.status(key)["conditions"]}
        assert kept == {"Ready": "Serving", "InSync": "Converged", "Suspended": "Suspended"}
        assert stage.status(key)["collection"] == served["collection"]
        AgentMemoryStatus.model_validate(stage.status(key))

    async def test_writes_nothing_in_second_pass(self) -> None:
        stage = Stage()
        key = stage.put(connection_document(), memory_document(suspend=True))
        await stage.run(key)
        writes = stage.cluster.writes

        await stage.run(key)

        assert stage.cluster.writes == writes
        assert [c["status"] for c in stage.status(key)["conditions"]] == ["Unknown", "True"]

    async def test_drops_stalled_condition(self) -> None:
        stage = Stage()
        key = stage.put(memory_document())
        await stage.run(key)
        failed = stage.status(key)

        stage.put(memory_document(metadata={"generation": 2}, suspend=True) | {"status": failed})
        await stage.run(key)

        kept = {condition["type"]: condition["reason"] for condition in stage.status(key)["conditions"]}
        assert kept == {"Ready": "ConnectionNotFound", "Suspended": "Suspended"}

    async def test_reconciles_after_resume(self) -> None:
        stage = Stage()
        key = stage.put(connection_document(), memory_document(suspend=True))
        await stage.run(key)
        suspended = stage.status(key)

        stage.put(memory_document(metadata={"generation": 2}, suspend=False) | {"status": suspended})
        await stage.run(key)

        kept = {condition["type"]: condition["reason"] for condition in stage.status(key)["conditions"]}
        assert kept == {"Ready": "Serving", "InSync": "Converged"}

    async def test_keeps_collection_on_deletion(self) -> None:
        stage = Stage()
        leaving = {"deletionTimestamp": DELETED_AT, "finalizers": [FINALIZER]}
        key = stage.put(connection_document(), memory_document(metadata=leaving, suspend=True, deletionPolicy="Delete"))

        await stage.run(key)

        assert stage.store.calls == []
        assert stage.cluster.finalizers == [("probe", [])]
        assert [(event.reason, "suspend" in event.message) for event in stage.cluster.events] == [
            ("CollectionKept", True)
        ]


def test_probe_growth_is_bounded() -> None:
    assert probe_growth(100_000) == probe_growth(10) == MAX_PROBE_GROWTH
