"""Authors, subjects bound to users, and user tokens; a table of tokens replaces the reviews."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest

from agentmemory_client import AsyncClient, Client
from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.user_tokens import PREFIX
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.collections.rules.claims import AgentClaim
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.endpoints import (
    DOCUMENT,
    ENDPOINTS,
    INTRUDED,
    REQUESTS,
    VECTOR,
    WITHOUT_USER,
    Endpoint,
    arguments_of,
    endpoints_with_user,
    stored_item_of,
    user_request,
)

ALL = ("read", "write", "admin", "impersonate", "delegate")
SECRET = "the safe opens with 4711"
# Endpoints that act on a user; an `{id}` in the path is that of the user's memory.
OF_A_USER = [endpoint for endpoint in ENDPOINTS if endpoint not in WITHOUT_USER]


def subject(name: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": [*verbs]} | more


SUBJECTS = [
    subject("chief", *ALL, scopes=["global", "group:team"]),
    subject("plain", "read", "write"),
    subject("mover", "read", "write", "impersonate"),
    subject("bound", "read", "write", "admin", "delegate", users=["ada", "bob"], scopes=["group:team"]),
]
VOICES = agent_document(
    "voices",
    types=[{"name": "fact", "halfLifeDays": 365}, {"name": "working", "halfLifeDays": 1}],
    entities={},
    scoring={"scoreThreshold": -1, "minSimilarity": -1},
    access={"subjects": SUBJECTS},
)
OTHER = agent_document("others", access={"subjects": [subject("chief", *ALL)]})


class ByName:
    """Accepts the tokens `token-NAME`."""

    async def review(self, token: str) -> TokenReviewResult:
        return TokenReviewResult(caller=Caller("agents", token.removeprefix("token-")))


@dataclass(frozen=True, slots=True)
class Site:
    """An API with the agent `voices`."""

    stack: Stack
    http: httpx.Client

    def send(self, endpoint: Endpoint, user: str, *, token: str, id: str = "", **more: Any) -> httpx.Response:
        """Send an endpoint's request for a user."""
        return self.http.request(**(arguments_of(endpoint, user, agent="voices", id=id, token=token) | more))

    def ask(self, name: str, method: str, path: str, agent: str = "voices", **arguments: Any) -> httpx.Response:
        """Send a request as the account of a name, or with a user token."""
        token = name if name.startswith(PREFIX) else f"token-{name}"
        headers = {"Authorization": f"Bearer {token}"} | arguments.pop("headers", {})
        return self.http.request(method, f"/v1/agents/{agent}{path}", headers=headers, **arguments)

    def store(self, name: str, **more: Any) -> httpx.Response:
        body = {"user_id": "ada", "content": uuid4().hex, "vector": VECTOR} | more
        return self.ask(name, "POST", "/memories", json=body)

    def read(self, memory_id: str, user: str = "ada") -> dict[str, Any]:
        answer = self.ask("chief", "GET", f"/memories/{memory_id}", params={"user_id": user})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def mint(self, name: str = "chief", user: str = "ada", *verbs: str, **more: Any) -> httpx.Response:
        body = {"user_id": user, "verbs": list(verbs or ("read", "write", "admin"))} | more
        return self.ask(name, "POST", "/tokens", json=body)

    def token(self, *arguments: Any, **more: Any) -> str:
        answer = self.mint(*arguments, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    def put(self, **changes: Any) -> None:
        """Replace the agent's object in the directory."""
        settings = replace(settings_of(VOICES), **changes)
        metadata = VOICES["metadata"]
        claim = AgentClaim(uid=metadata["uid"], created=metadata["creationTimestamp"], settings=settings)
        self.stack.services.directory.put(claim)


def settings_of(document: dict[str, Any]) -> AgentSettings:
    return effective_settings(parse_agent_memory(document))


@pytest.fixture(scope="module")
def site(qdrant_url: str) -> Iterator[Site]:
    create_collection(qdrant_url, VOICES)
    create_collection(qdrant_url, OTHER)
    guard = IdentityGuard(CallerCache(ByName(), SystemClock()))
    with (
        running_api(qdrant_url, VOICES, OTHER, guard=guard) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as http,
    ):
        yield Site(stack, http)


@pytest.fixture
def whole(site: Site) -> Iterator[Site]:
    """The site, for a test that changes the agent's object; restored afterwards."""
    yield site
    site.put()


class TestAuthors:
    def test_author_is_the_storing_account(self, site: Site) -> None:
        found = site.read(site.store("plain").json()["id"])

        assert (found["author"], found["observed_by"], found["observation_count"]) == (
            *("agents/plain", ["agents/plain"], 1),
        )

    @pytest.mark.parametrize("author", ["agents/chief", "plain", "agents/plain ", "Agents/plain", "system"])
    def test_foreign_author_is_403(self, site: Site, author: str) -> None:
        answer = site.store("plain", author=author)

        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (403, "/problems/forbidden")
        assert [error["field"] for error in problem["errors"]] == ["author"]
        assert repr(author) in problem["detail"]
        assert "add impersonate" in problem["detail"]

    def test_impersonate_allows_any_author(self, site: Site) -> None:
        authors = [site.read(site.store("mover", **named).json()["id"])["author"] for named in ({}, {"author": "eve"})]

        assert authors == ["agents/mover", "eve"]

    def test_foreign_author_fails_only_its_batch_item(self, site: Site) -> None:
        items = [
            {"user_id": "ada", "content": uuid4().hex, "vector": VECTOR, "author": author} for author in ("eve", None)
        ]

        answer = site.ask("plain", "POST", "/memories/batch", json={"memories": items})

        first, second = answer.json()["results"]
        assert (first["error"]["status"], first["error"]["errors"][0]["field"]) == (403, "author")
        assert site.read(second["id"])["author"] == "agents/plain"

    def test_items_and_working_memory_have_authors(self, site: Site) -> None:
        put = site.ask("plain", "PUT", "/items", **stored_item_of("ada", "the first"))
        assert site.read(put.json()["memory_id"])["author"] == "agents/plain"
        again = site.ask("mover", "PUT", "/items", **stored_item_of("ada", "the second"))
        kept = site.ask(
            *("plain", "PUT", "/sessions/s/working"), params={"user_id": "ada"}, json={"content": "c", "vector": VECTOR}
        )

        item = site.read(again.json()["memory_id"])
        assert (item["author"], item["observed_by"]) == ("agents/mover", ["agents/mover"])
        assert site.read(kept.json()["id"])["author"] == "agents/plain"

    def test_item_put_by_another_changes_author(self, site: Site) -> None:
        for name in ("plain", "mover"):
            put = site.ask(name, "PUT", "/items", **stored_item_of("bob", "the same"))

        assert site.read(put.json()["memory_id"], "bob")["author"] == "agents/mover"

    def test_new_content_resets_speaker_and_observers(self, site: Site) -> None:
        key = uuid4().hex
        line = {"item": True, "namespace": ["memories", "ada"], "key": key, "content": "old", "vector": VECTOR}
        line |= {"author": "eve", "observed_by": ["eve", "dan"], "speaker": "Eve", "role": "user"}
        import_lines(site, "mover", line)
        sent = {"params": {"namespace": ["memories", "ada"], "key": key}, "json": {"content": "new", "vector": VECTOR}}
        put = site.ask("plain", "PUT", "/items", **sent)

        found = site.read(put.json()["memory_id"])
        assert [found[name] for name in ("author", "speaker", "role", "observed_by", "observation_count")] == [
            *("agents/plain", None, None, ["agents/plain"], 1)
        ]

    def test_idempotency_key_is_shared_by_accounts(self, site: Site) -> None:
        body = {"user_id": "ada", "content": uuid4().hex, "vector": VECTOR}
        sent = {"json": body, "headers": {"Idempotency-Key": uuid4().hex}}

        answers = [site.ask(name, "POST", "/memories", **sent) for name in ("plain", "mover")]

        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[0].json()["id"] == answers[1].json()["id"]


def import_lines(site: Site, name: str, *lines: dict[str, Any], user: str = "ada") -> dict[str, Any]:
    content = "\n".join(json.dumps(line) for line in lines)
    headers = {"Content-Type": "application/x-ndjson"}
    answer = site.ask(name, "POST", "/import", params={"user_id": user}, content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


class TestImports:
    def line(self, **more: Any) -> dict[str, Any]:
        return {"id": str(uuid4()), "content": uuid4().hex, "vector": VECTOR} | more

    def test_foreign_lines_are_refused_by_number(self, site: Site) -> None:
        lines = [
            self.line(),
            self.line(author="eve"),
            self.line(author="agents/plain", observed_by=["agents/plain"]),
            self.line(observed_by=["agents/plain", "eve"]),
        ]

        result = import_lines(site, "plain", *lines)

        assert result["counts"] | {} == {"lines": 4, "imported": 2, "present": 0, "failed": 2}
        errors = [
            (error["line"], error["error"]["status"], error["error"]["errors"][0]["field"])
            for error in result["errors"]
        ]
        assert errors == [(2, 403, "author"), (4, 403, "observed_by")]
        assert [site.read(line["id"])["author"] for line in (lines[0], lines[2])] == ["agents/plain"] * 2

    def test_impersonate_imports_original_authors(self, site: Site) -> None:
        lines = [self.line(), self.line(author="eve", observed_by=["eve", "dan"], observation_count=9)]

        assert import_lines(site, "mover", *lines)["counts"]["imported"] == 2
        found = [site.read(line["id"]) for line in lines]
        assert [(one["author"], one["observed_by"], one["observation_count"]) for one in found] == [
            *((None, [], 1), ("eve", ["eve", "dan"], 2))
        ]

    def test_speaker_and_role_roundtrip(self, site: Site) -> None:
        user, target = uuid4().hex, uuid4().hex
        site.store("plain", user_id=user, speaker="Ada Lovelace", role="assistant")
        line = json.loads(site.ask("plain", "GET", "/export", params={"user_id": user}).text.splitlines()[0])

        result = import_lines(site, "plain", {**line, "user_id": target, "id": None, "vector": VECTOR}, user=target)
        assert result["counts"]["imported"] == 1, result
        [found] = site.ask("plain", "GET", "/memories", params={"user_id": target}).json()["results"]
        assert (found["speaker"], found["role"], found["author"]) == ("Ada Lovelace", "assistant", "agents/plain")


def test_search_filters_by_speaker_and_role(site: Site) -> None:
    user = uuid4().hex
    for speaker, role in (("Ada", "user"), ("Bob", "user"), (None, "tool"), (None, None)):
        site.store("plain", user_id=user, speaker=speaker, role=role)

    def count(**filters: Any) -> int:
        body = {"user_id": user, "vector": VECTOR, "filters": filters}
        return len(site.ask("plain", "POST", "/search", json=body).json()["results"])

    assert [count(role="user"), count(speaker="Ada"), count(speaker=None), count(role={"ne": "user"})] == [2, 1, 2, 2]


@pytest.mark.parametrize(
    "wrong", [{"role": "moderator"}, {"role": ""}, {"speaker": " "}, {"speaker": "a\nb"}, {"speaker": "x" * 257}]
)
def test_invalid_speaker_or_role_is_422(site: Site, wrong: dict[str, str]) -> None:
    answer = site.store("plain", **wrong)

    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [*wrong])


class TestUsers:
    """Access of a bound subject and a user token to other users, on each endpoint of the OpenAPI document."""

    def test_document_lists_endpoints_with_a_user(self) -> None:
        named_by_namespace = {("GET", "/v1/agents/{agent}/keys")}

        assert {*endpoints_with_user(DOCUMENT)} | named_by_namespace == {*OF_A_USER}
        assert {*REQUESTS} == {*ENDPOINTS}

    @pytest.fixture(params=["bound", "token"])
    def limited_token(self, request: pytest.FixtureRequest, site: Site) -> str:
        """Token of `ada`'s application."""
        return "token-bound" if request.param == "bound" else site.token()

    @pytest.fixture
    def owner(self, site: Site) -> tuple[str, str]:
        """A new user, and the id of its only memory."""
        user = f"user-{uuid4().hex[:8]}"
        answer = site.ask("chief", "PUT", "/items", **stored_item_of(user, SECRET))
        memory_id = answer.json()["memory_id"]
        return user, memory_id

    def memories(self, site: Site, user: str) -> dict[str, str]:
        found = site.ask("chief", "GET", "/memories", **user_request(user)).json()["results"]
        return {memory["id"]: memory["content"] for memory in found}

    @pytest.mark.parametrize("endpoint", OF_A_USER, ids=" ".join)
    def test_other_user_is_refused(
        self, site: Site, limited_token: str, owner: tuple[str, str], endpoint: Endpoint
    ) -> None:
        user, memory_id = owner

        answer = site.send(endpoint, user, token=limited_token, id=memory_id)

        refused = [result["error"]["status"] for result in answer.json()["results"]] if answer.is_success else []
        assert answer.status_code == (404 if "{id}" in endpoint[1] else 403) or refused == [403], answer.text
        assert SECRET not in answer.text
        assert self.memories(site, user) == {memory_id: SECRET}

    @pytest.mark.parametrize("endpoint", OF_A_USER, ids=" ".join)
    def test_own_user_is_served(self, site: Site, limited_token: str, endpoint: Endpoint) -> None:
        """Proves that the requests which are refused for other users are valid."""
        memory_id = site.ask("chief", "PUT", "/items", **stored_item_of("ada", SECRET)).json()["memory_id"]

        answer = site.send(endpoint, "ada", token=limited_token, id=memory_id)

        if endpoint[1].endswith("/tokens") and limited_token.startswith(PREFIX):
            assert answer.status_code == 403, answer.text
        else:
            assert answer.is_success, answer.text
            assert '"error"' not in answer.text

    @pytest.mark.parametrize("path", ["/state", "/stats", "/receipts", "/users"])
    def test_all_users_are_refused(self, site: Site, limited_token: str, path: str) -> None:
        answer = site.http.get(f"/v1/agents/voices{path}", headers={"Authorization": f"Bearer {limited_token}"})

        assert answer.status_code == 403, answer.text
        assert site.ask("chief", "GET", path).status_code == 200

    @pytest.mark.parametrize(
        "parameters",
        [
            {"user_id": ["ada", "eve"]},
            {"user_id": ["eve", "ada"]},
            {"user_id": "ada", "namespace": ["memories", "eve"]},
            {"user_id": "ada", "include_scopes": "global"},
            {"user_id": "global"},
            {"user_id": "Ada"},
            {"user_id": "ada "},
        ],
    )
    def test_alternative_names_are_no_bypass(self, site: Site, limited_token: str, parameters: dict[str, Any]) -> None:
        answer = site.http.get(
            "/v1/agents/voices/memories", params=parameters, headers={"Authorization": f"Bearer {limited_token}"}
        )

        assert answer.status_code == 403, answer.text

    def test_search_excludes_scopes_without_rights(self, site: Site, limited_token: str) -> None:
        sent = {"user_id": "ada", "vector": VECTOR}
        for scope in ("global", "group:team"):
            site.store("chief", user_id=scope, content=f"{scope} {uuid4().hex}")

        headers = {"Authorization": f"Bearer {limited_token}"}
        answer = site.http.post("/v1/agents/voices/search", json=sent, headers=headers)
        assert {found["user_id"] for found in answer.json()["results"]} <= {"ada"}
        closed = site.http.post("/v1/agents/voices/search", json=sent | {"include_scopes": ["global"]}, headers=headers)
        assert closed.status_code == 403

    def test_refusal_names_field_user_and_fix(self, site: Site) -> None:
        problem = site.store("bound", user_id="eve").json()

        assert problem["errors"] == [
            {
                "field": "user_id",
                "message": "agents/bound may not act for user 'eve' of agent 'voices': add it to its"
                " users in the object's spec.access.subjects",
            }
        ]

    def test_agent_list_has_the_tokens_agent_only(self, site: Site) -> None:
        token = site.token()

        listed = site.http.get("/v1/agents", headers={"Authorization": f"Bearer {token}"}).json()["results"]

        assert [line["agent"] for line in listed] == ["voices"]
        tools = site.http.get("/v1/tools", params={"agent": "others"}, headers={"Authorization": f"Bearer {token}"})
        assert tools.status_code == 404


class TestTokens:
    def test_token_is_returned_once_with_its_expiry(self, site: Site) -> None:
        answer = site.mint("chief", "ada", "read", ttl_seconds=60)

        assert {*answer.json()} == {"token", "expires_at"}
        assert answer.headers["cache-control"] == "no-store"

    def test_each_verb_opens_its_own_endpoints(self, site: Site) -> None:
        token = site.token("chief", "ada", "read")

        assert site.ask(token, "GET", "/memories", params={"user_id": "ada"}).status_code == 200
        refused = site.store(token)
        assert (refused.status_code, "request a token with write" in refused.json()["detail"]) == (403, True)

    def test_author_is_the_minting_account(self, site: Site) -> None:
        token = site.token()

        assert site.read(site.store(token, speaker="Ada", role="user").json()["id"])["author"] == "agents/chief"
        assert site.store(token, author="agents/plain").status_code == 403
        assert site.store(site.token("chief", "ada", "write", "impersonate"), author="eve").status_code == 201

    @pytest.mark.parametrize(
        ("name", "sent", "status", "field"),
        [
            ("plain", {}, 403, None),
            ("bound", {"user_id": "eve"}, 403, "user_id"),
            ("bound", {"user_id": "global"}, 403, "user_id"),
            ("bound", {"verbs": ["read", "impersonate"]}, 403, "verbs"),
            ("chief", {"verbs": ["delegate"]}, 422, "verbs[0]"),
            ("chief", {"verbs": []}, 422, "verbs"),
            ("chief", {"ttl_seconds": 3601}, 422, "ttl_seconds"),
            ("chief", {"ttl_seconds": 0}, 422, "ttl_seconds"),
            ("chief", {"agent": "others"}, 422, "agent"),
        ],
    )
    def test_token_cannot_exceed_its_minter(
        self, site: Site, name: str, sent: dict[str, Any], status: int, field: str | None
    ) -> None:
        answer = site.ask(name, "POST", "/tokens", json={"user_id": "ada", "verbs": ["read"]} | sent)

        assert answer.status_code == status, answer.text
        assert [error["field"] for error in answer.json()["errors"]] == ([field] if field else [])

    def test_token_cannot_mint_a_token(self, site: Site) -> None:
        answer = site.mint(site.token("chief", "ada", "read", "write", "admin", "impersonate"))

        assert answer.status_code == 403
        assert "none has it" in answer.json()["detail"]

    def test_token_is_limited_to_its_agent(self, site: Site) -> None:
        answer = site.ask(site.token(), "GET", "/memories", agent="others", params={"user_id": "ada"})

        assert answer.status_code == 404

    @pytest.mark.parametrize(
        ("subjects", "status"),
        [
            ([], 404),
            ([subject("chief", "read", "write")], 404),
            ([subject("chief", "write", "delegate")], 404),
            ([subject("chief", *ALL, users=["eve"])], 403),
            ([subject("chief", "read", "delegate", users=["ada"])], 200),
        ],
        ids=["removed", "without delegate", "without the verb", "bound to another", "bound to the user"],
    )
    def test_token_never_exceeds_current_rights(self, whole: Site, subjects: list[dict[str, Any]], status: int) -> None:
        token = whole.token("chief", "ada", "read")
        changed = settings_of(VOICES | {"spec": VOICES["spec"] | {"access": {"subjects": subjects}}})
        whole.put(subjects=changed.subjects)

        assert whole.ask(token, "GET", "/memories", params={"user_id": "ada"}).status_code == status

    @pytest.mark.parametrize("changes", [{"uid": "another"}, {"namespace": "elsewhere"}])
    def test_token_is_void_for_recreated_object(self, whole: Site, changes: dict[str, str]) -> None:
        token = whole.token("chief", "ada", "read")
        whole.put(**changes)

        assert whole.ask(token, "GET", "/memories", params={"user_id": "ada"}).status_code == 404

    def test_token_may_be_for_a_scope(self, site: Site) -> None:
        token = site.token("chief", "group:team")

        assert site.store(token, user_id="group:team").status_code == 201
        assert [site.store(token, user_id=other).status_code for other in ("ada", "global")] == [403, 403]

    @pytest.mark.parametrize("change", ["", "x", "none", "claims", "long", "blank", "another key"])
    def test_forged_token_is_401(self, site: Site, change: str) -> None:
        token = site.token()
        header, claims, seal = token.removeprefix(PREFIX).split(".")
        eve = jwt.decode(token.removeprefix(PREFIX), options={"verify_signature": False}) | {"user": "eve"}
        kid = jwt.get_unverified_header(token.removeprefix(PREFIX))["kid"]
        forged = {
            "": PREFIX,
            "x": f"{PREFIX}{header}.{claims}.{seal[:-2]}xx",
            "none": PREFIX + jwt.encode(eve, None, algorithm="none", headers={"kid": kid}),
            "claims": f"{PREFIX}{header}.{jwt.encode(eve, 'k' * 32, algorithm='HS256').split('.')[1]}.{seal}",
            "long": PREFIX + "a" * 9000,
            "blank": f"{PREFIX}..",
            "another key": PREFIX + jwt.encode(eve, "k" * 32, algorithm="HS256", headers={"kid": kid}),
        }[change]

        answer = site.ask(forged, "GET", "/memories", params={"user_id": "eve"})

        assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")
        assert forged not in answer.text or not change


class TestListOfUsers:
    def test_list_counts_searchable_memories(self, site: Site) -> None:
        mark = f"listed-{uuid4().hex[:8]}"
        many, erased, past = (f"{mark}-{name}" for name in ("many", "gone", "past"))
        first = site.store("mover", user_id=many, created_at="2025-01-01T00:00:00Z").json()["id"]
        site.store("mover", user_id=many, created_at="2025-03-01T00:00:00Z")
        site.store("mover", user_id=many, supersedes=first, created_at="2025-02-01T00:00:00Z")
        deleted = site.store("mover", user_id=erased).json()["id"]
        site.ask("mover", "DELETE", f"/memories/{deleted}", params={"user_id": erased})
        site.store("mover", user_id=past, expires_at="2026-01-01T00:00:00Z")

        users = [user for user in pages(site) if user["user_id"].startswith(mark)]

        assert users == [
            {
                "user_id": many,
                "memories": 2,
                "oldest": "2025-02-01T00:00:00.000Z",
                "newest": "2025-03-01T00:00:00.000Z",
            }
        ]

    def test_pages_are_sorted_and_complete(self, site: Site) -> None:
        mark = f"paged-{uuid4().hex[:8]}"
        names = sorted(f"{mark}-{name}" for name in ("a", "ä", "Z", "0", "💡"))
        for name in names:
            site.store("plain", user_id=name)

        found = [user["user_id"] for user in pages(site, limit=2)]

        assert found == sorted(found)
        assert [name for name in found if name.startswith(mark)] == names

    def test_prefix_limits_all_pages(self, site: Site) -> None:
        mark = f"begins-{uuid4().hex[:8]}"
        for name in (mark, f"{mark}-a", f"{mark}-b", f"x{mark}"):
            site.store("plain", user_id=name)

        first = site.ask("chief", "GET", "/users", params={"prefix": mark, "limit": 2}).json()
        rest = site.ask("chief", "GET", "/users", params={"prefix": mark, "cursor": first["next_cursor"]}).json()

        found = [[user["user_id"] for user in page["results"]] for page in (first, rest)]
        assert (found, rest["next_cursor"]) == ([[mark, f"{mark}-a"], [f"{mark}-b"]], None)

    @pytest.mark.parametrize("cursor", ["x", "WzFd", "bnVsbA==", ""])
    def test_invalid_cursor_is_422(self, site: Site, cursor: str) -> None:
        answer = site.ask("chief", "GET", "/users", params={"cursor": cursor})

        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor")

    @pytest.mark.parametrize("name", ["plain", "mover"])
    def test_list_needs_admin(self, site: Site, name: str) -> None:
        assert site.ask(name, "GET", "/users").status_code == 403


class TestOneUser:
    def test_user_gets_name_and_memory_counts(self, site: Site) -> None:
        user = f"named-{uuid4().hex[:8]}"
        before = site.ask("chief", "GET", f"/users/{user}")

        created = site.ask("chief", "PUT", f"/users/{user}", json={"name": "Zoë 💡"}).json()
        for month in ("01", "03"):
            site.store("mover", user_id=user, created_at=f"2025-{month}-01T00:00:00Z")
        renamed = site.ask("chief", "PUT", f"/users/{user}", json={"name": "Zoë O."}).json()

        assert before.status_code == 404
        nothing = {"memories": 0, "oldest": None, "newest": None}
        assert created == {"user_id": user, "name": "Zoë 💡", "created_at": created["created_at"]} | nothing
        times = {"oldest": "2025-01-01T00:00:00.000Z", "newest": "2025-03-01T00:00:00.000Z"}
        assert renamed == created | {"name": "Zoë O.", "memories": 2} | times
        assert site.ask("chief", "GET", f"/users/{user}").json() == renamed

    def test_unnamed_user_has_no_name_or_time(self, site: Site) -> None:
        user = f"unnamed-{uuid4().hex[:8]}"
        site.store("mover", user_id=user)

        answer = site.ask("chief", "GET", f"/users/{user}").json()

        assert (answer["name"], answer["created_at"], answer["memories"]) == (None, None, 1)

    def test_name_is_erased_with_the_user_only(self, site: Site) -> None:
        user = f"gone-{uuid4().hex[:8]}"
        site.ask("chief", "PUT", f"/users/{user}", json={"name": "The Team"})
        listed = site.ask("chief", "GET", "/memories", params={"user_id": user}).json()["results"]
        part = site.ask("chief", "POST", "/forget", json={"user_id": user, "older_than": "2999-01-01T00:00:00Z"})
        kept = site.ask("chief", "GET", f"/users/{user}")

        site.ask("chief", "POST", "/forget", json={"user_id": user, "everything": True})

        assert (listed, part.json()["counts"]["total"], kept.json()["name"]) == ([], 0, "The Team")
        assert site.ask("chief", "GET", f"/users/{user}").status_code == 404
        assert user not in {listed_user["user_id"] for listed_user in pages(site)}

    @pytest.mark.parametrize(
        "body", [{}, {"name": None}, {"name": ""}, {"name": " "}, {"name": "a" * 257}, {"nick": "x"}]
    )
    def test_invalid_name_is_422(self, site: Site, body: dict[str, Any]) -> None:
        user = f"wrong-{uuid4().hex[:8]}"

        assert site.ask("chief", "PUT", f"/users/{user}", json=body).status_code == 422
        assert site.ask("chief", "GET", f"/users/{user}").status_code == 404

    @pytest.mark.parametrize("user", ["group:", "group:a b", "%20", "a%00b"])
    def test_invalid_user_is_422(self, site: Site, user: str) -> None:
        assert site.ask("chief", "PUT", f"/users/{user}", json={"name": "x"}).status_code == 422

    def test_id_with_a_slash_is_one_user(self, site: Site) -> None:
        user = f"a/b-{uuid4().hex[:8]}"
        quoted = user.replace("/", "%2F")

        assert site.ask("chief", "PUT", f"/users/{quoted}", json={"name": "x"}).json()["user_id"] == user

    def test_export_carries_name_and_replaces_none(self, site: Site) -> None:
        source, target = (f"{name}-{uuid4().hex[:8]}" for name in ("from", "to"))
        created = site.ask("chief", "PUT", f"/users/{source}", json={"name": "Ada"}).json()
        lines = site.ask("chief", "GET", "/export", params={"user_id": source}).content

        for _ in range(2):
            answer = site.ask("chief", "POST", "/import", params={"user_id": target}, content=lines, headers=NDJSON)
            assert answer.json()["counts"]["failed"] == 0, answer.text
            found = site.ask("chief", "GET", f"/users/{target}").json()
            assert (found["name"], found["created_at"]) == ("Ada", created["created_at"])
        site.ask("chief", "PUT", f"/users/{target}", json={"name": "Own"})
        site.ask("chief", "POST", "/import", params={"user_id": target}, content=lines, headers=NDJSON)

        assert site.ask("chief", "GET", f"/users/{target}").json()["name"] == "Own"

    async def test_clients_read_and_set_the_name(self, site: Site) -> None:
        user = f"client-{uuid4().hex[:8]}"
        url = str(site.http.base_url)
        with Client(url, token="token-chief") as api:
            named = api.agent("voices").user(user).set_name("Ada")
        async with AsyncClient(url, token="token-chief") as api:
            read = await api.agent("voices").user(user).details()

        assert (named.name, read) == ("Ada", named)


NDJSON = {"Content-Type": "application/x-ndjson"}


def pages(site: Site, **parameters: Any) -> list[dict[str, Any]]:
    """Return all users of the agent."""
    found: list[dict[str, Any]] = []
    while True:
        answer = site.ask("chief", "GET", "/users", params=parameters).json()
        found += answer["results"]
        if answer["next_cursor"] is None:
            assert not answer["truncated"]
            return found
        parameters |= {"cursor": answer["next_cursor"]}


def test_refused_requests_stored_nothing(site: Site) -> None:
    """Checks all users for the content that the refused requests of this module send."""
    users = {user["user_id"] for user in pages(site)} - {"ada", "bob", "group:team", "global"}

    for user in users:
        contents = site.ask("chief", "GET", "/memories", params={"user_id": user, "limit": 100}).json()["results"]
        assert INTRUDED not in {memory["content"] for memory in contents}
