"""Passes over objects: what is written, what is asked again when, and which error becomes which condition."""

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
    """Passes over fakes; what they write comes back into the table as a watch would bring it."""

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
    """A stage with the connection that objects refer to."""
    stage = Stage()
    stage.put(connection_document())
    return stage


READY = [("Ready", "True", "Serving"), ("InSync", "True", "Converged")]


async def test_a_first_pass_makes_the_object_ready(stage: Stage) -> None:
    key = stage.put(memory_document())

    due_s = await stage.run(key)

    assert stage.short(key) == READY
    assert 240 <= (due_s or 0) <= 360
    assert [event.reason for event in stage.cluster.events] == ["Applied"]
    assert "create collection agent_memory_probe__1" in stage.cluster.events[0].message


async def test_a_second_pass_over_a_converged_object_writes_nothing(stage: Stage) -> None:
    key = stage.put(memory_document(deletionPolicy="Retain"))
    await stage.run(key)
    writes, changes = stage.cluster.writes, list(stage.store.changes)
    stage.clock.move(days=1)

    await stage.run(key)

    assert (stage.cluster.writes, stage.store.changes) == (writes, changes)


async def test_a_pass_and_what_it_writes_have_the_object_judged_once(stage: Stage) -> None:
    key = stage.put(memory_document())
    before = stage.table.parse(stage.table.get(key) or {})

    await stage.run(key)
    stage.put({**(stage.table.get(key) or {})})
    await stage.run(key)

    after = stage.table.parse(stage.table.get(key) or {})
    assert after.spec is before.spec
    assert after.status == stage.status(key) != before.status


async def test_the_status_is_what_the_schema_takes(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    await stage.run(key_of(connection_document()))

    AgentMemoryStatus.model_validate(stage.status(key), by_alias=True, by_name=False)
    connection = stage.status(key_of(connection_document()))
    QdrantConnectionStatus.model_validate(connection, by_alias=True, by_name=False)


async def test_a_new_number_of_points_is_written_once(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.points["agent_memory_probe__1"] = 5

    await stage.run(key)
    await stage.run(key)

    assert [status["collection"]["points"] for _, _, status in stage.cluster.statuses] == [0, 5]


async def test_an_object_whose_collection_is_indexed_is_looked_at_soon(stage: Stage) -> None:
    stage.store.is_busy = True

    assert await stage.run(stage.put(memory_document())) == PERIODS.busy_s


async def drift(stage: Stage, policy: str, **figures: Any) -> Key:
    """Return a converged object whose collection somebody then changed."""
    key = stage.put(memory_document(driftPolicy=policy))
    await stage.run(key)
    stage.cluster.events.clear()
    stage.store.collections[FIRST] = with_changes(stage.store.collections[FIRST], **figures)
    return key


async def test_reported_drift_is_told_once_for_each_new_difference(stage: Stage) -> None:
    key = await drift(stage, "Report", m=24)
    await stage.run(key)
    await stage.run(key)
    stage.store.collections[FIRST] = with_changes(stage.store.collections[FIRST], ef_construct=7)
    await stage.run(key)
    await stage.run(key)

    told = [(event.type, event.reason, event.message) for event in stage.cluster.events]
    assert [entry[:2] for entry in told] == [("Warning", "Drifted")] * 2
    assert "index.hnsw.m is 24, expected 16" in told[0][2]
    assert "efConstruct is 7" in told[1][2]
    assert "index.hnsw.m " not in told[1][2]
    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "Drifted")]


async def test_corrected_drift_is_told_as_such_and_leaves_no_trace_in_the_status(stage: Stage) -> None:
    key = await drift(stage, "Correct", m=24)
    before = stage.status(key)

    await stage.run(key)
    await stage.run(key)

    told = [(event.type, event.reason, event.message) for event in stage.cluster.events]
    assert told == [("Normal", "DriftCorrected", "index.hnsw.m reset from 24 to 16")]
    assert stage.status(key) == before


