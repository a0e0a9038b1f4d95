"""What each view adds to the API: states, days, origins, terms of a score, proofs, and bounds of live pages."""

import pathlib
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
import yaml

from agentmemory_operator.entrypoints.api.ui import record_pages
from agentmemory_operator.entrypoints.api.ui.score_bars import parts_of
from agentmemory_operator.entrypoints.api.ui.timeline_page import LIST_ID
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.api.ui.conftest import OPEN as OPEN_DOCUMENT
from tests.api.ui.test_ui_pages import store
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.page_reader import Browser

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "explorer.md"
AGENT, WORDS_AGENT = "/agents/ui-open", "/agents/ui-words"
WORDS = agent_document(
    "ui-words",
    embedding={"provider": "wordllama", "dimensions": 64},
    index={"keyword": {"enabled": True}},
    scoring={"scoreThreshold": -1, "minSimilarity": -1, "evidence": {"date": 0.2, "terse": 0.1}},
    entities={},
)


@pytest.fixture(scope="module")
def words_stack(qdrant_url: str) -> Iterator[Stack]:
    """API of an agent with words, names and evidence."""
    create_collection(qdrant_url, WORDS)
    with running_api(qdrant_url, WORDS, serves_ui=True) as stack:
        yield stack


@pytest.fixture(scope="module")
def words_browser(words_stack: Stack) -> Iterator[Browser]:
    with Browser(words_stack.api_url) as opened:
        yield opened


def forget(stack: Stack, user: str) -> str:
    body = {"user_id": user, "everything": True}
    return str(httpx.post(f"{stack.api_url}/v1/agents/ui-open/forget", json=body, timeout=20).json()["id"])


