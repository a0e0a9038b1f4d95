"""Attacks on the explorer: other applications of its host, hostile requests, texts and callers, and its records."""

import contextlib
import json
import logging
import socket
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.api.ui.explorer import AGENT_PAGES
from tests.api.ui.conftest import GUARDED as GUARDED_DOCUMENT
from tests.api.ui.test_ui_safety import XSS, check_elements
from tests.support.patience import wait_until
from tests.support.web import api_stack
from tests.support.web.api_stack import FixedSigningKey, Stack, create_collection, running_api
from tests.support.web.mem0_site import NamedTokens
from tests.support.web.page_reader import Browser, Form, Page
from tests.support.zone_agents import Keys, zoned_document

AGENT, OPEN = "/agents/ui-guarded", "/agents/ui-open"
PAGES = [path for method, path, _ in AGENT_PAGES if method == "GET"]
# Pages that show nothing of a user.
WITHOUT_USER = {"", "/users", "/backups"}
STREAMS = {"/changes/stream"}
METHODS = ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE")


@pytest.fixture
def user() -> str:
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture
def visitor(guarded_stack: Stack) -> Iterator[Browser]:
    """A browser that has not signed in."""
    with Browser(guarded_stack.api_url) as browser:
        yield browser


@pytest.fixture
def chief(visitor: Browser) -> Browser:
    """A browser of the account with all verbs."""
    visitor.sign_in("token-chief")
    return visitor


