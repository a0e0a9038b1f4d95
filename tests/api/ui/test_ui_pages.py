"""The pages of the explorer show what the API has."""

from uuid import uuid4

import httpx
import pytest

from tests.support.web.api_stack import Stack
from tests.support.web.page_reader import Browser, Page

AGENT = "/agents/ui-open"


@pytest.fixture
def user() -> str:
    return f"user-{uuid4().hex[:8]}"


def store(stack: Stack, user: str, content: str, *, agent: str = "ui-open", **more: object) -> str:
    answer = httpx.post(
        f"{stack.api_url}/v1/agents/{agent}/memories", json={"user_id": user, "content": content, **more}, timeout=20
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_the_home_lists_agents_with_their_state(browser: Browser) -> None:
    page = browser.open("")

    assert page.response.url.path == "/ui/agents"
    assert "ui-open" in page.text
    assert ("Ready" in page.text, "Not ready" in page.text) == (True, True)


def test_an_agent_that_is_away_shows_the_reason(browser: Browser, ui_stack: Stack) -> None:
    page = browser.open("/agents/ui-away")

    reason = httpx.get(f"{ui_stack.api_url}/v1/agents/ui-away", timeout=20).json()["detail"]
    assert page.status == 200
    assert reason in page.text


def test_unknown_agents_and_pages_are_404_pages(browser: Browser) -> None:
    for path in ("/agents/none", "/agents/none/ask", "/nothing", f"{AGENT}/nothing"):
        page = browser.open(path)
        assert (page.status, "Not found" in page.text) == (404, True)
        assert page.response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["ask", "timeline", "changes", "receipts", "graph", "users", "backups"])
def test_a_page_without_content_says_so(browser: Browser, path: str) -> None:
    page = browser.open(f"{AGENT}/{path}")

    assert page.status == 200
    assert page.text.count("Traceback") == 0
    assert "<main" in page.response.text


def test_ask_shows_each_term_of_a_score(browser: Browser, ui_stack: Stack, user: str) -> None:
    store(ui_stack, user, "Ada drinks tea")

    page = browser.open(f"{AGENT}/ask", user_id=user, query="what does she drink")

    assert "Ada drinks tea" in page.text
    terms = [values["class"] for tag, values in page.elements if tag == "rect"]
    assert terms == ["term1", "term2", "term3"]
    assert "1 memory matches the filters" in page.text


def test_sliders_search_again_and_print_the_patch(browser: Browser, ui_stack: Stack, user: str) -> None:
    store(ui_stack, user, "Ada drinks tea")
    sliders = {"w_similarity": "10", "w_recency": "80", "w_utility": "10"}

    page = browser.open(f"{AGENT}/ask", user_id=user, query="tea", **sliders)

    assert "weights: {similarity: 0.1, recency: 0.8, utility: 0.1}" in page.text
    assert ("With the object's weights" in page.text, "With these weights" in page.text) == (True, True)


def test_ask_shows_what_each_threshold_removed(browser: Browser, ui_stack: Stack, user: str) -> None:
    for content in ("Ada drinks tea", "The invoice 4711 was paid in March"):
        store(ui_stack, user, content, agent="ui-strict", created_at="2026-01-01T00:00:00Z")

    page = browser.open("/agents/ui-strict/ask", user_id=user, query="which tea does Ada drink")

    assert "No result" in page.text
    tea, _, invoice = page.text.partition("The invoice")
    assert "removed by the score threshold" in tea
    assert "removed by the minimum similarity" in invoice


@pytest.mark.parametrize("bad", ["nan", "inf", "-5", "text", "1e999"])
def test_odd_sliders_are_no_error(browser: Browser, ui_stack: Stack, user: str, bad: str) -> None:
    store(ui_stack, user, "Ada drinks tea")

    page = browser.open(f"{AGENT}/ask", user_id=user, query="tea", w_similarity=bad, w_recency=bad, w_utility=bad)

    assert page.status == 200
    assert "Ada drinks tea" in page.text