async def test_ignored_drift_is_neither_told_nor_shown(stage: Stage) -> None:
    key = await drift(stage, "Ignore", m=24)

    await stage.run(key)

    assert (stage.cluster.events, stage.short(key)) == ([], READY)
    assert stage.store.collections[FIRST].hnsw.m == 24


async def test_drift_of_the_class_rebuild_is_held_and_told_as_that(stage: Stage) -> None:
    key = await drift(stage, "Correct", m=24, distance="Dot")
    stage.store.points[FIRST] = 1

    await stage.run(key)
    await stage.run(key)

    assert [event.reason for event in stage.cluster.events] == ["DriftCorrected", "AwaitingApproval"]
    assert stage.short(key)[1] == ("InSync", "False", "AwaitingApproval")
    assert [entry["path"] for entry in stage.status(key)["drift"]] == ["index.distance"]


async def test_a_grey_collection_is_woken_and_told_once_until_it_is_green(stage: Stage) -> None:
    """A second restart before it is green wakes it again and is no news; one after that is."""
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


async def test_a_red_collection_is_said_and_looked_at_as_what_only_a_person_can_mend(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.states[FIRST] = "red"

    assert await stage.run(key) == PERIODS.stalled_s
    assert stage.short(key) == [("Ready", "True", "Serving"), ("InSync", "False", "CollectionRed")]


async def test_an_object_that_is_gone_is_not_looked_at_again(stage: Stage) -> None:
    assert await stage.run(Key("AgentMemory", "agents", "gone")) is None
    assert stage.cluster.writes == 0


async def test_a_held_plan_is_told_once(stage: Stage) -> None:
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


async def test_a_rebuild_is_held_with_what_it_takes_by_the_contents_that_are_there(stage: Stage) -> None:
    key = stage.put(memory_document(embedding={"provider": "openai"}))
    await stage.run(key)
    stage.store.points[FIRST], stage.store.lengths[FIRST] = 640, [400, 0]
    wanted = {"embedding": {"provider": "openai", "model": "text-embedding-3-large"}}
    rebuild = {"embeddingPricePerMillionTokens": 10, "maxEmbeddingCallsPerHour": 5}
    stage.put(memory_document(metadata={"generation": 2}, **wanted, rebuild=rebuild) | {"status": stage.status(key)})

    await stage.run(key)

    costs = stage.status(key)["plan"]["costs"]
    told = {name: costs[name] for name in ("points", "embeddingCalls", "tokens", "price", "minutes")}
    assert told == {"points": 640, "embeddingCalls": 10, "tokens": 32_000, "price": 0.32, "minutes": 120}


async def test_a_request_is_acknowledged_by_a_pass_that_ends_and_the_status_does_not_grow_with_it(stage: Stage) -> None:
    asked = "x" * 10_000
    key = stage.put(memory_document(metadata={"annotations": {RECONCILE_REQUESTED_AT: asked}}))
    await stage.run(key)
    assert stage.status(key)["lastHandledReconcileAt"] == asked[:128]
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
async def test_a_request_is_acknowledged_whatever_a_pass_comes_to(stage: Stage, spec: dict[str, Any]) -> None:
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
async def test_agent_and_preset_are_named_before_anything_is_in_force(
    stage: Stage, spec: dict[str, Any], preset: str | None
) -> None:
    key = stage.put(memory_document(**spec))

    await stage.run(key)

    assert stage.status(key)["agent"] == spec.get("agent", "probe")
    assert stage.status(key).get("effective") == (preset and {"preset": preset})
    AgentMemoryStatus.model_validate(stage.status(key))


async def test_the_preset_that_is_named_follows_the_object_until_one_is_in_force(stage: Stage) -> None:
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


async def test_points_that_come_and_go_are_no_news_of_a_held_plan(stage: Stage) -> None:
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


async def test_a_rebuild_for_which_the_operator_allows_no_room_is_refused_though_it_was_approved(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(key)
    stage.store.points[FIRST] = 5
    stage.passes.connections.max_rebuild_bytes = 1000
    spec = {"index": {"distance": "Dot"}, "changePolicy": "Apply"}
    stage.put(memory_document(**spec) | {"status": stage.status(key)})

    await stage.run(key)

    assert stage.short(key)[1] == ("InSync", "False", "InsufficientSpace")


async def test_a_spec_that_cannot_be_parsed_stalls_and_names_the_field(stage: Stage) -> None:
    key = stage.put(memory_document(scoring={"weights": {"similarity": 1, "recency": 1, "utility": 1}}))

    assert await stage.run(key) == PERIODS.stalled_s
    assert stage.short(key) == [("Ready", "False", "InvalidSpec"), ("Stalled", "True", "InvalidSpec")]
    assert "spec.scoring.weights" in stage.status(key)["conditions"][0]["message"]
    assert stage.store.calls == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"index": {"hnsw": {"m": 1}}}, "uses the last valid settings and the current spec.access"),
        ({"access": {"subjects": ["everybody"]}}, "spec.access is invalid too: until it is corrected, the API"),
    ],
)
async def test_a_spec_that_cannot_be_parsed_says_whom_the_api_lets_in(
    stage: Stage, spec: dict[str, Any], told: str
) -> None:
    key = stage.put(memory_document(**spec))

    await stage.run(key)

    assert all(told in condition["message"] for condition in stage.status(key)["conditions"])
    assert told in stage.cluster.events[0].message