@pytest.fixture
def store(guarded_stack: Stack) -> Callable[..., str]:
    """Stores a memory in `ui-guarded`; returns its id."""

    def store(user: str, content: str, **more: object) -> str:
        answer = httpx.post(
            f"{guarded_stack.api_url}/v1{AGENT}/memories",
            json={"user_id": user, "content": content, **more},
            headers={"Authorization": "Bearer token-chief"},
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    return store


@contextlib.contextmanager
def opened(browser: Browser, path: str, **query: str) -> Iterator[httpx.Response]:
    """Open a page, of a stream only its begin."""
    with browser.http.stream("GET", f"/ui{path}", params=query) as response:
        if "event-stream" not in response.headers.get("content-type", ""):
            response.read()
        yield response


class TestCookies:
    @pytest.mark.parametrize(
        "other",
        [
            'theme={"dark": "yes no"}',
            'a="unclosed',
            "\xff\xfe=\xe9",
            "a" * 4000 + "=" * 4000,
            "path=/; secure",
            "=;=;,",
        ],
    )
    def test_those_of_other_applications_end_no_session(self, chief: Browser, other: str) -> None:
        own = chief.cookie
        chief.http.cookies.clear()

        for header in (f"{other}; {own}", f"{own}; {other}"):
            page = chief.http.get("/ui/agents", headers={b"Cookie": header.encode("latin-1")})
            assert page.url.path == "/ui/agents"

    @pytest.mark.parametrize("value", ["", "x", "gAAAAABp" + "A" * 200, '"quoted"'])
    def test_others_of_the_same_name_end_no_session(self, chief: Browser, value: str) -> None:
        """A page below another path or on another port of the host may have set them."""
        own = chief.cookie
        name = own.partition("=")[0]
        chief.http.cookies.clear()

        for header in (f"{name}={value}; {own}", f"{own}; {name}={value}"):
            assert chief.http.get("/ui/agents", headers={"Cookie": header}).url.path == "/ui/agents"

    def test_over_tls_no_other_host_can_replace_it(self, guarded_stack: Stack) -> None:
        """A host beside this one can set cookies of their domain, such as that of a session of its own."""
        host = guarded_stack.api_url.removeprefix("http://")
        with Browser(guarded_stack.api_url) as other, Browser(guarded_stack.api_url) as browser:
            other.sign_in("token-writer")
            form = browser.open("/sign-in").form()
            browser.http.headers["Origin"] = f"https://{host}"
            answer = browser.http.post(
                "/ui/sign-in", data=form.values | {"token": "token-chief"}, follow_redirects=False
            )
            own, *attributes = answer.headers["set-cookie"].split("; ")
            browser.http.cookies.clear()
            pages = [
                Page(browser.http.get("/ui/agents", headers={"Cookie": header}))
                for header in (own, f"{other.cookie}; {own}", f"{own}; {other.cookie}")
            ]

        assert own.startswith("__Host-agentmemory_ui")
        assert {"Path=/", "Secure", "HttpOnly", "SameSite=strict"} < {*attributes}
        assert len({page.form().values["csrf"] for page in pages}) == 1

    def test_over_tls_the_sign_out_removes_it(self, guarded_stack: Stack) -> None:
        with Browser(guarded_stack.api_url) as browser:
            form = browser.open("/sign-in").form()
            browser.http.headers["Origin"] = browser.http.headers["Origin"].replace("http:", "https:")
            answer = browser.http.post(
                "/ui/sign-in", data=form.values | {"token": "token-chief"}, follow_redirects=False
            )
            own = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
            browser.http.cookies.clear()
            form = Page(browser.http.get("/ui/agents", headers=own)).form()
            answer = browser.http.post("/ui/sign-out", data=form.values, headers=own, follow_redirects=False)

        assert answer.headers["set-cookie"].startswith(own["Cookie"].partition("=")[0] + '=""; ')
        assert "Max-Age=0" in answer.headers["set-cookie"]

    def test_opens_no_other_endpoint(self, chief: Browser) -> None:
        cookie = {"Cookie": chief.cookie}

        assert [chief.http.get(path, headers=cookie).status_code for path in ("/v1/agents", f"/v1{AGENT}/stats")] == [
            *(401, 401)
        ]


class TestForms:
    @pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
    def test_session_forms_need_their_token(self, chief: Browser, path: str) -> None:
        page = chief.send(Form(f"/ui{path}", "post", {"token": "token-writer"}))

        assert page.status == 403
        assert "Sign out" in chief.open("/agents").text

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    @pytest.mark.parametrize("path", ["/sign-in", "/sign-out", f"{AGENT}/user"])
    def test_other_sites_cannot_send_them(self, chief: Browser, path: str, site: str) -> None:
        csrf = chief.open("/agents").form().values["csrf"]
        chief.http.headers.update({"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"})
        del chief.http.headers["Origin"]

        assert chief.send(Form(f"/ui{path}", "post", {"csrf": csrf, "token": "token-chief"})).status == 403

    def test_their_responses_can_be_read_by_nobody_else(self, chief: Browser) -> None:
        answer = chief.http.get("/ui/agents")

        assert [name for name in answer.headers if name.startswith("access-control")] == []


def test_slow_sign_ins_leave_slots_to_callers(qdrant_url: str, guarded_stack: Stack) -> None:
    guard, limits = IdentityGuard(CallerCache(NamedTokens(), SystemClock())), Limits(unauthenticated=2)
    with (
        running_api(qdrant_url, GUARDED_DOCUMENT, guard=guard, limits=limits, serves_ui=True) as stack,
        contextlib.ExitStack() as connections,
    ):
        host = httpx.URL(stack.api_url)
        form = "content-type: application/x-www-form-urlencoded\r\ncontent-length: 99"
        for _ in range(8):
            slow = connections.enter_context(socket.create_connection((host.host, host.port or 80)))
            slow.sendall(f"POST /ui/sign-in HTTP/1.1\r\nhost: {host.host}\r\n{form}\r\n\r\na=".encode())
        answers = [
            httpx.get(f"{stack.api_url}/v1/agents", headers={"Authorization": f"Bearer token-{name}"})
            for name in ("chief", "writer")
        ]
        page = httpx.get(f"{stack.api_url}/ui/sign-in")

    assert [answer.status_code for answer in (*answers, page)] == [200, 200, 200]


class TestRequests:
    @pytest.mark.parametrize("host", ["[", "[::1", "a@b", "//", "a/b?c#d", "\xff", "x:99999", ""])
    def test_an_odd_host_is_no_server_error(self, visitor: Browser, host: str) -> None:
        for path in ("/agents", "/sign-in", "/nothing", "/static/x"):
            answer = visitor.http.get(
                f"/ui{path}", headers={b"Host": host.encode("latin-1"), b"Origin": b""}, follow_redirects=False
            )
            assert answer.status_code < 500
            assert "://" not in answer.headers.get("location", "")

    @pytest.mark.parametrize("name", ["X-Forwarded-Host", "X-Forwarded-Prefix", "Forwarded", "X-Original-URL"])
    def test_headers_of_a_proxy_change_no_address(self, visitor: Browser, name: str) -> None:
        for path in ("/agents", "/sign-in"):
            answer = visitor.http.get(f"/ui{path}", headers={name: "evil.example"}, follow_redirects=False)
            assert "evil.example" not in answer.text + str(answer.headers)

    @pytest.mark.parametrize("path", PAGES)
    @pytest.mark.parametrize(
        "query",
        [
            "user_id=%ff&query=%ff",
            "user_id=%00&query=%00&at=%00&at_time=%00&cursor=%00",
            "user_id=a&user_id=b&query=x&query=y",
            "user_id=u&query=q&top_k=" + "9" * 5000,
            "user_id=u&query=q&top_k=-1&w_similarity=nan&w_recency=nan&w_utility=-inf",
            "user_id=u&query=q&at=99999-01-01&at_time=9999-12-31T23:59&before=x&limit=-1",
            "user_id=u&query=q&at=9999-12-31&at_time=0001-01-01&session_id=" + "s" * 5000,
            "user_id=u&query=q&cursor=WyJhIiwxXQ==&before=99999999999999999999",
            "user_id=global&query=q",
            "user_id=group:" + "g" * 99 + "&query=q",
            "user_id=" + "u" * 20_000,
        ],
        ids=range(11),
    )
    def test_an_odd_query_is_no_server_error(self, chief: Browser, path: str, query: str) -> None:
        with chief.http.stream("GET", f"/ui{AGENT}{path.format(id=uuid4())}?{query}") as answer:
            assert answer.status_code < 500

    @pytest.mark.parametrize("method", METHODS)
    def test_an_odd_method_changes_nothing(
        self, chief: Browser, store: Callable[..., str], user: str, method: str
    ) -> None:
        id_ = store(user, "Ada drinks tea")
        for path in (*PAGES, "/nothing"):
            answer = chief.http.request(method, f"/ui{AGENT}{path.format(id=id_)}", params={"user_id": user})
            assert answer.status_code < 500
            assert "set-cookie" not in answer.headers

        assert chief.open(f"{AGENT}/memories/{id_}", user_id=user).status == 200

    @pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "0x1", ""])
    def test_an_odd_importance_changes_nothing(
        self, chief: Browser, store: Callable[..., str], user: str, value: str
    ) -> None:
        id_ = store(user, "Ada drinks tea", importance=0.25)
        form = chief.open(f"{AGENT}/memories/{id_}", user_id=user).form(action="importance")

        assert chief.send(form, importance=value).status in (400, 422)


