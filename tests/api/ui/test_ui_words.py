"""What the pages say about their own limits: of a view of the past, a proof, a log, a backup."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from agentmemory_operator.entrypoints.api.ui import ask_page
from tests.api.ui.conftest import OPEN
from tests.api.ui.test_ui_pages import store
from tests.support.web.api_stack import Stack
from tests.support.web.page_reader import Browser, Page
from tests.support.web.shown_objects import ShownObjects, snapshot_of

AGENT = "/agents/ui-open"
NO_RECORD = "It is no record of the answer."


def erase(stack: Stack, user: str) -> str:
    body = {"user_id": user, "everything": True}
    return str(httpx.post(f"{stack.api_url}/v1{AGENT}/forget", json=body).json()["id"])


def moods(page: Page) -> list[str]:
    """Return the classes of the states that a page shows."""
    return [
        values["class"].removeprefix("state").strip()
        for _, values in page.elements
        if "state" in values.get("class", "")
    ]


class TestAsk:
    def test_a_view_of_the_past_is_no_record(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea", created_at="2026-03-03T10:00:00Z")
        asked = {"user_id": user, "query": "what does Ada drink"}

        now, past = browser.open(f"{AGENT}/ask", **asked), browser.open(f"{AGENT}/ask", **asked, at_time="2026-03-03")

        assert (NO_RECORD in now.text, NO_RECORD in past.text) == (False, True)
        assert "Ada drinks tea" in past.text

    @pytest.mark.parametrize(
        ("at", "is_found"),
        [
            ({"at_time": "2026-03-03", "at_clock": "09:59"}, False),
            ({"at_time": "2026-03-03", "at_clock": "10:01"}, True),
            ({"at_time": "2026-03-03T09:59"}, False),
            ({"at_clock": "09:59"}, True),
        ],
        ids=["before", "after", "one field", "no day"],
    )
    def test_a_day_has_a_time(
        self, browser: Browser, ui_stack: Stack, user: str, at: dict[str, str], is_found: bool
    ) -> None:
        store(ui_stack, user, "Ada drinks tea", created_at="2026-03-03T10:00:00Z")

        page = browser.open(f"{AGENT}/ask", user_id=user, query="what does Ada drink", **at)

        assert ("Ada drinks tea" in page.text) == is_found

    def test_shows_what_a_result_replaces(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        old = store(ui_stack, user, "Ada lives in <b>Berlin</b>")
        store(ui_stack, user, "Ada lives in Lisbon", supersedes=old)

        page = browser.open(f"{AGENT}/ask", user_id=user, query="where does Ada live")

        assert "replaces" in page.text
        assert "Ada lives in <b>Berlin</b>" in page.text
        assert [link for link in page.links() if f"/memories/{old}?" in link]

    def test_reads_few_replaced_memories(
        self, browser: Browser, ui_stack: Stack, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ask_page, "MAX_REPLACED", 2)
        for number in range(4):
            old = store(ui_stack, user, f"Ada was {number} times in Oslo")
            store(ui_stack, user, f"Ada was {number} times in Bergen", supersedes=old)

        page = browser.open(f"{AGENT}/ask", user_id=user, query="how often was Ada away")

        assert (page.text.count("in Bergen"), page.text.count("in Oslo")) == (4, 2)

    def test_a_missing_index_is_a_hint(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")

        page = browser.open(f"{AGENT}/ask", user_id=user, query="tea", at_time="2026-12-01")

        assert "An index would make this search faster" in page.text
        warnings = [values["class"] for _, values in page.elements if values.get("class") == "box warn"]
        assert (page.text.count("no index on"), len(warnings)) == (2, 1)


class TestTimeline:
    def test_what_was_replaced_was_true_then(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        old = store(ui_stack, user, "Ada lives in Berlin", created_at="2026-03-01T00:00:00Z")
        store(ui_stack, user, "Ada lives in Lisbon", created_at="2026-04-01T00:00:00Z", supersedes=old)

        past = browser.open(f"{AGENT}/timeline", user_id=user, at="2026-03-03")
        now = browser.open(f"{AGENT}/timeline", user_id=user, state="all")

        assert "true then, replaced since" in past.text
        assert "true then" not in now.text
        chips = [
            [values["class"] for _, values in page.elements if "chip" in values.get("class", "")]
            for page in (past, now)
        ]
        assert ["chip warn" in found for found in chips] == [False, True]


class TestMemory:
    def test_says_what_replaced_it(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        old = store(ui_stack, user, "Ada lives in Berlin", created_at="2026-03-01T00:00:00Z")
        new = store(ui_stack, user, "Ada lives in Lisbon", supersedes=old)

        page = browser.open(f"{AGENT}/memories/{old}", user_id=user)

        assert "by a later version" in page.text
        assert "or stored with an earlier time" in page.text
        assert [link for link in page.links() if f"/memories/{new}?" in link]
        assert "an earlier time" not in browser.open(f"{AGENT}/memories/{new}", user_id=user).text

    def test_names_the_log_of_its_looks(
        self, browser: Browser, ui_stack: Stack, user: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        id_ = store(ui_stack, user, "Ada drinks tea")

        with caplog.at_level("INFO"):
            text = browser.open(f"{AGENT}/memories/{id_}", user_id=user).text

        assert "kubectl -n agentmemory-system logs deployment/agentmemory-api | grep" in text
        assert f"| grep {id_}" in text
        assert "looks and questions in the explorer do not count" in text
        assert [record for record in caplog.records if f"/memories/{id_}" in record.getMessage()]


class TestErasure:
    def test_a_search_for_an_erased_user_leads_to_the_proof(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")
        erase(ui_stack, user)

        page = browser.open(f"{AGENT}/users", prefix=user)
        [link] = [link for link in page.links() if f"/receipts?user_id={user}" in link]

        assert "Erased: no memories are stored of this user" in browser.open(link.removeprefix("/ui")).text

    def test_the_proof_has_its_limits(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        erase(ui_stack, user)

        page = browser.open(f"{AGENT}/receipts", user_id=user)
        proof = browser.http.get(f"/ui{AGENT}/receipts/proof", params={"user_id": user}).json()

        assert "snapshots and other copies made before the erasure" in proof["does_not_cover"]
        assert "sorted ids of the erased memories, each followed by a line feed" in proof["how_to_check"]
        assert proof["does_not_cover"] in page.text
        assert "to get the proof of its erasure as a file" in browser.open(f"{AGENT}/receipts").text

    def test_a_change_leads_to_its_receipt(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        start = datetime.now(UTC).isoformat()
        receipt = erase(ui_stack, user)
        erase(ui_stack, f"{user}-later")
        changes = httpx.get(f"{ui_stack.api_url}/v1{AGENT}/changes", params={"since": start}).json()["results"]
        [time] = [change["at"] for change in changes if change["id"] == receipt]

        page = browser.open(f"{AGENT}/changes", since=start)
        [link] = [link for link in page.links() if link.endswith(f"#{receipt}")]
        receipts = browser.open(link.removeprefix("/ui"))

        assert "Oldest first." in page.text
        assert time[:19].replace("T", " ") in page.text
        rows = [values["id"] for tag, values in receipts.elements if tag == "tr" and "id" in values]
        assert rows[0] == receipt


class TestState:
    @pytest.fixture
    def shown(self, ui_stack: Stack, ui_objects: ShownObjects) -> Iterator[ShownObjects]:
        ui_objects.clear()
        ui_objects.report(OPEN)
        yield ui_objects
        ui_objects.clear()

    def test_an_agent_without_a_backup_is_a_warning(self, browser: Browser, shown: ShownObjects) -> None:
        without = browser.open(AGENT)
        shown.put(snapshot_of("ui-open", "first"))
        backed = browser.open(AGENT)

        assert ("no snapshot and no schedule" in without.text, "no snapshot and no schedule" in backed.text) == (
            True,
            False,
        )

    def test_a_choice_is_neither_good_nor_bad(self, browser: Browser, shown: ShownObjects) -> None:
        page = browser.open(AGENT)

        assert "spec.index.keyword is not enabled" in page.text
        assert moods(page)[:4] == ["good", "good", "", "warn"]

    def test_backups_say_what_proven_means(self, browser: Browser, shown: ShownObjects) -> None:
        text = browser.open(f"{AGENT}/backups").text

        assert "restored into a scratch collection, and its memories were compared" in text
        assert "on a machine with kubectl access to this cluster" in text


def test_an_agent_without_names_says_how_to_get_them(browser: Browser, user: str) -> None:
    page = browser.open("/agents/ui-strict/graph", user_id=user)

    assert "spec.entities.enabled: true" in page.text
    assert "alert" not in [values.get("role") for _, values in page.elements]


@pytest.mark.parametrize("path", ["ask", "timeline", "changes"])
def test_times_have_their_zone(browser: Browser, path: str) -> None:
    text = browser.open(f"{AGENT}/{path}").text

    assert "(UTC)" in text
    assert "All times are UTC." in text
