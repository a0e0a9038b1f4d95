"""Isolation of agents: every endpoint of the OpenAPI document x every kind of caller without access. Tokens are of a
real API server; operator and API are processes. An endpoint without a request here fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import shell
from tests.support.cluster.operators import start_api
from tests.support.cluster.tenants import Account
from tests.support.cluster.workspace import Workspace
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import Program, running
from tests.support.web.endpoints import (
    AGENTLESS,
    ENDPOINTS,
    INTRUDED,
    LIST_OF_AGENTS,
    REQUESTS,
    WITHOUT_USER,
    Endpoint,
    arguments_of,
    stored_item_of,
    user_request,
)

Json = dict[str, Any]
SCOPE = "group:vault"
SECRET = "the safe opens with 4711"

# Case: the status if the path names an agent, and if it does not.
CASES = {
    "a subject of another agent": (404, 200),
    "the same name in another namespace": (404, 200),
    "expired": (401, 401),
    "another audience": (401, 401),
    "the API server's audience": (401, 401),
    "no token": (401, 401),
    "claims over another's signature": (401, 401),
    "signed by nobody": (401, 401),
}


@dataclass(frozen=True, slots=True)
class GuardedAgent:
    """Running API, an agent that `bot` may use, and a token for each case."""

    client: httpx.Client
    workspace: Workspace
    bot: Account
    tokens: dict[str, str]

    def send(self, endpoint: Endpoint, *, token: str, user: str, id: str = "") -> httpx.Response:
        """Send the endpoint's request for the agent."""
        sent = arguments_of(endpoint, user, agent=self.workspace.slug, id=id, token=token)
        return self.client.request(**sent)


@dataclass(frozen=True, slots=True)
class Owner:
    """User with one memory, which is an item too."""

    site: GuardedAgent
    user: str = field(default_factory=lambda: f"user-{uuid4().hex[:8]}")
    id: str = field(init=False)

    def __post_init__(self) -> None:
        answer = self._call("PUT", "items", **stored_item_of(self.user, SECRET))
        assert answer.status_code == 200, answer.text
        object.__setattr__(self, "id", answer.json()["memory_id"])

    def memories(self) -> dict[str, str]:
        """Return the contents of the user's memories by id."""
        found = self._call("GET", "memories", **user_request(self.user)).json()["results"]
        return {memory["id"]: memory["content"] for memory in found}

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.site.tokens['good']}"}
        url = f"/v1/agents/{self.site.workspace.slug}/{path}"
        return self.site.client.request(method, url, headers=headers, **arguments)


@pytest.fixture(scope="module")
def site(
    control_plane: ControlPlane, qdrant_url: str, operator: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedAgent]:
    ours = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    others = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    bot = Account.create(control_plane, ours.namespace, "bot")
    neighbour = Account.create(control_plane, ours.namespace, "neighbour")
    namesake = Account.create(control_plane, others.namespace, "bot")
    everything = ("read", "write", "admin", "delegate")
    passes = {"scoreThreshold": -1, "minSimilarity": -1}
    types = [{"name": "fact", "decay": False}, {"name": "working", "decay": False}]
    plain = Account.create(control_plane, ours.namespace, "plain")
    subjects = [bot.subject(*everything) | {"scopes": [SCOPE, "global"]}, plain.subject(*everything)]
    ours.create_ready(access={"subjects": subjects}, scoring=passes, types=types, entities={})
    others.create_ready(access={"subjects": [neighbour.subject(*everything)]}, scoring=passes, entities={})
    tokens = {
        "good": bot.token(),
        "without the scope": plain.token(),
        "a subject of another agent": neighbour.token(),
        "the same name in another namespace": namesake.token(),
        "expired": bot.token_for(seconds=-600),
        "another audience": bot.token("elsewhere"),
        "the API server's audience": bot.token("https://kubernetes.default.svc"),
        "no token": "",
        "claims over another's signature": bot.forged_by(neighbour),
        "signed by nobody": bot.token().rsplit(".", 1)[0] + ".",
    }
    program, url = start_api(control_plane, tmp_path_factory.mktemp("api"), auth="kubernetes")
    with running(program), httpx.Client(base_url=url, timeout=30) as client:
        guarded = GuardedAgent(client, ours, bot, tokens)
        wait_until(
            lambda: guarded.send(("GET", "/v1/agents/{agent}"), token=tokens["good"], user="").status_code == 200,
            seconds=10,
            what="the agent in the API",
        )
        yield guarded
    ours.clean()
    others.clean()


@pytest.fixture
def owner(site: GuardedAgent) -> Owner:
    return Owner(site)


