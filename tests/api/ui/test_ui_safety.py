"""The explorer gives nobody more than the API does, and no text of a memory becomes a part of its pages."""

import json
import logging
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.entrypoints.api.identity.auth import TokenGuard
from agentmemory_operator.entrypoints.api.ui.sessions import MAX_AGE_S
from tests.api.ui.conftest import OPEN as OPEN_DOCUMENT
from tests.support.engine.fakes import FakeClock
from tests.support.web.api_stack import ConstantSources, Stack, create_collection, running_api
from tests.support.web.page_reader import Browser, Form, Page
from tests.support.zone_agents import Keys, zoned_document

GUARDED, OPEN = "/agents/ui-guarded", "/agents/ui-open"
XSS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "javascript:alert(1)",
    "[link](javascript:alert(1)) ![image](https://evil.example/x.png)",
    "https://evil.example/",
    "{{ 7*7 }}{% raw %}${7*7}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<a href='//evil.example' hx-get='//evil.example' onclick=alert(1)>x</a>",
    "--><!--#exec cmd=ls--><style>@import '//evil.example'</style>",
)
HIDDEN = "safe\u202etxt.exe\u2066\u200b\u00ad\ufeff\U000e0041 end"


@pytest.fixture
def user() -> str:
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture
def visitor(guarded_stack: Stack) -> Iterator[Browser]:
    """A browser that has not signed in."""
    with Browser(guarded_stack.api_url) as browser:
        yield browser


