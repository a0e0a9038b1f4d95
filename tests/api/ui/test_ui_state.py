"""The pages Agents and Backups show what the operator reports, with the commands to copy."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.ui.conftest import AWAY, GUARDED, OPEN
from tests.support.web.api_stack import Stack, running_api
from tests.support.web.page_reader import Browser, Page
from tests.support.web.shown_objects import TIME, ShownObjects, restore_of, snapshot_of, told

AGENT = "/agents/ui-open"
CHANGE = {
    "change": "rebuild",
    "class": "Rebuild",
    "field": "index.distance",
    "from": "Cosine",
    "to": "Dot",
    "held": True,
}
WAITING = told("InSync", "False", "AwaitingApproval", "approve the plan")
READY = told("Ready", "True", "Serving")
MARKUP = "<img src=x onerror=alert(1)>\u202e</td></table><script>alert(2)</script>"


@pytest.fixture
def shown(ui_stack: Stack, ui_objects: ShownObjects) -> Iterator[ShownObjects]:
    """Objects of the agents, of which the operator has reported nothing."""
    ui_objects.clear()
    ui_objects.put(OPEN, AWAY)
    yield ui_objects
    ui_objects.clear()


def polls(page: Page) -> list[str]:
    """Return what the page reads again by itself."""
    return [values["hx-get"] for _, values in page.elements if values.get("hx-trigger") == "every 5s"]


def bars(page: Page) -> list[tuple[str, str]]:
    return [(values["value"], values["max"]) for tag, values in page.elements if tag == "progress"]


def test_the_list_has_the_state_of_each_agent_in_words(browser: Browser, shown: ShownObjects) -> None:
    shown.report(OPEN, READY, WAITING)
    shown.report(AWAY, told("Ready", "False", "QdrantUnavailable", "start Qdrant"))

    text = browser.open("/agents").text

    assert "ui-awayNot ready (QdrantUnavailable)agents" in text
    assert "ui-openReady not in sync (AwaitingApproval)agents" in text
    assert "ui-strictReadyagents" in text


@pytest.mark.parametrize(
    ("type", "status", "reason", "mood"),
    [
        ("Ready", "True", "Serving", "good"),
        ("Ready", "False", "QdrantUnavailable", "bad"),
        ("InSync", "True", "Converged", "good"),
        ("InSync", "False", "Drifted", "warn"),
        ("Reconciling", "True", "QdrantUnavailable", "warn"),
        ("Stalled", "True", "InvalidSpec", "bad"),
        ("Suspended", "True", "Suspended", "warn"),
        ("TypesListed", "False", "TypeRemoved", "warn"),
        ("Outgrown", "True", "GraphOutgrown", "warn"),
        ("KeysUnavailable", "True", "KeysLost", "bad"),
        ("KeysUnavailable", "False", "KeysAvailable", "good"),
        ("Consolidated", "False", "ModelUnavailable", "warn"),
        ("SnapshotFresh", "False", "SnapshotOverdue", "warn"),
        ("SnapshotVerified", "False", "SnapshotBad", "bad"),
        ("SnapshotVerified", "Unknown", "NotVerified", "warn"),
    ],
)
def test_each_condition_is_shown_with_its_remedy(
    browser: Browser, shown: ShownObjects, type: str, status: str, reason: str, mood: str
) -> None:
    shown.report(OPEN, told(type, status, reason, "do this about it"))

    page = browser.open(AGENT)

    assert [word for word in (type, reason, "do this about it") if word not in page.text] == []
    moods = [values["class"] for tag, values in page.elements if tag == "span" and "state" in values.get("class", "")]
    assert moods[-1] == f"state {mood}"


def test_a_held_plan_has_its_difference_and_the_command(browser: Browser, shown: ShownObjects) -> None:
    plan = {"digest": "0123456789ab", "refusal": "a rebuild waits", "changes": [CHANGE], "costs": {"points": 7}}
    shown.report(OPEN, READY, WAITING, plan=plan)

    page = browser.open(AGENT)

    for words in ("Plan 0123456789ab", "a rebuild waits", "7 points", "index.distance", "Cosine", "Dot"):
        assert words in page.text
    assert "kubectl -n agents annotate amem ui-open --overwrite agentmemory.dev/approve-plan=0123456789ab" in page.text
    assert "patch amem ui-open" in page.text
    assert {"del", "ins"} <= {tag for tag, _ in page.elements}
    assert polls(page) == []


def test_drift_has_both_values(browser: Browser, shown: ShownObjects) -> None:
    shown.report(OPEN, drift=[{"path": "index.hnsw.m", "desired": "16", "observed": "24", "since": TIME}])

    text = browser.open(AGENT).text

    assert "Drift" in text
    assert [word for word in ("index.hnsw.m", "16", "24", "2026-11-21 03:00") if word not in text] == []


@pytest.mark.parametrize(
    ("state", "is_moving"), [("Running", True), ("Waiting", True), ("Paused", False), ("Held", False), ("Done", False)]
)
def test_a_rebuild_has_its_progress(browser: Browser, shown: ShownObjects, state: str, is_moving: bool) -> None:
    rebuild = {"kind": "Rebuild", "state": state, "step": "Copy", "copied": 40, "total": 100, "message": "so far"}
    shown.report(OPEN, rebuild=rebuild)

    page = browser.open(AGENT)

    assert "so far" in page.text
    assert bars(page) == ([] if state == "Done" else [("40", "100")])
    assert polls(page) == (["/ui/agents/ui-open"] if is_moving else [])


def test_a_held_rebuild_has_the_command_once(browser: Browser, shown: ShownObjects) -> None:
    rebuild = {
        "kind": "Rebuild",
        "state": "Held",
        "step": "Verify",
        "digest": "0123456789ab",
        "message": "recall drops",
    }
    shown.report(OPEN, rebuild=rebuild, plan={"digest": "0123456789ab-recall", "changes": [CHANGE | {"held": False}]})

    text = browser.open(AGENT).text

    assert text.count("agentmemory.dev/approve-plan=0123456789ab-recall") == 1
    assert "recall drops" in text


@pytest.mark.parametrize("path", [AGENT, f"{AGENT}/backups"])
def test_a_running_restore_has_its_progress(browser: Browser, shown: ShownObjects, path: str) -> None:
    shown.report(OPEN)
    runs = told("Progressing", "True", "Restoring", "step 3 of 7: Verify")
    shown.put(restore_of("ui-open", "back", runs, progress="step 3 of 7: Verify"))

    page = browser.open(path)
    part = Page(browser.http.get(f"/ui{path}", headers={"HX-Request": "true"}))

    assert [word for word in ("back", "snapshot nightly", "step 3 of 7: Verify") if word not in page.text] == []
    assert bars(page) == bars(part) == [("3", "7")]
    assert polls(page) == polls(part) == [f"/ui{path}"]

    shown.put(restore_of("ui-open", "back"))
    assert polls(browser.open(path)) == []


def test_capacity_is_shown_in_shares(browser: Browser, shown: ShownObjects) -> None:
    shown.report(OPEN)
    shown.connection = {"capacity": {"memoryMaps": {"used": 74, "limit": 100}, "openFiles": {"used": 3, "limit": 2}}}

    page = browser.open(AGENT)

    meters = [values["value"] for tag, values in page.elements if tag == "meter"]
    assert meters == ["0.74", "1"]
    assert [share for share in ("74 %", "150 %") if share not in page.text] == []


def test_an_agent_without_a_report_says_so(browser: Browser, shown: ShownObjects) -> None:
    page = browser.open("/agents/ui-away")

    assert page.status == 200
    assert "The operator has reported nothing about this object." in page.text
    assert "Last proven snapshotnone" in page.text.replace("\n", "")


class TestBackups:
    def test_each_snapshot_has_its_proof(self, browser: Browser, shown: ShownObjects) -> None:
        shown.report(OPEN)
        bad = told("Verified", "False", "CopyDiffers", "12 points differ")
        shown.put(
            snapshot_of("ui-open", "good", sizeBytes=12_300_000, points={"after": 4711}),
            snapshot_of("ui-open", "bad", told("Succeeded", "True"), bad),
            snapshot_of("ui-open", "lost", told("Succeeded", "False", "SnapshotLost", "the file is gone")),
            snapshot_of("ui-open", "plain", told("Succeeded", "True"), locations=[{"type": "Qdrant"}]),
        )

        page = browser.open(f"{AGENT}/backups")

        shown_words = (
            "good",
            "12.3 MB",
            "4,711",
            "not proven",
            "12 points differ",
            "the file is gone",
            "same disk",
            "not known",
        )
        assert [word for word in shown_words if word not in page.text] == []
        assert "The last snapshot that was proven by its verification is good" in page.text
        assert polls(page) == []

    @pytest.mark.parametrize(("locations", "is_warned"), [(["Qdrant"], True), (["Qdrant", "S3"], False)], ids=str)
    def test_a_copy_on_the_same_disk_is_a_warning(
        self, browser: Browser, shown: ShownObjects, locations: list[str], is_warned: bool
    ) -> None:
        shown.put(snapshot_of("ui-open", "good", locations=[{"type": kind, "bucket": "copies"} for kind in locations]))

        assert ("set spec.snapshots.storage" in browser.open(f"{AGENT}/backups").text) is is_warned

    def test_unproven_ones_alone_are_a_warning(self, browser: Browser, shown: ShownObjects) -> None:
        shown.put(snapshot_of("ui-open", "plain", told("Succeeded", "True")))

        assert "No snapshot is proven" in browser.open(f"{AGENT}/backups").text

    def test_the_page_has_manifests_and_commands(self, browser: Browser, shown: ShownObjects) -> None:
        text = browser.open(f"{AGENT}/backups").text

        assert "No snapshots" in text
        assert "kubectl agentmemory snapshot create ui-open -n agents --wait" in text
        assert "kubectl agentmemory restore ui-open -n agents --from SNAPSHOT --wait" in text
        assert "metadata: {generateName: ui-open-, namespace: agents}" in text

    def test_a_finished_restore_has_its_way_back(self, browser: Browser, shown: ShownObjects) -> None:
        kept = {"physical": "a__1", "until": "2026-11-22T03:00:00Z"}
        shown.put(
            restore_of("ui-open", "done", previousCollection=kept),
            restore_of("ui-open", "undone", rolledBackTime=TIME),
            restore_of("ui-open", "broken", told("Succeeded", "False", "SnapshotUnfit", "another embedding")),
        )

        text = browser.open(f"{AGENT}/backups").text

        words = ("kept until 2026-11-22 03:00", "rolled back", "another embedding")
        assert [word for word in words if word not in text] == []

    def test_objects_that_were_not_read_are_unknown(self, qdrant_url: str) -> None:
        shown = ShownObjects(is_cluster=False, has_jobs=False)
        with running_api(qdrant_url, AWAY, serves_ui=True, shown=shown) as stack, Browser(stack.api_url) as browser:
            page, agent = browser.open("/agents/ui-away/backups"), browser.open("/agents/ui-away")

        assert "The API has not read the snapshots." in page.text
        assert "agentmemory snapshot create ui-away -n agents --wait" in page.text
        assert "kubectl" not in page.text
        assert "Last proven snapshotunknown" in agent.text.replace("\n", "")


@pytest.mark.parametrize("path", ["/agents", AGENT, f"{AGENT}/backups"])
def test_no_text_of_a_status_becomes_a_part_of_a_page(browser: Browser, shown: ShownObjects, path: str) -> None:
    harmless = browser.open(path)
    change: Any = CHANGE | {"change": MARKUP, "field": f"index.{MARKUP}", "from": MARKUP, "to": MARKUP, "class": MARKUP}
    conditions = told("Ready", "False", MARKUP, MARKUP), told("InSync", "False", "AwaitingApproval", MARKUP)
    rebuild = {"state": "Running"} | dict.fromkeys(("kind", "step", "message", "source", "target"), MARKUP)
    plan = {"digest": "0123456789ab", "refusal": MARKUP, "changes": [change]}
    drift = [{"path": MARKUP, "desired": MARKUP, "observed": MARKUP}]
    shown.report(OPEN, *conditions, plan=plan, drift=drift, rebuild=rebuild)
    broken = told("Succeeded", "False", MARKUP, MARKUP)
    shown.put(
        snapshot_of("ui-open", MARKUP, broken, progress=MARKUP, locations=[{"type": "S3", "bucket": MARKUP}]),
        restore_of(
            "ui-open", MARKUP, told("Progressing", "True", MARKUP, MARKUP), source={"snapshotRef": {"name": MARKUP}}
        ),
    )

    page = browser.open(path)

    assert page.status == 200
    assert "\u202e" not in page.response.text
    scripts = [values for tag, values in page.elements if tag == "script"]
    assert len(scripts) == len([values for tag, values in harmless.elements if tag == "script"])
    assert all("nonce" in values for values in scripts)
    assert not any(tag == "img" and "onerror" in values for tag, values in page.elements)


def test_a_caller_of_some_users_sees_no_state(guarded_stack: Stack) -> None:
    with Browser(guarded_stack.api_url) as visitor:
        visitor.sign_in("token-bound")
        agent, backups = visitor.open("/agents/ui-guarded"), visitor.open("/agents/ui-guarded/backups")

    assert (agent.status, "Conditions" in agent.text) == (200, False)
    assert "limited to some users" in backups.text
    assert "kubectl" not in backups.text


def test_a_caller_without_read_sees_why(guarded_stack: Stack) -> None:
    with Browser(guarded_stack.api_url) as visitor:
        visitor.sign_in("token-storer")
        agent, backups = visitor.open("/agents/ui-guarded"), visitor.open("/agents/ui-guarded/backups")

    for page in (agent, backups):
        assert (page.status, "may write with agent" in page.text, "Conditions" in page.text) == (200, True, False)


def test_a_caller_who_may_read_sees_the_state(guarded_stack: Stack) -> None:
    with Browser(guarded_stack.api_url) as visitor:
        visitor.sign_in("token-reader")
        text = visitor.open("/agents/ui-guarded/backups").text

    assert "kubectl agentmemory snapshot list ui-guarded" in text
    assert GUARDED["metadata"]["namespace"] in text


def test_a_page_that_is_read_again_without_a_session_leads_to_the_sign_in(guarded_stack: Stack) -> None:
    answer = httpx.get(f"{guarded_stack.api_url}/ui/agents/ui-guarded", headers={"HX-Request": "true"})

    assert answer.headers["hx-redirect"] == "/ui/sign-in"