class TestTimeline:
    def test_lists_the_chosen_state(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        old = store(ui_stack, user, "Ada lives in Berlin")
        store(ui_stack, user, "Ada lives in Lisbon", supersedes=old)
        store(ui_stack, user, "Ada was in Paris", pinned=True)

        def listed(state: str) -> list[bool]:
            text = browser.open(f"{AGENT}/timeline", user_id=user, state=state).text
            return [city in text for city in ("Berlin", "Lisbon", "Paris")]

        assert listed("") == [False, True, True]
        assert listed("all") == [True, True, True]
        assert listed("superseded") == [True, False, False]
        assert listed("pinned") == [False, False, True]
        assert browser.open(f"{AGENT}/timeline", user_id=user, state="expired").status == 422

    def test_has_the_days_as_a_table(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        for day in ("01", "01", "03"):
            store(ui_stack, user, f"note of {uuid4()}", created_at=f"2026-03-{day}T10:00:00Z")

        page = browser.open(f"{AGENT}/timeline", user_id=user)

        [plot] = [values for _, values in page.elements if values.get("id") == "plot"]
        assert plot["data-counts"] == "2,0,1"
        assert [link for link in page.links() if link.endswith("at=2026-03-02")]

    def test_a_move_replaces_the_list_only(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        """A move of the slider reads neither counts nor days, which take longer than the list."""
        for day in ("01", "03"):
            store(ui_stack, user, f"note of {day}", created_at=f"2026-03-{day}T10:00:00Z")

        moved = browser.http.get(
            f"/ui{AGENT}/timeline",
            params={"user_id": user, "at": "2026-03-02"},
            headers={"HX-Request": "true", "HX-Target": LIST_ID},
        )

        assert ("note of 01" in moved.text, "note of 03" in moved.text) == (True, False)
        assert (f'id="{LIST_ID}"' in moved.text, 'id="plot"' in moved.text) == (True, False)


class TestMemory:
    def test_shows_who_wrote_it_and_how_often_it_was_found(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        id_ = store(ui_stack, user, "Ada drinks tea", author="chief")

        page = browser.open(f"{AGENT}/memories/{id_}", user_id=user)

        assert "by chief" in page.text
        assert "Found by searchesnever" in page.text

    def test_names_the_line_of_the_log_that_has_looks(
        self, browser: Browser, ui_stack: Stack, user: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        id_ = store(ui_stack, user, "Ada drinks tea")

        with caplog.at_level("INFO"):
            text = browser.open(f"{AGENT}/memories/{id_}", user_id=user).text

        searched = text.partition('grep "')[2].partition('"')[0]
        assert searched
        assert [record for record in caplog.records if f"of user {searched} of agent" in record.getMessage()]

    def test_shows_what_it_was_made_from(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        first, second = store(ui_stack, user, "Ada drank tea on Monday"), store(ui_stack, user, "Ada drank tea again")
        gone = store(ui_stack, user, "Ada drank coffee")
        httpx.delete(f"{ui_stack.api_url}/v1{AGENT}/memories/{gone}", params={"user_id": user}, timeout=20)
        made = store(ui_stack, user, "Ada drinks tea", source_ids=[first, second, gone])

        page = browser.open(f"{AGENT}/memories/{made}", user_id=user)

        assert "Made from 3 memories" in page.text
        assert [content in page.text for content in ("on Monday", "tea again", "coffee")] == [True, True, False]
        assert "Deleted, or of another user" in page.text

    def test_shows_what_is_below_it_on_request(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        """Without an index, the engine reads all memories of the user for it."""
        parent = store(ui_stack, user, "Ada's order")
        store(ui_stack, user, "Two pounds of tea", parent_id=parent)

        page = browser.open(f"{AGENT}/memories/{parent}", user_id=user)
        [link] = [link for link in page.links() if link.endswith("#below")]
        below = browser.open(link.removeprefix("/ui").removesuffix("#below"))

        assert ("Two pounds" in page.text, "Two pounds" in below.text) == (False, True)


class TestAsk:
    def test_shows_words_and_evidence_as_parts_of_the_bar(
        self, words_browser: Browser, words_stack: Stack, user: str
    ) -> None:
        store(words_stack, user, "Ada drinks green tea", agent="ui-words")

        page = words_browser.open(f"{WORDS_AGENT}/ask", user_id=user, query="who drinks green tea")

        parts = [values["class"] for tag, values in page.elements if tag == "rect"]
        assert parts == ["term1", "term2", "term3", "term4", "term5"]
        assert "similaritywordsevidencerecencyutility" in page.text

    @pytest.mark.parametrize("query", ["who drinks green tea", "what did Anna Schmidt drink in March"])
    def test_parts_of_the_bar_add_up_to_the_score(self, words_stack: Stack, user: str, query: str) -> None:
        for content in ("Ada drinks green tea", "Anna Schmidt drank coffee with Carl Novak", "Carl Novak is in Rome"):
            store(words_stack, user, content, agent="ui-words")
        url = f"{words_stack.api_url}/v1{WORDS_AGENT}"
        settings = httpx.get(url, timeout=20).json()
        body = {"user_id": user, "query": query, "explain": True}

        explains = [found["explain"] for found in httpx.post(f"{url}/search", json=body, timeout=20).json()["results"]]

        sums = [sum(value for _, _, value in parts_of(explain, settings)) for explain in explains]
        assert len(sums) == 3
        assert sums == pytest.approx([explain["score"] / explain["boost"] for explain in explains], abs=1e-4)

    def test_patch_is_valid_in_a_manifest(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")
        sliders = {"w_similarity": "33", "w_recency": "33", "w_utility": "33"}

        page = browser.open(f"{AGENT}/ask", user_id=user, query="tea", **sliders)

        patch = yaml.safe_load(
            page.text.partition("Put these weights into the object")[2].partition("With the object")[0]
        )
        scoring = OPEN_DOCUMENT["spec"]["scoring"] | patch["spec"]["scoring"]
        parsed = parse_agent_memory(OPEN_DOCUMENT | {"spec": OPEN_DOCUMENT["spec"] | {"scoring": scoring}})
        weights = parsed.spec.scoring.weights
        assert (weights.similarity, weights.recency, weights.utility) == (0.333, 0.333, 0.334)


class TestUsers:
    def test_are_found_by_the_beginning_of_the_id(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        for name in (user, f"{user}-b", f"not-{user}"):
            store(ui_stack, name, "Ada drinks tea")

        page = browser.open(f"{AGENT}/users", prefix=user)

        links = [link.partition("user_id=")[2] for link in page.links() if "/timeline?user_id=" in link]
        assert links == [user, f"{user}-b"]

    def test_an_erased_user_can_be_opened(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")
        receipt = forget(ui_stack, user)

        page = browser.open(f"{AGENT}/users", prefix=user)
        [link] = [link for link in page.links() if f"/user?user_id={user}" in link]

        assert receipt in browser.open(link.removeprefix("/ui")).text


class TestReceipts:
    def test_prove_an_erasure(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")
        receipt = forget(ui_stack, user)

        page = browser.open(f"{AGENT}/receipts", user_id=user)
        [link] = [link for link in page.links() if "/receipts/proof" in link]
        file = browser.http.get(link)

        assert "Erased: no memories are stored of this user" in page.text
        proof = file.json()
        assert (proof["erased"]["id"], proof["memories"], proof["user_hash"] in page.text) == (receipt, 0, True)
        assert file.headers["content-disposition"] == 'attachment; filename="erasure.json"'

    def test_a_user_who_returned_is_not_erased(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea")
        forget(ui_stack, user)
        store(ui_stack, user, "Ada is back")

        page = browser.open(f"{AGENT}/receipts", user_id=user)

        assert "Not erased: 1 memory is stored of this user" in page.text
        assert browser.http.get(f"/ui{AGENT}/receipts/proof", params={"user_id": user}).json()["erased"] is None

    @pytest.mark.parametrize("path", ["receipts/proof", "export", "user"])
    def test_need_a_user(self, browser: Browser, path: str) -> None:
        assert browser.open(f"{AGENT}/{path}").status == 400

    def test_a_partial_receipt_proves_no_erasure(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        store(ui_stack, user, "Ada drinks tea", tags=["taste"])
        body = {"user_id": user, "filters": {"tags": "taste"}}
        httpx.post(f"{ui_stack.api_url}/v1{AGENT}/forget", json=body, timeout=20)

        page = browser.open(f"{AGENT}/receipts", user_id=user)

        assert "There is no receipt of an erasure of the whole user" in page.text

    def test_a_name_that_remains_is_said(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        forget(ui_stack, user)
        httpx.put(f"{ui_stack.api_url}/v1{AGENT}/users/{user}", json={"name": "Ada"}, timeout=20)

        page = browser.open(f"{AGENT}/receipts", user_id=user)

        assert "but the name is" in page.text


class TestGraph:
    def test_sends_one_request(
        self, words_browser: Browser, words_stack: Stack, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each reading of a graph reads up to 2,000 memories."""
        store(words_stack, user, "Anna Schmidt met Carl Novak in Paris", agent="ui-words")
        read, scopes = words_stack.services.graphs.read, []

        async def counted(*args: object, **options: object) -> object:
            scopes.append(args[1])
            return await read(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(words_stack.services.graphs, "read", counted)
        page = words_browser.open(f"{WORDS_AGENT}/graph", user_id=user)

        assert "Anna Schmidt" in page.text
        assert "All names of the newest 2,000 memories" in page.text
        assert scopes == [[user]]


class TestChanges:
    def test_start_with_the_last_day(self, browser: Browser, ui_stack: Stack, user: str) -> None:
        id_ = store(ui_stack, user, "Ada drinks tea")

        page = browser.open(f"{AGENT}/changes")

        [since] = [values["value"] for _, values in page.elements if values.get("name") == "since"]
        assert since
        assert id_ not in browser.open(f"{AGENT}/changes", user_id=user, since="9999-01-01T00:00").text

    def test_live_pages_leave_exports_to_others(
        self, browser: Browser, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record_pages, "MAX_STREAMS_PER_CALLER", 2)
        path, params = f"/ui{AGENT}/changes/stream", {"user_id": user}
        with browser.http.stream("GET", path, params=params), browser.http.stream("GET", path, params=params):
            refused = browser.http.get(path, params=params)

        assert (refused.status_code, "live pages of this caller" in refused.text) == (429, True)


# Question, page, fields that are typed, what the answer has.
QUESTIONS = (
    ("Why did this user get this answer?", "ask", ("user_id", "query"), "recency"),
    ("Why is a memory not in the answer?", "ask", ("user_id", "query"), "not searched since"),
    ("What did the agent believe on 3 March?", "timeline", ("user_id", "at"), "Ada lives in Berlin"),
    ("Who stored this?", "timeline", ("user_id",), "by chief"),
    ("Is this user erased?", "receipts", ("user_id",), "Not erased"),
)


@pytest.mark.parametrize(("question", "view", "fields", "answer"), QUESTIONS, ids=lambda part: str(part)[:12])
def test_a_question_takes_the_clicks_of_the_docs(
    browser: Browser, ui_stack: Stack, user: str, question: str, view: str, fields: tuple[str, ...], answer: str
) -> None:
    old = store(ui_stack, user, "Ada lives in Berlin", created_at="2026-03-01T00:00:00Z", author="chief")
    store(ui_stack, user, "Ada lives in Lisbon", created_at="2026-04-01T00:00:00Z", supersedes=old, author="chief")
    typed = {"user_id": user, "query": "where does Ada live", "at": "2026-03-03"}

    page, clicks = browser.open(""), 0
    for end in (AGENT, f"{AGENT}/{view}"):
        [link] = {link for link in page.links() if link.partition("?")[0].endswith(end)}
        page, clicks = browser.open(link.removeprefix("/ui")), clicks + 1
    [form] = [form for form in page.forms if form.action.endswith(f"/{view}")]
    values = {name: typed[name] for name in fields}
    page, clicks = browser.open(form.action.removeprefix("/ui"), **(form.values | values)), clicks + 1

    assert answer in page.text
    [row] = [row for row in DOCS.read_text().splitlines() if row.startswith(f"| {question} |")]
    assert row.endswith(f"| {clicks} | {len(fields)} |")