def test_each_endpoint_has_a_request() -> None:
    assert ENDPOINTS
    assert set(REQUESTS) == set(ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_authorized_caller_is_served(site: GuardedAgent, owner: Owner, endpoint: Endpoint) -> None:
    """Shows that each request is valid: an invalid one would count as denied in the other tests."""
    answer = site.send(endpoint, token=site.tokens["good"], user=owner.user, id=owner.id)

    assert answer.is_success, answer.text


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_unauthorized_caller_is_denied(site: GuardedAgent, owner: Owner, endpoint: Endpoint) -> None:
    for case, (named, listed) in CASES.items():
        answer = site.send(endpoint, token=site.tokens[case], user=owner.user, id=owner.id)

        assert answer.status_code == (listed if endpoint in AGENTLESS else named), (case, answer.text)
        assert not answer.is_success or site.workspace.slug not in answer.text
        assert SECRET not in answer.text
    assert owner.memories() == {owner.id: SECRET}


@pytest.mark.parametrize("endpoint", [endpoint for endpoint in ENDPOINTS if endpoint not in AGENTLESS], ids=" ".join)
def test_other_user_is_denied(site: GuardedAgent, owner: Owner, endpoint: Endpoint) -> None:
    answer = site.send(endpoint, token=site.tokens["good"], user=f"not-{owner.user}", id=owner.id)

    assert SECRET not in answer.text
    assert owner.memories() == {owner.id: SECRET}
    if "{id}" in endpoint[1]:
        assert answer.status_code == 404


@pytest.mark.parametrize("case", CASES)
def test_tools_need_read_access(site: GuardedAgent, case: str) -> None:
    def get_tools(token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return site.client.get("/v1/tools", params={"agent": site.workspace.slug}, headers=headers)

    assert get_tools(site.tokens["good"]).is_success
    assert get_tools(site.tokens[case]).status_code == CASES[case][0]


@pytest.mark.parametrize("endpoint", [endpoint for endpoint in ENDPOINTS if endpoint not in WITHOUT_USER], ids=" ".join)
def test_scope_is_needed_to_read_or_change(site: GuardedAgent, endpoint: Endpoint) -> None:
    owner = Owner(site, user=SCOPE)
    answer = site.send(endpoint, token=site.tokens["without the scope"], user=SCOPE, id=owner.id)

    denied = [result["error"]["status"] for result in answer.json()["results"]] if answer.is_success else []
    assert answer.status_code in (403, 404) or denied == [403], answer.text
    assert SECRET not in answer.text
    memories = owner.memories()
    assert memories[owner.id] == SECRET
    assert INTRUDED not in memories.values()


def test_global_memories_need_the_global_scope(site: GuardedAgent, owner: Owner) -> None:
    search = ("POST", "/v1/agents/{agent}/search")
    shared = Owner(site, user="global")

    def found(token: str) -> set[str]:
        results = site.send(search, token=site.tokens[token], user=owner.user).json()["results"]
        return {result["id"] for result in results}

    assert found("good") == {owner.id, shared.id}
    assert found("without the scope") == {owner.id}


def test_removed_subject_loses_access(site: GuardedAgent, owner: Owner) -> None:
    search = ("POST", "/v1/agents/{agent}/search")
    late = Account.create(site.workspace.control_plane, site.workspace.namespace, "late")
    token = late.token()
    assert site.send(search, token=token, user=owner.user).status_code == 404

    site.workspace.patch(access={"subjects": [site.bot.subject("read", "write", "admin"), late.subject("read")]})
    wait_until(lambda: site.send(search, token=token, user=owner.user).status_code == 200, seconds=5, what="200")
    store = ("POST", "/v1/agents/{agent}/memories")
    assert site.send(store, token=token, user=owner.user).status_code == 403

    site.workspace.patch(access={"subjects": [site.bot.subject("read", "write", "admin")]})
    wait_until(lambda: site.send(search, token=token, user=owner.user).status_code == 404, seconds=5, what="404")


def test_cached_token_expires(site: GuardedAgent) -> None:
    agents = LIST_OF_AGENTS
    token = site.bot.token_for(seconds=3)
    assert site.send(agents, token=token, user="").status_code == 200

    wait_until(lambda: site.send(agents, token=token, user="").status_code == 401, seconds=15, what="401")


def test_documented_commands_create_a_valid_token(site: GuardedAgent) -> None:
    """Runs the commands of docs/access.md, "Get a token"."""
    commands = read_commands("access.md", "Get a token")
    *_, token = [
        shell(site.workspace.control_plane, command.replace("-n agents", f"-n {site.workspace.namespace}"))
        for command in commands
    ]

    assert site.send(LIST_OF_AGENTS, token=token.strip(), user="").json() == {"results": []}
