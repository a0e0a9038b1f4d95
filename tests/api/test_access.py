"""Rights of callers by `spec.access.subjects`; a table of tokens replaces the API server's reviews."""

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.collections.rules.claims import AgentClaim
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.errors import TransientError
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, running_api

NAMES = ("reader", "writer", "bulk", "stranger", "member")
VECTOR = [1.0] * 8


def subject(name: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": [*verbs]} | more


SUBJECTS = [
    subject("reader", "read"),
    subject("writer", "write"),
    subject("bulk", "admin"),
    subject("member", "read", "write", scopes=["global", "group:team"]),
]
PROBE, CLOSED = agent_document("probe", access={"subjects": SUBJECTS}), agent_document("closed")


class Reviews:
    """Accepts the tokens `token-NAME`; unavailable for the token `away`."""

    async def review(self, token: str) -> TokenReviewResult:
        name = token.removeprefix("token-")
        if name == "away":
            raise TransientError("tokens cannot be verified at the moment", retry_after_s=2)
        return (
            TokenReviewResult(caller=Caller("agents", name))
            if name in NAMES
            else TokenReviewResult(refusal="the token is not valid")
        )


@pytest.fixture(scope="module")
def checked(qdrant_url: str) -> Iterator[Stack]:
    """Serve `probe`, with subjects, and `closed`, without any."""
    guard = IdentityGuard(CallerCache(Reviews(), SystemClock()))
    with running_api(qdrant_url, PROBE, CLOSED, guard=guard) as stack:
        yield stack


def ask(stack: Stack, name: str, method: str, path: str, body: Any = None) -> httpx.Response:
    return httpx.request(method, stack.api_url + path, json=body, headers={"Authorization": f"Bearer token-{name}"})


def test_permitted_accounts_share_one_memory_pool(checked: Stack) -> None:
    memory = {"user_id": "shared", "content": "Allergic to nuts", "vector": VECTOR}
    assert ask(checked, "writer", "POST", "/v1/agents/probe/memories", memory).status_code == 201

    found = search(checked, "reader", user_id="shared").json()["results"]

    assert [(each["content"], each["author"]) for each in found] == [("Allergic to nuts", "agents/writer")]


def search(stack: Stack, name: str, agent: str = "probe", **more: Any) -> httpx.Response:
    return ask(stack, name, "POST", f"/v1/agents/{agent}/search", {"user_id": "u", "vector": VECTOR} | more)


def store(stack: Stack, name: str, agent: str = "probe", **more: Any) -> httpx.Response:
    body = {"user_id": "u", "content": "c", "vector": VECTOR} | more
    return ask(stack, name, "POST", f"/v1/agents/{agent}/memories", body)


@pytest.mark.parametrize(
    ("name", "reads", "writes"),
    [
        ("reader", 200, 403),
        ("writer", 403, 201),
        ("bulk", 403, 403),
        ("stranger", 404, 404),
        ("member", 200, 201),
        ("nobody", 401, 401),
    ],
)
def test_each_verb_opens_its_own_endpoints(checked: Stack, name: str, reads: int, writes: int) -> None:
    assert (search(checked, name).status_code, store(checked, name).status_code) == (reads, writes)


@pytest.mark.parametrize("name", NAMES)
def test_agent_without_subjects_is_closed(checked: Stack, name: str) -> None:
    assert search(checked, name, "closed").status_code == 404


def test_forbidden_agent_looks_absent(checked: Stack) -> None:
    hidden, absent = search(checked, "stranger", "closed"), search(checked, "stranger", "absent")

    problems = [answer.json() | {"request_id": ""} for answer in (hidden, absent)]
    assert problems[0] == {**problems[1], "detail": problems[1]["detail"].replace("absent", "closed")}


def test_refusal_names_verb_and_fix(checked: Stack) -> None:
    answer = store(checked, "reader")

    assert answer.json()["type"] == "/problems/forbidden"
    assert answer.json()["detail"].startswith("agents/reader may read with agent 'probe', not write: add write to")


@pytest.mark.parametrize(
    ("name", "listed"), [("reader", ["probe"]), ("writer", []), ("bulk", []), ("stranger", []), ("member", ["probe"])]
)
def test_agent_list_has_readable_agents_only(checked: Stack, name: str, listed: list[str]) -> None:
    answer = ask(checked, name, "GET", "/v1/agents")

    assert [line["agent"] for line in answer.json()["results"]] == listed


@pytest.mark.parametrize(("name", "status"), [("stranger", 404), ("reader", 403)])
@pytest.mark.parametrize("body", [b"not json", b"x" * (17 << 20)])
def test_rights_are_checked_before_body(checked: Stack, name: str, status: int, body: bytes) -> None:
    url = f"{checked.api_url}/v1/agents/probe/memories/batch"

    headers = {"Authorization": f"Bearer token-{name}", "Content-Type": "application/json"}
    answer = httpx.post(url, content=body, headers=headers)

    assert answer.status_code == status


def test_rights_are_checked_before_parameters(checked: Stack) -> None:
    assert ask(checked, "stranger", "GET", "/v1/agents/closed/memories?limit=many").status_code == 404


def test_unavailable_review_gives_503_with_retry_after(checked: Stack) -> None:
    answer = ask(checked, "away", "GET", "/v1/agents")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic token-reader", "token-reader", "Bearer ü"])
def test_missing_or_malformed_token_is_401(checked: Stack, header: str | None) -> None:
    headers = {"Authorization": header.encode()} if header is not None else {}
    answer = httpx.get(f"{checked.api_url}/v1/agents", headers=headers)

    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_removed_subject_is_refused_at_once(qdrant_url: str) -> None:
    """The next request is refused: no cache delays the removal."""

    guard = IdentityGuard(CallerCache(Reviews(), SystemClock()))
    with running_api(qdrant_url, PROBE, guard=guard) as stack:
        assert search(stack, "reader").status_code == 200

        closed = effective_settings(parse_agent_memory(agent_document("probe", access={"subjects": []})))
        stack.services.directory.put(AgentClaim(uid="uid-probe", created="2026-01-01T00:00:00Z", settings=closed))

        assert search(stack, "reader").status_code == 404


def test_rate_limit_applies_per_caller(qdrant_url: str) -> None:
    guard = IdentityGuard(CallerCache(Reviews(), SystemClock()))
    with running_api(qdrant_url, PROBE, guard=guard, limits=Limits(caller_rate=1)) as stack:
        answers = [ask(stack, "stranger", "GET", "/v1/agents") for _ in range(30)]
        refused = [answer for answer in answers if answer.status_code != 200]

        assert len(refused) < len(answers)
        assert {answer.json()["type"] for answer in refused} == {"/problems/rate-limited"}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert search(stack, "reader").status_code == 200


def test_unauthenticated_requests_use_no_callers_rate(qdrant_url: str) -> None:
    guard = IdentityGuard(CallerCache(Reviews(), SystemClock()))
    with running_api(qdrant_url, PROBE, guard=guard, limits=Limits(caller_rate=1)) as stack:
        assert [ask(stack, "nobody", "GET", "/v1/agents").status_code for _ in range(5)] == [401] * 5
        assert search(stack, "reader").status_code == 200


def found(answer: httpx.Response) -> set[str]:
    """Return the users of the results."""
    assert answer.status_code == 200, answer.text
    return {result["user_id"] for result in answer.json()["results"]}


@pytest.fixture(scope="module")
def shared(checked: Stack) -> Iterator[Stack]:
    """The API, with a memory of a user, a group and all users; deleted afterwards: other modules search too."""
    ids = {
        user_id: store(checked, "member", user_id=user_id).json()["id"] for user_id in ("ada", "group:team", "global")
    }
    yield checked
    for user_id, memory_id in ids.items():
        path = f"/v1/agents/probe/memories/{memory_id}?user_id={user_id}"
        assert ask(checked, "member", "DELETE", path).status_code == 204


def test_search_includes_readable_global_memories(shared: Stack) -> None:
    assert found(search(shared, "member", user_id="ada")) == {"ada", "global"}
    assert found(search(shared, "reader", user_id="ada")) == {"ada"}
    assert found(search(shared, "member", user_id="ada", include_scopes=[])) == {"ada"}
    assert found(search(shared, "member", user_id="ada", include_scopes=["group:team"])) == {"ada", "group:team"}


def test_list_has_own_and_named_scopes(shared: Stack) -> None:
    path = "/v1/agents/probe/memories?user_id=ada"

    assert found(ask(shared, "member", "GET", path)) == {"ada"}
    assert found(ask(shared, "member", "GET", f"{path}&include_scopes=global")) == {"ada", "global"}


@pytest.mark.parametrize("scope", ["global", "group:team", "group:other"])
def test_foreign_scope_is_403(shared: Stack, scope: str) -> None:
    path = f"/v1/agents/probe/memories?user_id=ada&include_scopes={scope}"
    answers = [
        search(shared, "reader", user_id=scope),
        search(shared, "reader", include_scopes=[scope]),
        store(shared, "writer", user_id=scope),
        ask(shared, "reader", "GET", path),
    ]

    assert {answer.status_code for answer in answers} == {403}
    assert all("add it to its scopes" in answer.json()["detail"] for answer in answers)


def test_memory_of_foreign_scope_is_404(shared: Stack) -> None:
    memory_id = store(shared, "member", user_id="group:team").json()["id"]
    path = f"/v1/agents/probe/memories/{memory_id}?user_id=group:team"

    assert ask(shared, "member", "GET", path).status_code == 200
    assert ask(shared, "reader", "GET", path).status_code == 404
    assert ask(shared, "writer", "DELETE", path).status_code == 404
    assert ask(shared, "member", "DELETE", path).status_code == 204


def test_closed_scope_fails_only_its_batch_item(shared: Stack) -> None:
    items = [{"user_id": user_id, "content": "c", "vector": VECTOR} for user_id in ("batch", "global")]

    answer = ask(shared, "writer", "POST", "/v1/agents/probe/memories/batch", {"memories": items})

    first, second = answer.json()["results"]
    assert (first["event"], second["error"]["status"]) == ("ADD", 403)


@pytest.mark.parametrize("user_id", ["group:", "group: team", "group:a/b"])
def test_malformed_scope_is_422(shared: Stack, user_id: str) -> None:
    answers = [
        search(shared, "reader", include_scopes=[user_id]),
        search(shared, "reader", user_id=user_id),
        store(shared, "writer", user_id=user_id),
        ask(shared, "reader", "GET", f"/v1/agents/probe/memories?user_id={user_id}"),
    ]

    assert {(answer.status_code, answer.json()["type"]) for answer in answers} == {(422, "/problems/invalid-request")}


def test_memories_namespace_follows_its_scope(shared: Stack) -> None:
    path = "/v1/agents/probe/items?namespace=memories&namespace=group:team&key=k"
    sent = {"content": "c", "vector": VECTOR}

    assert ask(shared, "writer", "PUT", path, sent).status_code == 403
    assert ask(shared, "member", "PUT", path, sent).status_code == 200
    assert ask(shared, "reader", "GET", path).status_code == 403
    assert ask(shared, "member", "GET", path).json()["user_id"] == "group:team"
    assert ask(shared, "member", "PUT", path.replace("team", "/"), sent).status_code == 422


def test_shared_namespace_follows_its_group(shared: Stack) -> None:
    path = "/v1/agents/probe/items?namespace=shared&namespace=team&key=k"
    sent = {"content": "c", "vector": VECTOR}

    assert ask(shared, "writer", "PUT", path, sent).status_code == 403
    assert ask(shared, "writer", "PUT", f"{path}&user_id=group:team", sent).status_code == 403
    assert ask(shared, "member", "PUT", path, sent).status_code == 200
    for closed in (path, f"{path}&user_id=group:team", path.replace("items", "items/versions")):
        assert ask(shared, "reader", "GET", closed).status_code == 403
    assert ask(shared, "reader", "GET", f"{path}&user_id=ada").status_code == 404
    assert ask(shared, "reader", "GET", "/v1/agents/probe/keys?namespace=shared&namespace=team").status_code == 403
    assert (
        ask(shared, "reader", "GET", "/v1/agents/probe/namespaces?namespace=shared&namespace=team").status_code == 403
    )
    assert ask(shared, "member", "GET", path).json()["user_id"] == "group:team"


def test_shared_global_namespace_needs_global_scope(shared: Stack) -> None:
    path = "/v1/agents/probe/items?namespace=shared&namespace=global&key=k"
    sent = {"content": "c", "vector": VECTOR}

    assert ask(shared, "writer", "PUT", path, sent).status_code == 403
    assert ask(shared, "member", "PUT", path, sent).status_code == 200
    assert ask(shared, "reader", "GET", path).status_code == 403
    assert ask(shared, "member", "GET", path).json()["user_id"] == "global"
    assert ask(shared, "writer", "DELETE", path).status_code == 403
    assert ask(shared, "member", "DELETE", path).status_code == 204


class SlowReviews(Reviews):
    """Blocks reviews of unknown tokens until `may_speak` is set."""

    def __init__(self) -> None:
        self.may_speak = threading.Event()

    async def review(self, token: str) -> TokenReviewResult:
        while token.removeprefix("token-") not in NAMES and not self.may_speak.is_set():
            await asyncio.sleep(0.01)
        return await super().review(token)


def status_of_list(stack: Stack, name: str) -> int:
    """Return the status of an agent list, with a long timeout."""
    headers = {"Authorization": f"Bearer token-{name}"}
    return httpx.get(f"{stack.api_url}/v1/agents", headers=headers, timeout=120).status_code


def test_unknown_callers_share_a_pool(qdrant_url: str) -> None:
    """Known callers and the health check are not affected by a full pool."""

    reviews = SlowReviews()
    guard = IdentityGuard(CallerCache(reviews, SystemClock()))
    with (
        running_api(qdrant_url, PROBE, guard=guard, limits=Limits(unauthenticated=8)) as stack,
        ThreadPoolExecutor(30) as pool,
    ):
        assert search(stack, "reader").status_code == 200
        tried = [pool.submit(status_of_list, stack, f"unknown-{number}") for number in range(30)]
        refused = [each.result() for each in itertools.islice(as_completed(tried), 22)]
        known = [search(stack, "reader").status_code for _ in range(5)]
        probe = httpx.get(f"{stack.api_url}/healthz").status_code
        page = httpx.get(f"{stack.api_url}/openapi.json").status_code
        reviews.may_speak.set()

    assert refused == [429] * 22
    assert known == [200] * 5
    assert (probe, page) == (200, 429)
    assert sorted(each.result() for each in tried) == [401] * 8 + [429] * 22


def test_continue_is_sent_to_known_callers_only(checked: Stack) -> None:
    """`Expect: 100-continue` of an unknown caller gets 401 before its body."""

    place = urlsplit(checked.api_url)
    statuses = {}
    for name in ("unknown", "writer"):
        with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
            lines = ["POST /v1/agents/probe/memories HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
            lines += ["Content-Length: 1000", "Expect: 100-continue", f"Authorization: Bearer token-{name}", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            statuses[name] = connection.recv(4096).split(b" ")[1]

    assert statuses == {"unknown": b"401", "writer": b"100"}
