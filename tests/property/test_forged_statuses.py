"""Forged statuses: no effect on passes of other namespaces, and the object can still be reconciled and deleted."""

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from agentmemory_operator.adapters.http.https_files import HttpsFiles
from agentmemory_operator.agents.feed import ApiFeed
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.reindex_slots import ReindexSlots
from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.collections.rules.claims import AgentClaim, ClaimSet
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities as Capable
from agentmemory_operator.controllers.agent_memory_pass import Passes
from agentmemory_operator.controllers.deletion import FINALIZER as COLLECTION_FINALIZER
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.controllers.rules.orphans import build_claims
from agentmemory_operator.controllers.status_writer import find_closing_restore
from agentmemory_operator.entrypoints.api.state_routes import render_state
from agentmemory_operator.entrypoints.api.state_schemas import AgentStateOut
from agentmemory_operator.errors import StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay
from agentmemory_operator.lifecycle.rules.tombstone_retention import find_keep_since_ms
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.controller import RestorePasses
from agentmemory_operator.restores.in_place import InPlaceRestore
from agentmemory_operator.restores.job import FINALIZER as RESTORE_FINALIZER
from agentmemory_operator.restores.precedence import find_started_restore, moving_rebuild_message
from agentmemory_operator.restores.sources import RestoreSources
from agentmemory_operator.runtime.metrics import OperatorMeter, exported_metrics, render
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    documents_in,
    key_of,
    read_recorded_names,
)
from agentmemory_operator.snapshots.controller import FINALIZER as SNAPSHOT_FINALIZER
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.facts import parse_facts
from agentmemory_operator.snapshots.rules.steps import copied_files, recorded_files
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.snapshots.snapshot_creation import other_statuses
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.readable_status import with_readable_status
from agentmemory_operator.spec.naming import next_physical
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClock, FakeCluster, FakeSecrets
from tests.support.engine.passes import passes_over
from tests.support.engine.stored_files import MemoryObjects
from tests.support.job.schedule_world import NothingToRemove
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.plans import desired_of, observed_of
from tests.support.web.shown_objects import ShownObjects

ALIAS, PHYSICAL = "agent_memory_probe", "agent_memory_probe__1"
TIME = "2026-11-20T12:00:00Z"
CONDITIONS = [
    {"type": kind, "status": status, "reason": "Running", "message": "m", "lastTransitionTime": TIME}
    for kind, status in (("Succeeded", "True"), ("Verified", "True"), ("Progressing", "True"), ("Ready", "True"))
]
FILE = f"{PHYSICAL}-1.snapshot"
FULL_STATUSES: dict[str, Json] = {
    AGENT_MEMORY: {
        "observedGeneration": 1,
        "conditions": CONDITIONS,
        "collection": {"alias": ALIAS, "physical": PHYSICAL, "points": 3, "rebuiltTime": TIME, "wokenAt": TIME},
        "rebuild": {"state": "Running", "step": "Move", "source": PHYSICAL, "target": f"{ALIAS}__2", "digest": "d"},
        "lastSnapshot": {"name": "s", "time": TIME, "verified": True},
        "lastSnapshotSlot": TIME,
        "lastCleanup": {"time": TIME, "held": {"digest": "d", "time": TIME}},
        "closed": {"restore": "r", "since": TIME},
        "drift": [{"path": "a", "since": TIME}],
        "driftCount": 1,
        "reindexSince": TIME,
        "plan": {"digest": "d", "changes": [{"change": "c", "held": True}]},
        "foreignOwner": {"clusterId": "c", "namespace": "n", "name": "m", "uid": "u"},
        "access": {"readers": 1, "qdrant": "Token"},
    },
    QDRANT_CONNECTION: {"conditions": CONDITIONS, "version": "1.18.3", "capabilities": ["formula"], "peers": 1},
    MEMORY_SNAPSHOT: {
        "conditions": CONDITIONS,
        "agent": "probe",
        "connection": {"namespace": "agents", "name": "main"},
        "owner": {"clusterId": "cluster-1", "namespace": "agents", "name": "probe", "uid": "u"},
        "embedding": {"provider": "none", "dimensions": 4},
        "physical": PHYSICAL,
        "name": FILE,
        "sizeBytes": 7,
        "sha256": "0" * 64,
        "points": {"before": 1, "after": 1},
        "qdrantVersion": "1.18.3",
        "locations": [
            {"type": "Qdrant", "physical": PHYSICAL, "name": FILE},
            {"type": "S3", "bucket": "copies", "region": "r", "key": "k"},
        ],
        "step": "Create",
        "attempts": 1,
        "newestBefore": 0,
        "startTime": TIME,
        "endTime": TIME,
    },
    MEMORY_RESTORE: {
        "conditions": CONDITIONS,
        "steps": [{"name": "Recover", "startTime": TIME}, {"name": "RollBack", "startTime": TIME}],
        "connection": {"namespace": "agents", "name": "main"},
        "targetUid": "uid-probe",
        "physical": f"{ALIAS}__2",
        "points": {"before": 1},
        "previousCollection": {"physical": PHYSICAL, "until": TIME, "since": TIME, "writesSince": 1},
        "safetySnapshot": {"name": "s", "attempt": 1},
        "closedSince": TIME,
        "startTime": TIME,
        "endTime": TIME,
    },
}
KINDS = sorted(FULL_STATUSES)
ODD = [
    *(None, [], {}, "", "x", True, 0, -1, 10**30, 1.5, float("inf"), [None], [[]], {"x": "y"}, {"name": 1}, "\ud800"),
    *("9999-99-99T99:99:99Z", "1969-12-31T23:59:59Z", "2016-12-31T23:59:60Z", "0001-01-01", "..", "a/b", "a" * 300),
    *(f"{ALIAS}__{'9' * 4000}", f"{ALIAS}__999999999", f"{ALIAS}__5", "agent_memory_other__1", "Create", "Clean"),
]
JSON_ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=6,
)


def paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a status."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path, *(found for key, child in inner for found in paths(child, (*path, key)))]


def replace_at(status: Any, path: tuple[Any, ...], value: Any, *, is_removed: bool) -> Any:
    """Return a copy of a status with one value replaced or removed."""
    if not path:
        return value
    found: Any = copy.copy(status)
    if is_removed and len(path) == 1:
        del found[path[0]]
    else:
        found[path[0]] = replace_at(status[path[0]], path[1:], value, is_removed=is_removed)
    return found


@st.composite
def forged(draw: st.DrawFn, kind: str) -> Any:
    """Build a status as any writer may set it: the operator's with some values changed, or any JSON."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON_)
    status: Any = FULL_STATUSES[kind]
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(paths(status)))
        status = replace_at(status, path, draw(st.sampled_from(ODD)), is_removed=draw(st.booleans()))
    return status


@st.composite
def statuses(draw: st.DrawFn) -> dict[str, Any]:
    """Build a forged status of every kind."""
    return {kind: draw(forged(kind)) for kind in KINDS}


def documents(namespace: str, forgery: dict[str, Any], name: str = "probe") -> list[Json]:
    """Return one object of each kind in a namespace."""
    memory = memory_document(name, metadata={"namespace": namespace}, snapshots={"schedule": "0 3 * * *"})
    connection = connection_document(namespace=namespace)
    metadata = memory["metadata"] | {"creationTimestamp": TIME}
    snapshot = memory | {"kind": MEMORY_SNAPSHOT, "metadata": metadata | {"name": "s"}}
    restore = memory | {"kind": MEMORY_RESTORE, "metadata": metadata | {"name": "r"}}
    snapshot["spec"] = {"agentMemoryRef": {"name": name}, "deletionPolicy": "Delete"}
    restore["spec"] = {"target": {"name": name}, "source": {"snapshotRef": {"name": "s"}}}
    return [one | {"status": forgery.get(one["kind"])} for one in (connection, memory, snapshot, restore)]


class EmptyServer:
    """Server without collections and files."""

    def __getattr__(self, name: str) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            if name == "create":
                raise StoreUnavailable("the server is full")
            results = {"server": Capable("1.18.3", 1, False), "process": Process(), "count": 0, "scroll": ([], None)}
            return ({"collections": [], "names": [], "files": []} | results).get(name)

        return call


class FakedOperator:
    """Operator over fakes."""

    def __init__(self, *found: Json) -> None:
        self.table, self.cluster, self.clock = ObjectTable(), FakeCluster(), FakeClock()
        self.table.claims = ClaimSet(is_complete=True)
        for document in found:
            self.table.put(copy.deepcopy(document))
        self.store, self.secrets = FakeCollectionStore(), FakeSecrets()
        self.connections = Connections(self.table, self.secrets, lambda _: self.store)
        self.servers = Servers(self.table, self.secrets, self.open_server, cluster_id=self.cluster.cluster_id)

    def open_server(self, endpoint: Endpoint) -> Server:
        nothing: Any = EmptyServer()
        return Server(endpoint, nothing, nothing, nothing)

    def ask(self, key: Key, *, after_s: float = 0.0) -> None:
        """Ignore requests for a pass."""

    def passes(self) -> Passes:
        parts = (self.table, self.connections, self.cluster, self.clock, self.ask)
        return passes_over(*parts, periods=Periods(), servers=self.servers)

    def snapshots(self) -> SnapshotPasses:
        class Prover:
            async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
                return ConditionState("Verified", True, "Verified", "proven")

        copies, scratch = (
            Copies(Storages(self.secrets, lambda _: MemoryObjects())),
            ScratchCollections(self.cluster.cluster_id),
        )
        parts = (self.table, self.servers, self.cluster, self.clock, self.ask)
        asking = TakeoverRequests(self.table)
        return SnapshotPasses(*parts, prover=Prover(), copies=copies, scratch=scratch, takeover_requests=asking)

    def restores(self) -> RestorePasses:
        storages, erasures = Storages(self.secrets, lambda _: MemoryObjects()), ErasureReplay(self.clock)
        parts = (self.table, self.servers, storages, erasures, self.clock)
        mirror = ErasureMirror(*parts, cluster_id=self.cluster.cluster_id)
        restored = RestoredErasureReplay(self.table, self.servers, erasures, mirror)
        in_place = InPlaceRestore(
            self.table, self.cluster, ScratchCollections(self.cluster.cluster_id), self.ask, restored
        )
        return RestorePasses(
            *(self.table, self.servers, self.cluster, self.clock, self.ask),
            sources=RestoreSources(self.table, self.servers, Copies(storages), HttpsFiles()),
            locks=AliasLocks(),
            in_place=in_place,
            erasures=restored,
            takeover_requests=TakeoverRequests(self.table),
        )


VICTIM = documents("agents", FULL_STATUSES)
MEMORY = Key(AGENT_MEMORY, "agents", "probe")


async def observe_victim(scene: FakedOperator) -> Json:
    """Return the operator's results for the victim's objects: everything that reads statuses of other objects."""
    table = scene.table
    snapshots, restores = (table.list_jobs(MEMORY, kind) for kind in (MEMORY_SNAPSHOT, MEMORY_RESTORE))
    beside = list(other_statuses(table, Key(MEMORY_SNAPSHOT, "agents", "another")))
    copied = copied_files((one["status"] for one in documents_in(table, MEMORY_SNAPSHOT, "agents")), PHYSICAL)

    async def observe(alias: str) -> Any:
        return observed_of(desired_of(), is_busy=True) if alias == ALIAS else None

    schedule = SnapshotSchedule(table, scene.cluster, scene.clock, scene.ask, NothingToRemove())
    found = {
        "next": next_physical(ALIAS, read_recorded_names(table, "agents")),
        "named": recorded_files(beside, PHYSICAL),
        "copied": copied,
        "closed": find_closing_restore(MEMORY, table),
        "moving": moving_rebuild_message(MEMORY, table),
        "restoring": find_started_restore(MEMORY, table),
        "since": find_keep_since_ms(snapshots, restores, last_snapshot=None, now_ms=scene.clock.now_ms()),
        "turn": await ReindexSlots(table, scene.clock).acquire(MEMORY, observe),
        "due": await schedule.check(MEMORY),
        "owner": table.find_namespace("probe"),
    }
    await scene.passes().run(MEMORY)
    return found | {"status": scene.cluster.statuses[-1] if scene.cluster.statuses else None}


@given(statuses())
@example({kind: [[]] for kind in KINDS})
@example(FULL_STATUSES)
async def test_status_of_other_namespace_changes_nothing(forgery: dict[str, Any]) -> None:
    alone, beside = FakedOperator(*VICTIM), FakedOperator(*VICTIM, *documents("beta", forgery, "thief"))
    # Objects with the same connection, and one that claims the victim's slug.
    for document in documents("beta", forgery, "other")[1:]:
        shared = document["spec"] | ({"connectionRef": {"name": "main", "namespace": "agents"}, "agent": "probe"})
        spec = shared if document["kind"] == AGENT_MEMORY else document["spec"]
        metadata = document["metadata"] | {"creationTimestamp": "2026-11-21T00:00:00Z"}
        beside.table.put(document | {"spec": spec, "metadata": metadata})

    assert await observe_victim(beside) == await observe_victim(alone)
    render(exported_metrics(OperatorMeter(beside.table).metrics(_queue()), is_leading=True))
    documents_ = [with_readable_status(one) for one in documents("beta", forgery)]
    build_claims(documents_[1:2], cluster_id="c", restores=documents_[3:])


def _queue() -> Any:
    class Queue:
        length, stuck_s = 0, 0.0

    return Queue()


def documents_being_deleted(kind: str, forgery: Any, finalizer: str) -> list[Json]:
    """Return objects of one namespace, one of which is being deleted."""
    found = documents("agents", {kind: forgery})
    for document in found:
        if document["kind"] == kind:
            document["metadata"] = document["metadata"] | {"finalizers": [finalizer], "deletionTimestamp": TIME}
    return found


async def run_pass(run: Callable[[Key], Awaitable[float | None]], key: Key) -> None:
    """Run a pass like the queue, which retries transient errors."""
    try:
        await run(key)
    except TransientError:
        return


@given(forged(MEMORY_SNAPSHOT))
async def test_snapshot_with_forged_status_can_be_deleted(forgery: Any) -> None:
    scene = FakedOperator(*documents_being_deleted(MEMORY_SNAPSHOT, forgery, SNAPSHOT_FINALIZER))

    await scene.snapshots().run(Key(MEMORY_SNAPSHOT, "agents", "s"))

    assert scene.cluster.finalizers == [("s", [])]


@given(forged(MEMORY_RESTORE), st.sampled_from(["Swap", "InPlace"]))
async def test_restore_with_forged_status_can_be_deleted(forgery: Any, mode: str) -> None:
    found = documents_being_deleted(MEMORY_RESTORE, forgery, RESTORE_FINALIZER)
    found[-1]["spec"]["mode"] = mode
    scene = FakedOperator(*found)

    await scene.restores().run(Key(MEMORY_RESTORE, "agents", "r"))

    assert scene.cluster.finalizers == [("r", [])]


@given(forged(AGENT_MEMORY))
async def test_agent_with_forged_status_can_be_deleted(forgery: Any) -> None:
    scene = FakedOperator(*documents_being_deleted(AGENT_MEMORY, forgery, COLLECTION_FINALIZER))
    memory = scene.table.get(MEMORY) or {}
    memory["spec"]["deletionPolicy"] = "Delete"

    await scene.passes().run(MEMORY)

    assert scene.cluster.finalizers == [("probe", [])]


RECOVERING = {
    "steps": [{"name": "Recover", "startTime": TIME}],
    **{
        name: FULL_STATUSES[MEMORY_RESTORE][name]
        for name in ("connection", "targetUid", "physical", "previousCollection")
    },
}


@given(statuses(), st.sampled_from(["Swap", "InPlace"]))
@example(FULL_STATUSES | {MEMORY_RESTORE: RECOVERING}, "Swap")
@example(
    FULL_STATUSES | {MEMORY_SNAPSHOT: FULL_STATUSES[MEMORY_SNAPSHOT] | {"conditions": [], "attempts": None}}, "Swap"
)
async def test_pass_over_forged_statuses_completes(forgery: dict[str, Any], mode: str) -> None:
    """A pass ends with a status or a transient error, never with an unexpected error."""
    found = documents("agents", forgery)
    found[-1]["spec"]["mode"] = mode
    for document in found:
        key = key_of(document)
        for run in (
            FakedOperator(*found).passes().run,
            FakedOperator(*found).snapshots().run,
            FakedOperator(*found).restores().run,
        ):
            kinds = {"Passes": (AGENT_MEMORY, QDRANT_CONNECTION), "SnapshotPasses": (MEMORY_SNAPSHOT,)}
            if key.kind in kinds.get(type(run.__self__).__name__, (MEMORY_RESTORE,)):
                await run_pass(run, key)
    parse_facts(with_readable_status(found[2]))


@given(statuses())
def test_api_accepts_objects_with_forged_status(forgery: dict[str, Any]) -> None:
    """An invalid expression is not used, so the last accepted one is read from the status."""
    served: list[str] = []

    class Directory:
        def put(self, claim: AgentClaim) -> None:
            served.append(claim.settings.slug)

    directory: Any = Directory()
    for document in documents("agents", forgery):
        if document["kind"] == AGENT_MEMORY:
            document["spec"] |= {"scoring": {"model": "Expression", "expression": "similarity +"}}
        ApiFeed(ObjectTable(), directory).apply_event("ADDED", document)

    assert served == ["probe"]


@given(statuses())
async def test_state_of_forged_statuses_is_shown(forgery: dict[str, Any]) -> None:
    """The response is JSON of the described form, and has the snapshot and the restore."""
    shown, found = ShownObjects(), documents("agents", forgery)
    shown.put(*found)
    connection = shown.table.get(key_of(found[0])) or {}
    settings = effective_settings(parse_agent_memory(found[1] | {"status": {}}))

    state = render_state(settings, shown.objects, connection.get("status") or {})

    read = AgentStateOut.model_validate_json(orjson.dumps(state))
    assert [len(read.snapshots or ()), len(read.restores or ())] == [1, 1]


async def test_next_pass_replaces_forged_status() -> None:
    forgery = {"collection": "x", "conditions": 5, "reindexSince": "never", "rebuild": {"state": "Nonsense"}}
    scene = FakedOperator(*documents("agents", {AGENT_MEMORY: forgery}))

    await scene.passes().run(MEMORY)

    (_, _, status) = scene.cluster.statuses[-1]
    assert status["collection"]["physical"] == PHYSICAL
    assert "reindexSince" not in status
    assert {entry["type"]: entry["status"] for entry in status["conditions"]}["Ready"] == "True"