def test_a_look_counts_no_access(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada drinks tea")
    last_access = ui_stack.services.access_counts.last_ms

    browser.open(f"{AGENT}/ask", user_id=user, query="tea")
    browser.open(f"{AGENT}/memories/{id_}", user_id=user)
    looked_ms = last_access("ui-open", id_)
    httpx.post(f"{ui_stack.api_url}/v1/agents/ui-open/search", json={"user_id": user, "query": "tea"}, timeout=20)

    assert looked_ms == 0
    assert last_access("ui-open", id_) > 0


def test_the_timeline_shows_what_was_believed_at_a_day(browser: Browser, ui_stack: Stack, user: str) -> None:
    old = store(ui_stack, user, "Ada lives in Berlin", created_at="2026-02-01T10:00:00Z")
    store(ui_stack, user, "Ada lives in Lisbon", created_at="2026-04-01T10:00:00Z", supersedes=old)
    store(ui_stack, user, "Ada was in Paris", created_at="2026-05-01T10:00:00Z", valid_from="2026-01-01T00:00:00Z")

    now, then = (browser.open(f"{AGENT}/timeline", user_id=user, at=at).text for at in ("", "2026-03-03"))

    # What was valid then but stored later was not known.
    assert [city in now for city in ("Berlin", "Lisbon", "Paris")] == [False, True, True]
    assert [city in then for city in ("Berlin", "Lisbon", "Paris")] == [True, False, False]


def test_the_timeline_has_pages(browser: Browser, ui_stack: Stack, user: str) -> None:
    memories = [{"user_id": user, "content": f"note {number}."} for number in range(60)]
    httpx.post(f"{ui_stack.api_url}/v1/agents/ui-open/memories/batch", json={"memories": memories}, timeout=20)

    first = browser.open(f"{AGENT}/timeline", user_id=user)
    [older] = [link for link in first.links() if "cursor=" in link]
    second = browser.open(older.removeprefix("/ui"))

    shown = [{number for number in range(60) if f"note {number}." in page.text} for page in (first, second)]
    assert (len(shown[0]), len(shown[1]), len(shown[0] | shown[1])) == (50, 10, 60)


def test_a_memory_shows_versions_with_their_difference(browser: Browser, ui_stack: Stack, user: str) -> None:
    old = store(ui_stack, user, "Ada pays by card")
    new = store(ui_stack, user, "Ada pays by invoice", supersedes=old)

    page = browser.open(f"{AGENT}/memories/{new}", user_id=user)

    assert "<del>card</del><ins>invoice</ins>" in page.response.text


def test_a_memory_shows_its_neighbours_in_the_session(browser: Browser, ui_stack: Stack, user: str) -> None:
    [_, id_, _] = [store(ui_stack, user, text, session_id="s") for text in ("First", "Second", "Third")]

    page = browser.open(f"{AGENT}/memories/{id_}", user_id=user)

    assert page.text.index("First") < page.text.rindex("Second") < page.text.index("Third")


def change(page: Page, browser: Browser, action: str, **values: str) -> Page:
    return browser.send(page.form(action=action), **values)


def test_a_memory_is_pinned_changed_and_superseded(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada pays by card", tags=["billing"], session_id="s")
    page = browser.open(f"{AGENT}/memories/{id_}", user_id=user)

    page = change(page, browser, "pin")
    page = change(page, browser, "importance", importance="0.9")
    page = change(page, browser, "supersede", content="Ada pays by invoice")

    [memory] = httpx.get(f"{ui_stack.api_url}/v1/agents/ui-open/memories", params={"user_id": user}, timeout=20).json()[
        "results"
    ]
    kept = {name: memory[name] for name in ("content", "pinned", "importance", "tags", "session_id", "supersedes")}
    assert kept == {
        "content": "Ada pays by invoice",
        "pinned": True,
        "importance": 0.9,
        "tags": ["billing"],
        "session_id": "s",
        "supersedes": id_,
    }
    assert page.response.url.path.endswith(memory["id"])


def test_a_repeated_form_stores_one_version(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada pays by card")
    form = browser.open(f"{AGENT}/memories/{id_}", user_id=user).form(action="supersede")

    pages = [browser.send(form, content="Ada pays by invoice") for _ in range(2)]

    assert pages[0].response.url == pages[1].response.url


def test_a_form_of_an_old_page_changes_nothing(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada pays by card")
    page = browser.open(f"{AGENT}/memories/{id_}", user_id=user)
    change(page, browser, "pin")

    refused = change(page, browser, "delete")

    assert refused.status == 412
    assert browser.open(f"{AGENT}/memories/{id_}", user_id=user).status == 200


def test_a_deletion_ends_on_the_timeline(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada pays by card")
    page = browser.open(f"{AGENT}/memories/{id_}", user_id=user)

    after = change(page, browser, "delete")

    assert after.response.url.path.endswith("/timeline")
    assert browser.open(f"{AGENT}/memories/{id_}", user_id=user).status == 404


def test_an_erasure_shows_its_extent_first_and_the_receipt_after(browser: Browser, ui_stack: Stack, user: str) -> None:
    store(ui_stack, user, "Ada pays by card")
    page = browser.send(browser.open(f"{AGENT}/user", user_id=user).form(action="preview"))
    assert "1 memory would be erased" in page.text

    refused = browser.send(page.form(action="erase"), typed="another")
    assert "Nothing was erased" in refused.text
    erased = browser.send(refused.form(action="erase"), typed=user)

    assert "Erased: 1 memory" in erased.text
    [receipt] = httpx.get(
        f"{ui_stack.api_url}/v1/agents/ui-open/receipts", params={"user_id": user}, timeout=20
    ).json()["results"]
    assert (receipt["id"] in erased.text, receipt["sha256"] in erased.text) == (True, True)
    for path in ("receipts", "user"):
        assert receipt["id"] in browser.open(f"{AGENT}/{path}", user_id=user).text


def test_an_export_is_a_file(browser: Browser, ui_stack: Stack, user: str) -> None:
    store(ui_stack, user, "Ada pays by card")

    answer = browser.http.get(f"/ui{AGENT}/export", params={"user_id": user})

    assert answer.headers["content-disposition"] == 'attachment; filename="memories.ndjson"'
    assert "Ada pays by card" in answer.text


def test_changes_are_listed_and_streamed(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, user, "Ada pays by card")

    page = browser.open(f"{AGENT}/changes", user_id=user)
    with browser.http.stream("GET", f"/ui{AGENT}/changes/stream", params={"user_id": user}) as stream:
        event = next(line for line in stream.iter_lines() if line.startswith("data: "))

    assert id_ in page.text
    assert id_ in event
    assert stream.headers["content-type"].startswith("text/event-stream")