async def test_an_object_that_stays_broken_is_written_and_told_once(stage: Stage) -> None:
    key = stage.put(memory_document(index={"hnsw": {"m": 1}}))
    await stage.run(key)
    writes = stage.cluster.writes

    await stage.run(key)

    assert (writes, stage.cluster.writes) == (2, 2)


async def test_two_objects_for_one_slug_leave_it_to_the_older(stage: Stage) -> None:
    older = stage.put(memory_document("old", agent="bot"))
    younger = stage.put(memory_document("new", agent="bot", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"}))

    assert await stage.run(younger) == PERIODS.stalled_s
    await stage.run(older)

    assert stage.short(younger)[1] == ("Stalled", "True", "SlugTaken")
    assert "the older AgentMemory old" in stage.status(younger)["conditions"][0]["message"]
    assert stage.short(older) == READY


async def test_the_younger_takes_over_an_empty_slug_s_collection_only_if_it_is_its_own(stage: Stage) -> None:
    older = stage.put(memory_document("old", agent="bot"))
    await stage.run(older)
    stage.table.remove(older)
    younger = stage.put(memory_document("new", agent="bot"))

    await stage.run(younger)

    assert stage.short(younger)[1] == ("Stalled", "True", "CollectionNotOwned")


async def taken(stage: Stage, uid: str = "uid-old") -> Key:
    """Return the key of an object that names the owner of its slug's collection, after its pass."""
    older = stage.put(memory_document("old", agent="bot"))
    await stage.run(older)
    stage.table.remove(older)
    stage.store.points["agent_memory_bot__1"] = 3
    key = stage.put(memory_document("new", agent="bot", metadata={"annotations": {"agentmemory.dev/takeover": uid}}))
    await stage.run(key)
    return key


async def test_a_refused_object_says_in_its_status_whose_the_collection_is(stage: Stage) -> None:
    key = await taken(stage, "uid-of-nobody")

    assert stage.short(key)[1] == ("Stalled", "True", "CollectionNotOwned")
    owner = {"clusterId": "cluster-1", "namespace": "agents", "name": "old", "uid": "uid-old"}
    assert stage.status(key)["foreignOwner"] == owner
    AgentMemoryStatus.model_validate(stage.status(key), by_alias=True, by_name=False)


async def test_an_object_takes_over_the_collection_whose_owner_it_names(stage: Stage) -> None:
    key = await taken(stage)

    assert stage.short(key) == READY
    assert "foreignOwner" not in stage.status(key)
    marker = stage.store.collections["agent_memory_bot__1"].marker
    assert marker is not None
    assert (marker.name, marker.uid) == ("new", "uid-new")
    assert stage.status(key)["collection"]["points"] == 3
    told = {event.reason: event.message for event in stage.cluster.events}
    assert told["CollectionTakenOver"] == "took over agent_memory_bot__1 from AgentMemory agents/old (uid uid-old)"


async def test_a_takeover_is_told_once_and_stays_done(stage: Stage) -> None:
    key = await taken(stage)
    writes, changes = stage.cluster.writes, list(stage.store.changes)

    await stage.run(key)

    assert (stage.cluster.writes, stage.store.changes) == (writes, changes)


async def test_a_refusal_s_owner_goes_with_the_refusal(stage: Stage) -> None:
    key = await taken(stage, "uid-of-nobody")
    stage.store.error = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await stage.run(key)

    assert "foreignOwner" not in stage.status(key)


async def test_an_object_without_its_connection_stalls_with_the_name(stage: Stage) -> None:
    key = stage.put(memory_document(connectionRef={"name": "none"}))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "ConnectionNotFound")
    assert "agents/none" in stage.status(key)["conditions"][0]["message"]


async def test_an_object_without_its_secret_stalls_with_the_name(stage: Stage) -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}
    key = stage.put(memory_document(embedding=embedding))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "SecretNotFound")
    assert "agents/openai" in stage.status(key)["conditions"][0]["message"]
    assert stage.store.calls == []