def test_a_page_is_not_read_by_the_name_of_another_host(browser: Browser) -> None:
    """By DNS rebinding, the name of an attacker's host leads to loopback, where no token is required."""
    for path in ("/agents", "/sign-in", f"{OPEN}/export?user_id=ada", "/static/explorer.js"):
        answer = browser.http.get(
            f"/ui{path}", headers={"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
        )
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_restart_between_preview_and_erasure_ends_no_session(
    qdrant_url: str, guarded_stack: Stack, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes have the key of one Secret."""
    key = FixedSigningKey()
    monkeypatch.setattr(api_stack, "FixedSigningKey", lambda: key)
    guard = IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    body, headers = {"user_id": user, "content": "Ada drinks tea"}, {"Authorization": "Bearer token-chief"}
    with (
        running_api(qdrant_url, GUARDED_DOCUMENT, guard=guard, serves_ui=True) as stack,
        Browser(stack.api_url) as browser,
    ):
        httpx.post(f"{stack.api_url}/v1{AGENT}/memories", json=body, headers=headers)
        browser.sign_in("token-chief")
        preview = browser.send(browser.open(f"{AGENT}/user", user_id=user).form(action="preview"))
        cookie = browser.cookie
    with (
        running_api(qdrant_url, GUARDED_DOCUMENT, guard=guard, serves_ui=True) as stack,
        Browser(stack.api_url) as browser,
    ):
        browser.http.headers["Cookie"] = cookie
        pages = [browser.send(preview.form(action="erase"), typed=user) for _ in range(2)]

    assert ["Erased: 1 memory" in page.text for page in pages] == [True, True]


def test_without_the_key_of_the_cookies_pages_say_so(
    qdrant_url: str, guarded_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_stack, "FixedSigningKey", lambda: FixedSigningKey(key=None))
    guard = IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    with (
        running_api(qdrant_url, GUARDED_DOCUMENT, guard=guard, serves_ui=True) as stack,
        Browser(stack.api_url) as browser,
    ):
        pages = [browser.open(path) for path in ("/agents", "/sign-in", f"{AGENT}/export")]
        pages.append(browser.send(Form("/ui/sign-in", "post", {"token": "token-chief", "csrf": "x"})))

    for page in pages:
        check_headers(page.response)
        assert (page.status, "cannot be verified at the moment" in page.text) == (503, True)


class TestHeaders:
    def test_each_response_forbids_frames_and_guesses(self, chief: Browser, store: Callable[..., str]) -> None:
        store("ada", "Ada drinks tea")
        for path in ("", "/agents", "/static/explorer.css", "/static/none", "/nothing", f"{AGENT}/users"):
            answer = chief.http.get(f"/ui{path}", follow_redirects=False)
            check_headers(answer)
        for path in ("/export", "/changes/stream"):
            with opened(chief, f"{AGENT}{path}", user_id="ada") as answer:
                check_headers(answer)


def check_headers(answer: httpx.Response) -> None:
    policy = answer.headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "frame-ancestors 'none'" in policy) == (True, True)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_a_file_is_cached_as_its_own_version_only(visitor: Browser) -> None:
    page = visitor.open("/sign-in")
    [url] = [values["href"] for tag, values in page.elements if values.get("rel") == "stylesheet"]
    own, other = visitor.http.get(url), visitor.http.get(url[:-1] + ("0" if url[-1] != "0" else "1"))

    assert own.content == other.content
    assert "immutable" in own.headers["cache-control"]
    assert other.headers["cache-control"] == "no-store"


class TestRights:
    @pytest.mark.parametrize("path", PAGES)
    def test_a_user_token_reaches_no_other_user(
        self, visitor: Browser, guarded_stack: Stack, store: Callable[..., str], user: str, path: str
    ) -> None:
        store(user, "Ada drinks tea", session_id="s")
        id_ = store(f"{user}-other", "Eve drinks coffee with Zacharias", session_id="s", type="episodic")
        answer = httpx.post(
            f"{guarded_stack.api_url}/v1{AGENT}/tokens",
            json={"user_id": user, "verbs": ["read", "write", "admin"]},
            headers={"Authorization": "Bearer token-chief"},
        )
        visitor.sign_in(answer.json()["token"])

        for query in ({"user_id": f"{user}-other"}, {}, {"user_id": user}):
            with opened(visitor, f"{AGENT}{path.format(id=id_)}", **query, query="drinks") as shown:
                if path in STREAMS:
                    assert query == {"user_id": user} or shown.status_code == 403
                    continue
                texts = [word for word in ("coffee", "Zacharias") if word in shown.text]
            assert texts == []
            # The page of a user repeats the name that the request has.
            assert query.get("user_id", user) != user or f"{user}-other" not in shown.text

    def test_admin_alone_lists_the_receipts_of_a_user(self, visitor: Browser, user: str) -> None:
        visitor.sign_in("token-auditor")

        page = visitor.open(f"{AGENT}/receipts", user_id=user)

        assert (page.status, "No receipts" in page.text) == (200, True)

    @pytest.mark.parametrize("path", PAGES)
    def test_a_caller_without_read_sees_nothing(
        self, visitor: Browser, store: Callable[..., str], user: str, path: str
    ) -> None:
        id_ = store(user, "Ada drinks tea with Zacharias", type="preference")
        visitor.sign_in("token-storer")

        with opened(visitor, f"{AGENT}{path.format(id=id_)}", user_id=user, query="drinks") as shown:
            assert path not in STREAMS or shown.status_code == 403
            text = "" if path in STREAMS else shown.text
        assert [word for word in ("Zacharias", "preference") if word in text] == []


def test_no_page_shows_a_sealed_text(qdrant_url: str, user: str) -> None:
    """The second version has a longer text, so that a difference would show what was added."""
    document, fields = zoned_document("ui-sealed"), {"subject": "pregnant", "tags": ["pregnant"], "zone": "SENSITIVE"}
    create_collection(qdrant_url, document)
    body = {"user_id": user, "session_id": "s", "metadata": {"state": "pregnant"}, **fields}
    ids: list[str] = []
    with running_api(qdrant_url, document, zone_keys_of=Keys().of) as writing:
        for text in ("Ada is pregnant", "Ada is pregnant with Zacharias"):
            more = {"supersedes": ids[-1]} if ids else {}
            answer = httpx.post(f"{writing.api_url}/v1/agents/ui-sealed/memories", json=body | more | {"content": text})
            ids.append(answer.json()["id"])
    with (
        running_api(qdrant_url, document, zone_keys_of=Keys().of, serves_ui=True) as reading,
        Browser(reading.api_url) as browser,
    ):
        for path in sorted({*PAGES} - STREAMS):
            page = browser.open(f"/agents/ui-sealed{path.format(id=ids[-1])}", user_id=user, query="what of Ada")
            assert page.status == 200
            assert [word for word in ("pregnant", "Zacharias") if word in page.response.text] == []


class TestRecords:
    @pytest.mark.parametrize("path", [path for path in PAGES if path not in WITHOUT_USER])
    def test_each_look_is_recorded(
        self, chief: Browser, store: Callable[..., str], user: str, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        id_ = store(user, "Ada drinks tea with Zacharias")

        with (
            caplog.at_level(logging.INFO, logger="agentmemory_operator"),
            opened(chief, f"{AGENT}{path.format(id=id_)}", user_id=user, query="tea") as page,
        ):
            pass

        looks = [record.look for record in caplog.records if hasattr(record, "look")]
        assert page.status_code == 200
        assert [(look["agent"], len(look["user"])) for look in looks] == [("ui-guarded", 32)]
        assert user not in json.dumps(looks) + "".join(record.getMessage() for record in caplog.records)

    @pytest.mark.parametrize("path", ["/agents", "/sign-in", f"{AGENT}/user"])
    def test_each_request_is_in_the_access_log(
        self, chief: Browser, user: str, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A token that is guessed on the sign-in leaves a trace, as one that is guessed on the API does."""
        with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
            chief.open(path, user_id=user)

            # It is written after the response.
            wait_until(
                lambda: (
                    (f"/ui{path}", 200)
                    in [
                        (record.request["path"], record.request["status"])
                        for record in caplog.records
                        if hasattr(record, "request")
                    ]
                ),
                seconds=10,
            )

    def test_a_refused_export_is_no_look(self, visitor: Browser, caplog: pytest.LogCaptureFixture) -> None:
        visitor.sign_in("token-bound")

        with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
            answer = visitor.http.get(f"/ui{AGENT}/export", params={"user_id": "eve"})

        assert answer.status_code == 403
        assert [record for record in caplog.records if hasattr(record, "look")] == []

    def test_spellings_of_one_user_have_one_hash(self, chief: Browser, caplog: pytest.LogCaptureFixture) -> None:
        spellings = [unicodedata.normalize(form, "Zo\u00eb") for form in ("NFC", "NFD")]

        with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
            for spelling in spellings:
                chief.open(f"{AGENT}/timeline", user_id=spelling)

        hashes = [record.look["user"] for record in caplog.records if hasattr(record, "look")]
        assert (len(hashes), len(set(hashes))) == (2, 1)

    @pytest.mark.parametrize("action", ["pin", "importance", "supersede", "delete"])
    def test_a_change_names_the_hash_of_its_user(
        self, chief: Browser, store: Callable[..., str], user: str, action: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        page = chief.open(f"{AGENT}/memories/{store(user, 'Ada drinks tea')}", user_id=user)

        with caplog.at_level(logging.INFO, logger="agentmemory_operator"):
            chief.open(f"{AGENT}/timeline", user_id=user)
            chief.send(page.form(action=action))

        looks, changes = (
            {getattr(record, kind)["user"] for record in caplog.records if hasattr(record, kind)}
            for kind in ("look", "change")
        )
        assert looks == changes
        assert len(changes) == 1


class TestTexts:
    @pytest.mark.parametrize("text", XSS)
    def test_no_name_or_imported_field_becomes_a_part_of_a_page(self, browser: Browser, text: str) -> None:
        user, path = f"{uuid4().hex[:8]} {text}", f"/v1{OPEN}"
        ids, time = [str(uuid4()) for _ in range(2)], "2026-01-01T00:00:00Z"
        line: dict[str, object] = {
            "id": ids[0],
            "content": text,
            "created_at": time,
            "author": text,
            "observed_by": [text],
            "source": text,
        }
        line |= {"connections": [{"id": ids[1], "description": text}], "source_ids": [ids[1]], "namespace": [text]}
        line |= {"subject": text, "key": text, "context": {text: text}, "event_type": text, "role": "tool"}
        answers = [
            browser.http.put(f"{path}/users/{quote(user, safe='')}", json={"name": text}),
            browser.http.put(
                f"{path}/relations", json={"user_id": user, "source": text, "relation": "uses", "target": f"b {text}"}
            ),
            browser.http.post(
                f"{path}/import",
                params={"user_id": user},
                content=json.dumps(line),
                headers={"Content-Type": "application/x-ndjson"},
            ),
        ]

        for page in ("/graph", "/user", f"/memories/{ids[0]}", "/receipts", "/changes", "/timeline", "/users"):
            shown = browser.open(f"{OPEN}{page}", user_id=user, prefix=user)
            assert shown.status == 200
            check_elements(shown)
            # The page of receipts repeats the user in its form only.
            assert page == "/receipts" or text in shown.text

        assert [answer.status_code for answer in answers] == [200, 200, 200]

    @pytest.mark.parametrize("time", ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
    def test_an_odd_time_is_no_server_error(self, browser: Browser, user: str, time: str) -> None:
        line = {"created_at": time, "valid_from": time, "updated_at": time, "last_accessed_at": time, "content": "tea"}
        now = {"content": "coffee", "expires_at": "9999-12-31T23:59:59Z"}
        browser.http.post(
            f"/v1{OPEN}/import",
            params={"user_id": user},
            content="\n".join(map(json.dumps, (line, now))),
            headers={"Content-Type": "application/x-ndjson"},
        )

        for page in ("timeline", "user", "users", "changes", "graph", "ask", "receipts"):
            shown = browser.open(f"{OPEN}/{page}", user_id=user, query="tea", at="1970-01-02", since="1970-01-02")
            assert shown.status == 200
        assert "tea" in browser.open(f"{OPEN}/timeline", user_id=user).text

    def test_a_page_of_hidden_characters_is_bounded(self, chief: Browser, store: Callable[..., str], user: str) -> None:
        id_ = store(user, "a" + "\u202e" * 65_535)
        for _ in range(3):
            id_ = store(user, "b" + "\u202e\u2066" * 32_000, supersedes=id_)

        page = chief.open(f"{AGENT}/memories/{id_}", user_id=user)

        assert page.status == 200
        # The content, and the text field to supersede it, have 190 KB each.
        assert len(page.response.content) < 600_000

    def test_metadata_shows_its_letters_and_no_hidden_ones(
        self, chief: Browser, store: Callable[..., str], user: str
    ) -> None:
        id_ = store(user, "Ada drinks tea", metadata={"\u05e9\u05dd": "\u05e2\u05d3\u05d4\u202e"})

        page = chief.open(f"{AGENT}/memories/{id_}", user_id=user)

        assert '{"\u05e9\u05dd": "\u05e2\u05d3\u05d4RLO"}' in page.text

    def test_a_new_version_expires_as_the_old_one(self, chief: Browser, store: Callable[..., str], user: str) -> None:
        id_ = store(user, "Ada pays by card", expires_at="2099-01-01T00:00:00Z")
        page = chief.open(f"{AGENT}/memories/{id_}", user_id=user)

        after = chief.send(page.form(action="supersede"), content="Ada pays by invoice")

        assert "2099-01-01" in after.text.partition("Versions")[0]