def store(stack: Stack, agent: str, user: str, content: str, **more: object) -> str:
    answer = httpx.post(
        f"{stack.api_url}/v1{agent}/memories",
        json={"user_id": user, "content": content, **more},
        headers={"Authorization": "Bearer token-chief"},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_without_a_token_every_page_leads_to_the_sign_in(visitor: Browser) -> None:
    for path in ("", "/agents", GUARDED, f"{GUARDED}/ask", f"{GUARDED}/export", f"{GUARDED}/changes/stream"):
        page = visitor.open(path)
        assert (page.response.url.path, "ui-guarded" in page.text) == ("/ui/sign-in", False)


def test_a_token_signs_in_until_the_sign_out(visitor: Browser) -> None:
    home = visitor.sign_in("token-chief")
    cookie = visitor.cookie
    left = visitor.send(home.form())

    assert "ui-guarded" in home.text
    assert (left.response.url.path, visitor.open("/agents").response.url.path) == ("/ui/sign-in", "/ui/sign-in")
    assert "chief" not in cookie


@pytest.mark.parametrize("token", ["wrong", "", " ", "x" * 5000, "to\u00e9ken", "a\r\nSet-Cookie: b=c"])
def test_a_wrong_token_does_not_sign_in(visitor: Browser, token: str) -> None:
    page = visitor.sign_in(token)

    assert (page.status, "The token was not accepted" in page.text) == (401, True)
    assert visitor.open("/agents").response.url.path == "/ui/sign-in"


def test_the_cookie_is_for_this_site_and_an_hour(visitor: Browser) -> None:
    answer = visitor.http.get("/ui/sign-in")

    attributes = set(answer.headers["set-cookie"].lower().split("; ")[1:])
    assert attributes == {"httponly", "max-age=3600", "path=/ui", "samesite=strict"}


def test_over_tls_the_cookie_is_secure(guarded_stack: Stack) -> None:
    host = guarded_stack.api_url.removeprefix("http://")
    with Browser(guarded_stack.api_url) as browser:
        form = browser.open("/sign-in").form()
        browser.http.headers["Origin"] = f"https://{host}"
        answer = browser.http.post("/ui/sign-in", data=form.values | {"token": "token-chief"}, follow_redirects=False)

    assert "; Secure" in answer.headers["set-cookie"]


def test_a_session_ends_after_an_hour(visitor: Browser, ui_clock: FakeClock) -> None:
    visitor.sign_in("token-chief")
    ui_clock.move(ms=(MAX_AGE_S - 1) * 1000)
    before = visitor.open("/agents")
    ui_clock.move(ms=2000)
    after = visitor.open("/agents")

    assert (before.response.url.path, after.response.url.path) == ("/ui/agents", "/ui/sign-in")


@pytest.mark.parametrize("place", [0, 40, -10])
def test_a_changed_cookie_is_no_session(visitor: Browser, place: int) -> None:
    visitor.sign_in("token-chief")
    name, _, kept = visitor.cookie.partition("=")
    value = list(kept)
    value[place] = "A" if value[place] != "A" else "B"
    visitor.http.cookies.clear()
    answer = visitor.http.get("/ui/agents", headers={"Cookie": f"{name}={''.join(value)}"})

    assert answer.url.path == "/ui/sign-in"


@pytest.mark.parametrize("cookie", ["", "x", "\xff\xfe", "gAAAAA" * 900, '"', ";;;=", "a=b; c"])
def test_an_odd_cookie_is_no_error(visitor: Browser, cookie: str) -> None:
    visitor.open("/sign-in")
    name = visitor.cookie.partition("=")[0]
    visitor.http.cookies.clear()
    header = f"{name}={cookie}".encode("latin-1")
    answer = visitor.http.get("/ui/agents", headers={b"Cookie": header})

    assert (answer.status_code, answer.url.path) == (200, "/ui/sign-in")


def test_two_stacks_on_a_host_keep_their_sessions(visitor: Browser, guarded_stack: Stack) -> None:
    """Browsers send a cookie to every port of its host."""
    visitor.sign_in("token-chief")
    with (
        running_api(guarded_stack.qdrant_url, OPEN_DOCUMENT, guard=TokenGuard("x" * 32), serves_ui=True) as second,
        Browser(second.api_url) as other,
    ):
        other.http.cookies = visitor.http.cookies
        page = other.sign_in("x" * 32)
        cookies = set(other.http.cookies.items())

    assert page.response.url.path == "/ui/agents"
    assert set(visitor.http.cookies.items()) < cookies


def test_a_form_without_the_token_of_its_session_changes_nothing(
    visitor: Browser, guarded_stack: Stack, user: str
) -> None:
    id_ = store(guarded_stack, GUARDED, user, "Ada drinks tea")
    visitor.sign_in("token-chief")
    form = visitor.open(f"{GUARDED}/memories/{id_}", user_id=user).form(action="delete")
    with Browser(guarded_stack.api_url) as other:
        foreign = other.sign_in("token-chief").form().values["csrf"]

    for csrf in ("", "x", "\u00e9", foreign):
        assert visitor.send(form, csrf=csrf).status == 403
    assert visitor.open(f"{GUARDED}/memories/{id_}", user_id=user).status == 200


def test_without_authentication_forms_need_their_token_too(ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, OPEN, user, "Ada drinks tea")
    form = Form(f"/ui{OPEN}/memories/{id_}", "post", {"user_id": user, "action": "delete", "csrf": "guess"})
    with Browser(ui_stack.api_url) as browser:
        assert browser.send(form).status == 403
        browser.open("/agents")
        assert browser.send(form).status == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_requests_of_other_sites_are_refused(visitor: Browser, origin: str) -> None:
    form = visitor.open("/sign-in").form()
    visitor.http.headers["Origin"] = origin

    assert visitor.send(form, token="token-chief").status == 403


@pytest.mark.parametrize(("name", "offered"), [("reader", set()), ("writer", {"pin", "supersede", "delete"})])
def test_a_page_offers_what_the_caller_may_do(
    visitor: Browser, guarded_stack: Stack, user: str, name: str, offered: set[str]
) -> None:
    id_ = store(guarded_stack, GUARDED, user, "Ada drinks tea")
    visitor.sign_in(f"token-{name}")

    page = visitor.open(f"{GUARDED}/memories/{id_}", user_id=user)
    erasing = visitor.open(f"{GUARDED}/user", user_id=user)

    assert {form.values.get("action") for form in page.forms} >= offered
    assert bool({"pin", "supersede", "delete"} & {form.values.get("action") for form in page.forms}) == bool(offered)
    assert "Erase this user" not in erasing.text


def test_a_form_that_was_not_offered_is_refused(visitor: Browser, guarded_stack: Stack, user: str) -> None:
    id_ = store(guarded_stack, GUARDED, user, "Ada drinks tea")
    csrf = visitor.sign_in("token-reader").form().values["csrf"]
    values = {"csrf": csrf, "user_id": user, "typed": user}

    for path, action in (("user", "erase"), ("user", "preview"), (f"memories/{id_}", "delete")):
        page = visitor.send(Form(f"/ui{GUARDED}/{path}", "post", values | {"action": action}))
        assert page.status == 403
    assert visitor.open(f"{GUARDED}/memories/{id_}", user_id=user).status == 200


def test_a_caller_of_some_users_sees_no_other(visitor: Browser, guarded_stack: Stack) -> None:
    id_ = store(guarded_stack, GUARDED, "eve", "Eve hides the key under the mat")
    visitor.sign_in("token-bound")
    paths = (f"/memories/{id_}", "/timeline", "/ask", "/user", "/changes", "/graph", "/receipts", "/users")

    for path in paths:
        page = visitor.open(f"{GUARDED}{path}", user_id="eve", query="key")
        assert "mat" not in page.text
        assert "limited to some users" in page.text or "may not act for" in page.text or page.status == 404
    assert visitor.http.get(f"/ui{GUARDED}/export", params={"user_id": "eve"}).status_code == 403


def test_every_response_has_the_safe_headers(visitor: Browser) -> None:
    pages = [visitor.open("/sign-in"), visitor.sign_in("wrong"), visitor.sign_in("token-chief"), visitor.open("/x")]

    for page in pages:
        headers = page.response.headers
        [nonce] = {values["nonce"] for tag, values in page.elements if tag == "script"}
        policy = headers["content-security-policy"]
        assert f"script-src 'nonce-{nonce}'" in policy
        assert ("unsafe" in policy, "default-src 'none'" in policy, "frame-ancestors 'none'" in policy) == (
            *(False, True, True),
        )
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert headers["referrer-policy"] == "same-origin"
    policies = {page.response.headers["content-security-policy"] for page in pages}
    assert len(policies) == len(pages)


def check_elements(page: Page) -> None:
    """Fail if a page has an element, attribute or address that its templates do not have."""
    for tag, values in page.elements:
        assert tag not in {"iframe", "object", "embed", "base", "style"}
        assert [name for name in values if name.startswith(("on", "style", "srcdoc"))] == []
        if tag == "img":
            assert values["src"].startswith("/ui/static/icon.svg")
        if tag == "script":
            assert values["src"].startswith("/ui/static/")
    assert [link for link in page.links() if not link.startswith(("/ui", "#main"))] == []


@pytest.mark.parametrize("text", XSS)
def test_no_text_becomes_a_part_of_a_page(browser: Browser, ui_stack: Stack, text: str) -> None:
    user = f"{uuid4().hex[:8]} {text}"
    fields = {"session_id": text, "tags": [text], "speaker": text, "subject": text, "category": text, "domain": text}
    fields |= {"metadata": {text: [text]}, "author": text, "context": text, "status_value": text}
    old = store(ui_stack, OPEN, user, f"earlier {text}", **fields)
    new = store(ui_stack, OPEN, user, text, supersedes=old, **fields)
    queries = {"user_id": user, "query": text, "type": text, "tag": text, "session_id": text, "at": text}

    pages = [
        browser.open(f"{OPEN}/memories/{new}", user_id=user),
        browser.open(f"{OPEN}/timeline", user_id=user),
        browser.open(f"{OPEN}/ask", user_id=user, query=text),
        browser.open(f"{OPEN}/users"),
        browser.send(browser.open(f"{OPEN}/user", user_id=user).form(action="preview")),
        browser.open(f"{OPEN}/changes", user_id=user),
    ]
    odd = [browser.open(f"{OPEN}/{path}", **queries) for path in ("ask", "timeline", "changes", "graph", "receipts")]
    odd += [browser.open(f"/agents/{httpx.URL(text.replace('/', '')).raw_path.decode()}")]

    for page in (*pages, *odd):
        check_elements(page)
    for page in pages[:3]:
        assert text in page.text
    assert pages[0].form(action="supersede").values["content"] == text


def test_hidden_characters_are_shown_by_name(browser: Browser, ui_stack: Stack, user: str) -> None:
    id_ = store(ui_stack, OPEN, user, HIDDEN)

    page = browser.open(f"{OPEN}/memories/{id_}", user_id=user)

    marks = [values["title"].split(" ")[0] for tag, values in page.elements if values.get("class") == "mark"]
    assert marks[:6] == ["U+202E", "U+2066", "U+200B", "U+00AD", "U+FEFF", "U+E0041"]
    assert HIDDEN not in page.text.replace(page.form(action="supersede").values["content"], "")
    assert page.form(action="supersede").values["content"] == HIDDEN


def test_letters_of_other_scripts_stay_as_they_are(browser: Browser, ui_stack: Stack, user: str) -> None:
    persian, hindi = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0939\u093f\u0928\u094d\u0926\u0940"
    text = f"{persian} {hindi} \U0001f468\u200d\U0001f469"
    store(ui_stack, OPEN, user, text)

    assert text in browser.open(f"{OPEN}/timeline", user_id=user).text


def test_a_look_is_recorded_without_the_user(
    visitor: Browser, guarded_stack: Stack, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = store(guarded_stack, GUARDED, user, "Ada drinks tea")
    visitor.sign_in("token-chief")

    with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
        visitor.open(f"{GUARDED}/memories/{id_}", user_id=user)

    [look] = [record.look for record in caplog.records if hasattr(record, "look")]
    assert ("agents/chief" in look["caller"], look["agent"], look["count"]) == (True, "ui-guarded", 1)
    assert (len(look["user"]), user in json.dumps(look)) == (32, False)


def test_a_change_is_recorded_without_the_user(
    visitor: Browser, guarded_stack: Stack, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    store(guarded_stack, GUARDED, user, "Ada drinks tea")
    visitor.sign_in("token-chief")

    with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
        preview = visitor.send(visitor.open(f"{GUARDED}/user", user_id=user).form(action="preview"))
        before = [record for record in caplog.records if hasattr(record, "change")]
        visitor.send(preview.form(action="erase"), typed=user)

    [change] = [record.change for record in caplog.records if hasattr(record, "change")]
    assert before == []
    assert ("agents/chief" in change["caller"], change["method"], change["path"]) == (True, "POST", "/forget")
    assert (len(change["user"]), user in json.dumps(change)) == (32, False)


def test_before_the_agents_are_loaded_a_page_says_so(qdrant_url: str, ui_stack: Stack) -> None:
    sources = ConstantSources(None, 0.0, unread="the objects were not read yet")
    with (
        running_api(qdrant_url, OPEN_DOCUMENT, sources=sources, serves_ui=True) as stack,
        Browser(stack.api_url) as browser,
    ):
        page = browser.open("/agents")

    assert (page.status, "the objects were not read yet" in page.text) == (503, True)
    assert page.response.headers["content-type"].startswith("text/html")


def test_no_page_has_a_token(visitor: Browser) -> None:
    pages = [visitor.sign_in("token-chief"), visitor.open(GUARDED), visitor.sign_in("token-wrong-secret")]

    assert [page.response.text.count("token-") for page in pages] == [0, 0, 0]


@pytest.mark.parametrize("size", [16_385, 1 << 21])
def test_a_large_sign_in_is_refused(visitor: Browser, size: int) -> None:
    form = visitor.open("/sign-in").form()

    assert visitor.send(form, token="x" * size).status == 413


def test_static_files_are_these_only(visitor: Browser) -> None:
    for name in ("..%2fpages.py", "%2e%2e/pages.py", "htmx-LICENSE.txt", "..\\pages.py", ""):
        assert "def " not in visitor.http.get(f"/ui/static/{name}").text
    css = visitor.http.get("/ui/static/explorer.css")
    assert css.headers["content-type"].startswith("text/css")


def test_the_explorer_is_off_unless_it_is_set(stack: Stack) -> None:
    answer = httpx.get(f"{stack.api_url}/ui/agents")

    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.mark.parametrize("name", ["etag", "operation", "user_id", "action", "importance", "content"])
def test_an_odd_value_of_a_form_is_no_server_error(browser: Browser, ui_stack: Stack, user: str, name: str) -> None:
    id_ = store(ui_stack, OPEN, user, "Ada drinks tea")
    page = browser.open(f"{OPEN}/memories/{id_}", user_id=user)

    for form in page.forms:
        for value in ("", "\u20ac\u0000", "a\r\nb: c", "9" * 400):
            assert browser.send(form, **{name: value}).status < 500


@pytest.mark.parametrize("path", ["/agents", f"{GUARDED}/ask?query=a%22b&user_id=u", "/sign-in"])
def test_a_link_of_another_site_keeps_the_session(visitor: Browser, path: str) -> None:
    visitor.sign_in("token-chief")
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Cookie": ""}
    answer = visitor.http.get(f"/ui{path}", headers=link, follow_redirects=False)

    [refresh] = [values["content"] for tag, values in Page(answer).elements if values.get("http-equiv") == "refresh"]
    assert refresh == f"0; url=/ui{path}"
    assert "set-cookie" not in answer.headers
    assert "Sign out" in visitor.open("/agents").text


def test_a_sealed_memory_stays_locked_without_its_key(qdrant_url: str, user: str) -> None:
    document = zoned_document("ui-zones")
    create_collection(qdrant_url, document)
    with running_api(qdrant_url, document, zone_keys_of=Keys().of) as writing:
        body = {"user_id": user, "content": "Ada is pregnant", "zone": "SENSITIVE"}
        id_ = httpx.post(f"{writing.api_url}/v1/agents/ui-zones/memories", json=body).json()["id"]
    with (
        running_api(qdrant_url, document, zone_keys_of=Keys().of, serves_ui=True) as reading,
        Browser(reading.api_url) as browser,
    ):
        pages = [
            browser.open(f"/agents/ui-zones/{path}", user_id=user, query="what about Ada")
            for path in (f"memories/{id_}", "timeline", "ask")
        ]

    for page in pages:
        assert (page.status, "pregnant" in page.text) == (200, False)
    # The memory's vector is sealed too, so no search finds it.
    assert ["Locked: the key of zone SENSITIVE" in page.text for page in pages] == [True, True, False]


def test_a_user_token_reaches_its_user_only(visitor: Browser, guarded_stack: Stack, user: str) -> None:
    store(guarded_stack, GUARDED, user, "Ada drinks tea")
    store(guarded_stack, GUARDED, f"{user}-other", "Eve drinks coffee")
    answer = httpx.post(
        f"{guarded_stack.api_url}/v1{GUARDED}/tokens",
        json={"user_id": user, "verbs": ["read"]},
        headers={"Authorization": "Bearer token-chief"},
    )
    visitor.sign_in(answer.json()["token"])

    own, other = (visitor.open(f"{GUARDED}/timeline", user_id=name) for name in (user, f"{user}-other"))

    assert (own.status, "Ada drinks tea" in own.text) == (200, True)
    assert (other.status, "coffee" in other.text) == (403, False)


def test_the_static_token_signs_in(qdrant_url: str, ui_stack: Stack) -> None:
    with (
        running_api(qdrant_url, OPEN_DOCUMENT, guard=TokenGuard("static-secret"), serves_ui=True) as stack,
        Browser(stack.api_url) as browser,
    ):
        refused, accepted = browser.sign_in("other"), browser.sign_in("static-secret")

    assert (refused.status, "ui-open" in accepted.text) == (401, True)