async def test_an_object_recovers_by_itself(stage: Stage) -> None:
    embedding = {"provider": "openai", "secretRef": {"name": "openai", "key": "api-key"}}
    key = stage.put(memory_document(embedding=embedding))
    await stage.run(key)
    stage.secrets.values = {("agents", "openai", "api-key"): "sk"}

    await stage.run(key)

    assert stage.short(key) == READY


async def test_a_server_that_is_away_makes_the_object_not_ready_and_is_tried_again(stage: Stage) -> None:
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


async def test_kubernetes_own_trouble_says_nothing_of_the_object(stage: Stage) -> None:
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
def test_each_error_has_its_condition(error: AgentMemoryError, reason: Reason, is_stalled: bool) -> None:
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
async def test_the_finalizer_stands_only_where_there_is_something_to_delete(
    stage: Stage, policy: str, finalizers: list[str], written: list[str] | None
) -> None:
    key = stage.put(memory_document(metadata={"finalizers": finalizers}, deletionPolicy=policy))

    await stage.run(key)

    assert stage.cluster.finalizers == ([("probe", written)] if written is not None else [])


async def test_the_finalizer_stands_before_the_collection(stage: Stage) -> None:
    stage.cluster.error = TransientError("Kubernetes is away")

    with pytest.raises(TransientError):
        await stage.run(stage.put(memory_document(deletionPolicy="Delete")))

    assert stage.store.calls == []


async def test_a_deleted_object_without_finalizer_looks_nothing_up(stage: Stage) -> None:
    stage.table.remove(key_of(connection_document()))
    metadata = {"deletionTimestamp": DELETED_AT, "finalizers": ["other/one"]}
    key = stage.put(memory_document(metadata=metadata, deletionPolicy="Delete", index="nonsense"))

    assert await stage.run(key) is None
    assert (stage.secrets.reads, stage.store.calls, stage.cluster.writes) == (0, [], 0)


async def test_a_deleted_object_waits_for_the_server_only_so_long(stage: Stage) -> None:
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


def about(expected_s: float, due_s: float | None) -> bool:
    """Tell whether a period is the expected one but for its jitter."""
    return due_s is not None and 0.8 * expected_s <= due_s <= 1.2 * expected_s


