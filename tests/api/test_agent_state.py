"""The state of an agent's object: who may read it, what it shows, and what forged statuses do."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from agentmemory_client import Client
from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.entrypoints.api.state_routes import MAX_JOBS, MAX_MESSAGE_CHARS, MAX_VALUE_CHARS
from agentmemory_operator.entrypoints.api.state_schemas import AgentStateOut
from tests.support.spec.documents import ALL_PASS, agent_document, memory_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.mem0_site import EMBEDDING, SUBJECTS, NamedTokens
from tests.support.web.shown_objects import TIME, ShownObjects, restore_of, snapshot_of, told

SHOWN_TIME = "2026-11-21T03:00:00.000Z"
STORER = {"kind": "ServiceAccount", "namespace": "agents", "name": "storer", "verbs": ["write"]}
BOT = memory_document("state-bot", embedding=EMBEDDING, scoring=ALL_PASS, access={"subjects": [*SUBJECTS, STORER]})
AWAY = agent_document("state-away", access={"subjects": SUBJECTS})
CHANGE = {
    "change": "rebuild for embedding.dimensions 8 -> 16",
    "class": "Rebuild",
    "field": "embedding.dimensions",
    "from": "8",
    "to": "16",
    "cost": "copies every memory",
    "held": True,
}
AWAITING = (
    told("Ready", "True", "Serving"),
    told("InSync", "False", "AwaitingApproval", "approve the plan"),
)


class States:
    """An API that checks tokens, and the objects that it shows."""

    def __init__(self, http: httpx.Client, shown: ShownObjects) -> None:
        self.http, self.shown = http, shown

    def get(self, path: str, caller: str = "chief") -> httpx.Response:
        return self.http.get(f"/v1/agents{path}", headers={"Authorization": f"Bearer token-{caller}"})

    def state(self, agent: str = "state-bot") -> dict[str, Any]:
        answer = self.get(f"/{agent}/state")
        assert answer.status_code == 200, answer.text
        AgentStateOut.model_validate(answer.json())
        return dict(answer.json())


@pytest.fixture(scope="module")
def running(qdrant_url: str) -> Iterator[tuple[httpx.Client, ShownObjects]]:
    create_collection(qdrant_url, BOT)
    shown, guard = ShownObjects(), IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    with (
        running_api(qdrant_url, BOT, AWAY, guard=guard, shown=shown) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as http,
    ):
        yield http, shown


@pytest.fixture
def states(running: tuple[httpx.Client, ShownObjects]) -> States:
    """Both agents are ready, without snapshots and restores."""
    http, shown = running
    shown.clear()
    shown.report(BOT)
    shown.report(AWAY)
    return States(http, shown)


class TestRights:
    def test_readers_of_the_whole_agent_read_it(self, states: States) -> None:
        assert [states.get("/state-bot/state", caller).status_code for caller in ("chief", "writer")] == [200, 200]

    def test_other_callers_are_refused(self, states: States) -> None:
        answers = [states.get("/state-bot/state", caller) for caller in ("storer", "bound", "stranger")]

        assert [answer.status_code for answer in answers] == [403, 403, 404]
        assert not any("Serving" in answer.text for answer in answers)

    def test_user_tokens_are_refused(self, states: States) -> None:
        headers = {"Authorization": "Bearer token-chief"}
        body = {"user_id": "ada", "verbs": ["read", "write", "admin"]}
        token = states.http.post("/v1/agents/state-bot/tokens", json=body, headers=headers).json()["token"]

        for query in ({}, {"user_id": "ada"}):
            answer = states.http.get(
                "/v1/agents/state-bot/state", params=query, headers={"Authorization": f"Bearer {token}"}
            )
            assert (answer.status_code, "Serving" in answer.text) == (403, False)

    def test_lists_have_the_state_for_the_same_callers(self, states: States) -> None:
        states.shown.report(BOT, *AWAITING)

        lines = {caller: states.get("", caller).json()["results"][-1] for caller in ("chief", "writer", "bound")}

        assert {caller: line["state"] for caller, line in lines.items()} == {
            "chief": "ready, not in sync (AwaitingApproval)",
            "writer": "ready, not in sync (AwaitingApproval)",
            "bound": None,
        }
        assert states.get("/state-bot", "bound").json()["state"] is None
        assert states.get("/state-bot").json()["state"] == lines["chief"]["state"]


def test_state_has_what_the_operator_reports(states: States) -> None:
    states.shown.report(
        BOT,
        *AWAITING,
        drift=[{"path": "index.hnsw.m", "desired": "16", "observed": "24", "since": TIME}],
        plan={"digest": "0123456789ab", "refusal": "it waits", "changes": [CHANGE], "costs": {"points": 7}},
        nextSnapshotTime="2026-11-22T03:00:00Z",
    )
    states.shown.connection = {
        "conditions": [told("NearCapacity", "True", "LittleRoomLeft", "uses 48,000 of 65,000 maps")],
        "capacity": {"memoryMaps": {"used": 48_000, "limit": 65_000}},
    }

    found = states.state()

    commands = found.pop("commands")
    assert found == {
        "agent": "state-bot",
        "namespace": "agents",
        "name": "state-bot",
        "state": "ready, not in sync (AwaitingApproval)",
        "generation": 1,
        "observed_generation": 1,
        "deleted_at": None,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving", "message": "told", "since": SHOWN_TIME},
            {
                "type": "InSync",
                "status": "False",
                "reason": "AwaitingApproval",
                "message": "approve the plan",
                "since": SHOWN_TIME,
            },
        ],
        "drift": [{"field": "index.hnsw.m", "desired": "16", "observed": "24", "since": SHOWN_TIME}],
        "plan": {
            "digest": "0123456789ab",
            "reason": "it waits",
            "costs": "7 points",
            "changes": [
                {
                    "change": CHANGE["change"],
                    "change_class": "Rebuild",
                    "field": "embedding.dimensions",
                    "current": "8",
                    "desired": "16",
                    "cost": "copies every memory",
                    "held": True,
                }
            ],
        },
        "rebuild": None,
        "capacity": {"reason": "LittleRoomLeft", "memory_maps": 0.74, "open_files": None, "estimated": False},
        "next_snapshot_at": "2026-11-22T03:00:00.000Z",
        "last_proven": None,
        "snapshots": [],
        "snapshots_total": 0,
        "restores": [],
        "restores_total": 0,
    }
    assert commands == {
        "approve": "kubectl -n agents annotate amem state-bot --overwrite agentmemory.dev/approve-plan=0123456789ab",
        "undo": 'kubectl -n agents patch amem state-bot --type=merge -p \'{"spec": {"embedding": {"dimensions": 8}}}\'',
        "status": "kubectl agentmemory status state-bot -n agents",
        "snapshots": "kubectl agentmemory snapshot list state-bot -n agents",
        "snapshot": "kubectl agentmemory snapshot create state-bot -n agents --wait",
        "restore": "kubectl agentmemory restore state-bot -n agents --from SNAPSHOT --wait",
    }
    # Numbers of the server are its owner's.
    assert "65" not in json.dumps(found["capacity"])


def test_agent_that_is_not_ready_has_a_state(states: States) -> None:
    states.shown.report(AWAY, told("Ready", "False", "QdrantUnavailable", "start Qdrant"))

    assert states.get("/state-away").status_code == 503
    assert states.state("state-away")["state"] == "not ready (QdrantUnavailable)"


def test_rebuild_has_its_progress(states: States) -> None:
    rebuild = {"kind": "Rebuild", "state": "Running", "step": "Copy", "copied": 40, "total": 100, "startTime": TIME}
    states.shown.report(BOT, rebuild=rebuild | {"source": "a__1", "target": "a__2", "message": "copying"})

    assert states.state()["rebuild"] == {
        "kind": "Rebuild",
        "state": "Running",
        "summary": "step 2 of 8, Copy",
        "message": "copying",
        "copied": 40,
        "total": 100,
        "source": "a__1",
        "target": "a__2",
        "started_at": SHOWN_TIME,
        "moved_at": None,
        "ended_at": None,
    }


class TestSnapshots:
    def test_each_has_its_proof_and_place(self, states: States) -> None:
        bucket = {"type": "S3", "bucket": "copies", "endpoint": "https://key:secret@storage", "secret": "s3-key"}
        proven = snapshot_of("state-bot", "a", sizeBytes=7, points={"after": 3}, locations=[bucket | {"key": "k/1"}])
        states.shown.put(proven)

        found = states.state()

        assert found["snapshots"] == [
            {
                "name": "a",
                "phase": "Succeeded",
                "reason": "Verified",
                "message": "told",
                "progress": None,
                "done": None,
                "total": None,
                "started_at": SHOWN_TIME,
                "ended_at": None,
                "points": 3,
                "proven": True,
                "proven_at": SHOWN_TIME,
                "proof": "yes",
                "size_bytes": 7,
                "where": "s3://copies",
                "qdrant_version": None,
            }
        ]
        assert found["last_proven"] == found["snapshots"][0]
        assert not [word for word in ("key:secret", "s3-key", "k/1", "storage") if word in json.dumps(found)]

    @pytest.mark.parametrize(
        ("conditions", "phase", "proven", "proof"),
        [
            ([told("Progressing", "True", "Running")], "Running", None, "not finished: copying 3 of 9 points"),
            (
                [told("Succeeded", "True"), told("Progressing", "True", "Running")],
                "Running",
                None,
                "not known",
            ),
            ([told("Succeeded", "False", "DeadlineExceeded")], "Failed", None, "failed: DeadlineExceeded"),
            ([told("Succeeded", "True")], "Succeeded", None, "not known"),
            (
                [told("Succeeded", "True"), told("Verified", "False", "CopyDiffers")],
                "Succeeded",
                False,
                "no: CopyDiffers",
            ),
            (
                [told("Succeeded", "True"), told("Verified", "Unknown", "NotVerified")],
                "Succeeded",
                None,
                "not known: NotVerified",
            ),
            (
                [told("Succeeded", "False", "SnapshotLost"), told("Verified", "True")],
                "Failed",
                None,
                "failed: SnapshotLost",
            ),
        ],
        ids=["running", "verifying", "failed", "unverified", "bad", "unknown", "lost"],
    )
    def test_only_a_verified_one_is_proven(
        self, states: States, conditions: list[Any], phase: str, proven: bool | None, proof: str
    ) -> None:
        states.shown.put(snapshot_of("state-bot", "a", *conditions, progress="copying 3 of 9 points"))

        found = states.state()

        [snapshot] = found["snapshots"]
        assert (snapshot["phase"], snapshot["proven"], snapshot["proof"]) == (phase, proven, proof)
        assert found["last_proven"] is None
        assert (snapshot["done"], snapshot["total"]) == ((3, 9) if phase == "Running" else (None, None))

    def test_the_newest_are_shown_and_all_are_counted(self, states: States) -> None:
        for number in range(MAX_JOBS + 3):
            start = f"2026-10-01T03:{number:02}:00Z"
            states.shown.put(snapshot_of("state-bot", f"s{number}", told("Succeeded", "True"), startTime=start))
        states.shown.put(snapshot_of("state-bot", "old", startTime="2026-01-01T00:00:00Z"))

        found = states.state()

        assert [each["name"] for each in found["snapshots"]] == [f"s{number}" for number in range(MAX_JOBS + 2, 2, -1)]
        assert found["snapshots_total"] == MAX_JOBS + 4
        assert found["last_proven"]["name"] == "old"

    def test_those_of_other_agents_are_not_shown(self, states: States) -> None:
        states.shown.put(
            snapshot_of("state-away", "of-another"), snapshot_of("state-bot", "elsewhere", namespace="others")
        )

        assert states.state()["snapshots"] == []

    def test_those_that_were_not_read_are_null(self, qdrant_url: str) -> None:
        shown = ShownObjects(has_jobs=False)
        with running_api(qdrant_url, AWAY, shown=shown) as stack:
            found = httpx.get(f"{stack.api_url}/v1/agents/state-away/state").json()

        names = (
            "conditions",
            "drift",
            "capacity",
            "snapshots",
            "snapshots_total",
            "restores",
            "restores_total",
            "state",
        )
        assert [found[name] for name in names] == [None] * 8


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ({"snapshotRef": {"name": "nightly"}}, "snapshot nightly"),
        ({"s3": {"bucket": "copies", "key": "a/b", "secretRef": {"name": "s3-key"}}}, "s3://copies"),
        ({"url": "https://key:secret@files/s.snapshot?signature=x"}, "a URL"),
        ("text", None),
    ],
    ids=["snapshot", "bucket", "url", "forged"],
)
def test_restore_has_its_progress_and_no_credentials(states: States, source: Any, shown: str | None) -> None:
    waits = told("Progressing", "True", "WaitsForRestore", "waits for restore other")
    states.shown.put(restore_of("state-bot", "back", waits, source=source, progress="step 3 of 7: Verify"))

    [found] = states.state()["restores"]

    assert (found["phase"], found["reason"], found["message"]) == (
        "Running",
        "WaitsForRestore",
        "waits for restore other",
    )
    assert (found["progress"], found["done"], found["total"]) == ("step 3 of 7: Verify", 3, 7)
    assert found["source"] == shown
    assert "secret" not in json.dumps(found)


def test_rolled_back_restore_says_so(states: States) -> None:
    until = {"physical": "a__1", "until": "2026-11-22T03:00:00Z"}
    states.shown.put(restore_of("state-bot", "back", rolledBackTime=TIME, previousCollection=until))

    [found] = states.state()["restores"]

    assert (found["phase"], found["rolled_back_at"]) == ("Succeeded", SHOWN_TIME)
    assert found["previous_until"] == "2026-11-22T03:00:00.000Z"


class TestForgedStatus:
    """Tenants with rights on statuses can write whatever fits the schema, and files are not checked at all."""

    def test_texts_are_cut(self, states: States) -> None:
        long, markup = "x" * (1 << 20), "<script>alert(1)</script>\x1b[2J"
        forged = told("Ready", "False", long, long), told("InSync", "False", "AwaitingApproval", markup)
        plan = {"digest": long, "refusal": long, "changes": [CHANGE | {"from": long, "change": long}] * 64}
        states.shown.report(
            BOT, *forged, plan=plan, drift=[{"path": f"p{number}", "desired": long} for number in range(64)]
        )
        states.shown.put(snapshot_of("state-bot", "a", told("Succeeded", "False", "Bad", long), progress=long))

        answer = states.get("/state-bot/state")

        assert len(answer.content) < 200_000
        [ready, in_sync] = answer.json()["conditions"]
        assert (len(ready["message"]), len(ready["reason"])) == (MAX_MESSAGE_CHARS, MAX_VALUE_CHARS)
        assert in_sync["message"] == markup
        assert not {"approve", "undo"} & set(answer.json()["commands"])

    @pytest.mark.parametrize("digest", ["a\x1b[201~\nid\n", "a\u202eb", "a\x00", "x" * 200])
    def test_a_digest_that_a_terminal_interprets_is_no_command(self, states: States, digest: str) -> None:
        states.shown.report(BOT, *AWAITING, plan={"digest": digest, "changes": [CHANGE]})

        assert "approve" not in states.state()["commands"]

    def test_a_digest_is_quoted(self, states: States) -> None:
        states.shown.report(BOT, *AWAITING, plan={"digest": "a;$(id)'", "changes": [CHANGE]})

        assert states.state()["commands"]["approve"].endswith("""'agentmemory.dev/approve-plan=a;$(id)'"'"''""")

    @pytest.mark.parametrize(
        "status",
        [
            5,
            "text",
            [],
            {"conditions": "text"},
            {"conditions": [5]},
            {"conditions": [{"type": "Ready"}]},
            {"conditions": [told("Ready", "Maybe")]},
            {"plan": {"changes": [{"held": True, "field": None}, {"held": True, "field": "embedding."}]}},
            {"plan": {"changes": [CHANGE | {"field": "index.a"}, CHANGE | {"field": "index.a.b"}]}},
            {"rebuild": {"state": "Running", "copied": -5, "total": -1, "step": "Elsewhere"}},
            {"rebuild": {"state": "Held"}},
            {"drift": [{"path": "a", "since": "yesterday"}], "nextSnapshotTime": "9999-99-99T00:00:00Z"},
            {"observedGeneration": 10**30},
            {"observedGeneration": True},
        ],
        ids=str,
    )
    def test_wrong_types_are_left_out(self, states: States, status: Any) -> None:
        states.shown.put(BOT | {"status": status})
        states.shown.put(
            snapshot_of("state-bot", "a") | {"status": status, "spec": {"agentMemoryRef": {"name": "state-bot"}}}
        )

        found = states.state()

        assert len(found["snapshots"]) == 1

    def test_lone_surrogates_are_replaced(self, states: States) -> None:
        """JSON cannot contain them."""
        document = snapshot_of("state-bot", "bad\ud800")
        states.shown.put(document)

        assert states.state()["snapshots"][0]["name"] == "bad?"


def test_python_client_reads_each_part(qdrant_url: str) -> None:
    shown = ShownObjects()
    rebuild = {"kind": "Rebuild", "state": "Done", "endTime": TIME}
    shown.report(AWAY, *AWAITING, plan={"digest": "0123456789ab", "changes": [CHANGE]}, rebuild=rebuild)
    shown.put(snapshot_of("state-away", "a"), restore_of("state-away", "back"))
    with running_api(qdrant_url, AWAY, shown=shown) as stack, Client(stack.api_url) as client:
        [line], found = client.agents(), client.agent("state-away").state()

    assert line.state == found.state == "ready, not in sync (AwaitingApproval)"
    assert found.conditions is not None
    assert found.conditions[0].since == datetime(2026, 11, 21, 3, tzinfo=UTC)
    assert found.plan is not None
    assert found.plan.changes[0].desired == "16"
    assert found.rebuild is not None
    assert found.rebuild.ended_at == found.conditions[0].since
    assert found.snapshots == (found.last_proven,)
    assert found.restores is not None
    assert found.restores[0].source == "snapshot nightly"
    assert found.extra == found.plan.extra == found.restores[0].extra == {}


def test_without_a_cluster_the_commands_are_the_programs(qdrant_url: str) -> None:
    shown = ShownObjects(is_cluster=False)
    shown.report(AWAY, *AWAITING, plan={"digest": "0123456789ab", "changes": [CHANGE]})
    with running_api(qdrant_url, AWAY, shown=shown) as stack:
        commands = httpx.get(f"{stack.api_url}/v1/agents/state-away/state").json()["commands"]

    assert commands["approve"] == "agentmemory approve state-away -n agents"
    assert not [text for text in commands.values() if "kubectl" in text]