async def test_a_connection_shows_its_server_and_wakes_its_users_once(stage: Stage) -> None:
    user = stage.put(memory_document())

    assert about(PERIODS.probe_s, await stage.run(CONNECTION))
    await stage.run(CONNECTION)

    assert stage.status(CONNECTION)["version"] == "1.18.3"
    assert stage.requested == [user]
    assert len(stage.cluster.statuses) == 1


async def test_a_connection_that_goes_down_and_comes_back_wakes_its_users_each_time(stage: Stage) -> None:
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


async def test_a_server_that_is_known_to_be_away_is_not_asked_by_objects(stage: Stage) -> None:
    key = stage.put(memory_document())
    stage.store.error = StoreUnavailable("away")
    await stage.run(CONNECTION)
    stage.store.error = None

    due_s = await stage.run(key)

    assert stage.store.calls == []
    assert stage.short(key)[0] == ("Ready", "False", "QdrantUnavailable")
    assert about(PERIODS.converged_s, due_s), "the connection asks for the pass when it comes back"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRejected(401, "key"), TlsVerificationFailed("who")])
async def test_a_pass_that_the_server_fails_asks_for_one_probe_that_finds_out_for_all(
    stage: Stage, error: AgentMemoryError
) -> None:
    key = stage.put(memory_document())
    stage.store.error = error

    with contextlib.suppress(TransientError):
        await stage.run(key)

    assert (stage.requested, stage.delays) == ([CONNECTION], [0.0])


async def test_probes_out_of_turn_keep_a_distance(stage: Stage) -> None:
    key = stage.put(memory_document())
    await stage.run(CONNECTION)
    stage.store.error = StoreUnavailable("away")
    stage.requested.clear()
    stage.delays.clear()

    with pytest.raises(StoreUnavailable):
        await stage.run(key)

    assert stage.requested == [CONNECTION]
    assert 0.5 <= stage.delays[0] <= 1.0


async def test_an_error_of_the_object_alone_asks_for_no_probe(stage: Stage) -> None:
    await stage.run(stage.put(memory_document(index={"hnsw": {"m": 1}})))

    assert stage.requested == []


async def test_a_server_that_stays_away_is_asked_less_and_less_but_not_forgotten(stage: Stage) -> None:
    stage.store.error = StoreUnavailable("away")

    waits = [await stage.run(CONNECTION) or 0.0 for _ in range(8)]

    assert waits[0] <= PERIODS.probe_s * PROBE_GROWTH * 1.2
    assert all(about(PERIODS.probe_s * MAX_PROBE_GROWTH, wait) for wait in waits[3:])
    stage.store.error = None
    assert about(PERIODS.probe_s, await stage.run(CONNECTION))


async def test_a_server_that_asks_to_be_left_alone_is_probed_after_that_and_not_forgotten(stage: Stage) -> None:
    stage.store.error = StoreUnavailable("throttled", retry_after_s=50)
    assert await stage.run(CONNECTION) == 50

    stage.store.error = StoreUnavailable("throttled", retry_after_s=86_400)
    assert await stage.run(CONNECTION) == MAX_RETRY_S


async def test_the_objects_of_a_server_that_returns_are_spread(stage: Stage) -> None:
    """A thousand of them would hammer it else."""
    for number in range(200):
        stage.put(memory_document(f"m{number}"))
    stage.store.error = StoreUnavailable("away")
    await stage.run(CONNECTION)
    assert set(stage.delays) == {0.0}, "that it is away is told at once, without asking it"
    stage.store.error = None
    stage.delays.clear()

    await stage.run(CONNECTION)

    spread_s = 200 / PERIODS.reconnect_passes_per_s
    assert len(stage.delays) == 200
    assert max(stage.delays) <= spread_s
    buckets = [sum(low <= delay < low + spread_s / 4 for delay in stage.delays) for low in (0, 0.5, 1.0, 1.5)]
    assert min(buckets) >= 20, "they come evenly, not in one burst"


@pytest.mark.parametrize(
    ("version", "error", "reason"),
    [
        ("1.17.9", None, "QdrantTooOld"),
        ("1.18.3", StoreRejected(401, "Invalid API key"), "QdrantRejected"),
    ],
)
async def test_a_server_that_cannot_be_used_stalls_connection_and_objects(
    stage: Stage, version: str, error: AgentMemoryError | None, reason: str
) -> None:
    key = stage.put(memory_document())
    stage.store.server_version, stage.store.error = version, error

    assert about(PERIODS.probe_s, await stage.run(CONNECTION)), "what a person corrects is looked at again soon"
    await stage.run(key)

    assert stage.short(CONNECTION)[:2] == [("Ready", "False", reason), ("Stalled", "True", reason)]
    assert stage.short(key) == [("Ready", "False", reason), ("Stalled", "True", reason)]


async def test_a_connection_without_its_secret_stalls_with_the_name(stage: Stage) -> None:
    key = stage.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}))

    await stage.run(key)

    assert stage.short(key)[1] == ("Stalled", "True", "SecretNotFound")
    assert "agents/qdrant" in stage.status(key)["conditions"][0]["message"]


async def test_no_secret_reaches_a_status_or_an_event(stage: Stage) -> None:
    stage.secrets.values = {("agents", "qdrant", "k"): "s3cret"}
    stage.store.error = StoreUnavailable("away")
    key = stage.put(connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"}))

    await stage.run(key)

    assert "s3cret" not in str(stage.cluster.statuses) + str(stage.cluster.events)


async def test_a_deletion_that_waits_for_qdrant_says_until_when_and_says_it_once(stage: Stage) -> None:
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
    async def test_a_suspended_object_costs_no_call_and_keeps_what_was_last_seen(self) -> None:
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

    async def test_a_second_pass_over_a_suspended_object_writes_nothing(self) -> None:
        stage = Stage()
        key = stage.put(connection_document(), memory_document(suspend=True))
        await stage.run(key)
        writes = stage.cluster.writes

        await stage.run(key)

        assert stage.cluster.writes == writes
        assert [c["status"] for c in stage.status(key)["conditions"]] == ["Unknown", "True"]

    async def test_what_was_wrong_is_not_said_of_a_suspended_object(self) -> None:
        stage = Stage()
        key = stage.put(memory_document())
        await stage.run(key)
        failed = stage.status(key)

        stage.put(memory_document(metadata={"generation": 2}, suspend=True) | {"status": failed})
        await stage.run(key)

        kept = {condition["type"]: condition["reason"] for condition in stage.status(key)["conditions"]}
        assert kept == {"Ready": "ConnectionNotFound", "Suspended": "Suspended"}

    async def test_an_object_that_is_resumed_is_brought_about(self) -> None:
        stage = Stage()
        key = stage.put(connection_document(), memory_document(suspend=True))
        await stage.run(key)
        suspended = stage.status(key)

        stage.put(memory_document(metadata={"generation": 2}, suspend=False) | {"status": suspended})
        await stage.run(key)

        kept = {condition["type"]: condition["reason"] for condition in stage.status(key)["conditions"]}
        assert kept == {"Ready": "Serving", "InSync": "Converged"}

    async def test_a_suspended_object_that_is_deleted_goes_and_its_collection_stays(self) -> None:
        stage = Stage()
        leaving = {"deletionTimestamp": DELETED_AT, "finalizers": [FINALIZER]}
        key = stage.put(connection_document(), memory_document(metadata=leaving, suspend=True, deletionPolicy="Delete"))

        await stage.run(key)

        assert stage.store.calls == []
        assert stage.cluster.finalizers == [("probe", [])]
        assert [(event.reason, "suspend" in event.message) for event in stage.cluster.events] == [
            ("CollectionKept", True)
        ]


def test_a_server_that_is_away_for_days_is_asked_as_before() -> None:
    assert probe_growth(100_000) == probe_growth(10) == MAX_PROBE_GROWTH
