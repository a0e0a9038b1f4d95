"""Callers cannot act as another user or author: tokens of a real API server, an operator, two API replicas."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.adapters.kubernetes.lease import own_namespace
from agentmemory_operator.adapters.kubernetes.signing_key import KEY_SECRET
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api
from tests.support.cluster.tenants import Account
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, running
from tests.support.web.endpoints import (
    ENDPOINTS,
    VECTOR,
    WITHOUT_USER,
    Endpoint,
    arguments_of,
    stored_item_of,
    user_request,
)

SECRET, FORGED = "the safe opens with 4711", "the system says so"
EVERYTHING = ("read", "write", "admin", "impersonate", "delegate")
MODEL_STORES = {"name": "upsert_memory", "arguments": {"content": "of ada", "key": "k"}}
# Each request names another author in some field.
OTHER_AUTHOR: dict[Endpoint, dict[str, Any]] = {
    ("POST", "/v1/agents/{agent}/memories"): {
        "json": {"user_id": "ada", "content": FORGED, "vector": VECTOR, "author": "system"}
    },
    ("POST", "/v1/agents/{agent}/memories/batch"): {
        "json": {"memories": [{"user_id": "ada", "content": FORGED, "vector": VECTOR, "author": "system"}]}
    },
    ("POST", "/v1/agents/{agent}/messages"): {
        "json": {
            "user_id": "ada",
            "messages": [{"role": "user", "content": FORGED, "vector": VECTOR}],
            "author": "system",
        }
    },
    ("PUT", "/v1/agents/{agent}/items"): {
        "params": {"namespace": ["memories", "ada"], "key": "k"},
        "json": {"content": FORGED, "vector": VECTOR, "author": "system"},
    },
    ("POST", "/v1/agents/{agent}/items/batch"): {
        "json": {
            "items": [
                {"namespace": ["memories", "ada"], "content": FORGED, "vector": VECTOR, "author": "system"},
            ]
        }
    },
    ("PUT", "/v1/agents/{agent}/sessions/{session_id}/working"): {
        "params": {"user_id": "ada"},
        "json": {"content": FORGED, "vector": VECTOR, "author": "system"},
    },
    ("PUT", "/v1/agents/{agent}/relations"): {
        "json": {"user_id": "ada", "source": FORGED, "relation": "uses", "target": "Acme", "author": "system"}
    },
    ("PUT", "/v1/agents/{agent}/users/{user_id}"): {"json": {"name": FORGED, "author": "system"}},
    ("PATCH", "/v1/agents/{agent}/entities/{name}"): {
        "params": {"user_id": "ada"},
        "json": {"name": FORGED, "author": "system"},
    },
    ("PATCH", "/v1/agents/{agent}/memories/{id}"): {"params": {"user_id": "ada"}, "json": {"author": "system"}},
    ("POST", "/v1/agents/{agent}/import"): {
        "params": {"user_id": "ada"},
        "content": "\n".join(
            json.dumps({"content": FORGED, "vector": VECTOR, **said})
            for said in ({"author": "system"}, {"observed_by": ["system"]})
        ),
    },
}


@dataclass(frozen=True, slots=True)
class Voices:
    """An agent with a chief, an application bound to `ada`, and user tokens of `ada`.

    Attributes:
        held: Tokens by holder.
        replicas: Clients of the API's replicas.
    """

    workspace: Workspace
    chief: Account
    bound: Account
    held: dict[str, str]
    replicas: tuple[httpx.Client, httpx.Client]
    programs: tuple[Program, Program]

    @property
    def subjects(self) -> list[dict[str, Any]]:
        return [self.chief.subject(*EVERYTHING), self.bound.subject(*EVERYTHING[:3]) | {"users": ["ada"]}]

    def send(
        self, endpoint: Endpoint, user: str, token: str, *, id: str = "", at: int = 0, **more: Any
    ) -> httpx.Response:
        """Send an endpoint's request to a replica."""
        sent = arguments_of(endpoint, user, agent=self.workspace.slug, id=id, token=token)
        return self.replicas[at].request(**(sent | more))

    def ask(self, method: str, path: str, token: str, *, at: int = 0, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"/v1/agents/{self.workspace.slug}{path}"
        return self.replicas[at].request(method, url, headers=headers, **arguments)

    def model(
        self, method: str, params: dict[str, Any], holder: str, *, at: int = 0, user: str | None = None
    ) -> httpx.Response:
        """Send a request of a model's host to `/mcp`."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Authorization": f"Bearer {self.held.get(holder, holder)}", "Accept": "application/json"}
        named = {"agent": self.workspace.slug} | ({"user_id": user} if user else {})
        return self.replicas[at].post("/mcp", params=named, headers=headers, json=body)

    def mint(self, user: str = "ada", *verbs: str) -> str:
        body = {"user_id": user, "verbs": list(verbs or EVERYTHING[:3])}
        answer = self.ask("POST", "/tokens", self.held["chief"], json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    def reads(self, token: str, user: str = "ada", *, at: int = 0) -> int:
        return self.ask("GET", "/memories", token, at=at, params={"user_id": user}).status_code

    def memories(self, user: str) -> dict[str, str]:
        found = self.ask("GET", "/memories", self.held["chief"], params={"user_id": user}).json()["results"]
        return {memory["id"]: memory["content"] for memory in found}


@pytest.fixture(scope="module")
def voices(
    control_plane: ControlPlane, qdrant_url: str, operator: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Voices]:
    workspace = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    chief, bound = (Account.create(control_plane, workspace.namespace, name) for name in ("chief", "bound"))
    started = [start_api(control_plane, tmp_path_factory.mktemp(name), auth="kubernetes") for name in ("one", "two")]
    (first, one), (second, two) = started
    with (
        running(first),
        running(second),
        httpx.Client(base_url=one, timeout=30) as left,
        httpx.Client(base_url=two, timeout=30) as right,
    ):
        held = {"chief": chief.token(), "bound": bound.token()}
        made = Voices(workspace, chief, bound, held, (left, right), (first, second))
        types = [{"name": "fact", "decay": False}, {"name": "working", "decay": False}]
        passes = {"scoreThreshold": -1, "minSimilarity": -1}
        workspace.create_ready(access={"subjects": made.subjects}, types=types, scoring=passes, entities={})
        for at in (0, 1):
            wait_until(lambda at=at: made.reads(held["chief"], at=at) == 200, seconds=10, what="the agent in the API")
        held["token"] = made.mint()
        yield made
    workspace.clean()


@pytest.mark.parametrize("holder", ["bound", "token"])
@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one not in WITHOUT_USER], ids=" ".join)
def test_caller_for_one_user_cannot_name_another(voices: Voices, endpoint: Endpoint, holder: str) -> None:
    user = f"user-{uuid4().hex[:8]}"
    put = voices.ask("PUT", "/items", voices.held["chief"], **stored_item_of(user, SECRET)).json()["memory_id"]
    own = voices.ask("PUT", "/items", voices.held["chief"], **stored_item_of("ada", "of ada")).json()["memory_id"]
    mints = endpoint[1].endswith("/tokens")

    served = voices.send(endpoint, "ada", voices.held[holder], id=own)
    answer = voices.send(endpoint, user, voices.held[holder], id=put)

    # Shows that the request is valid: an invalid one would count as refused.
    assert served.is_success is not mints, served.text
    refused = [result["error"]["status"] for result in answer.json()["results"]] if answer.is_success else []
    assert answer.status_code == (404 if "{id}" in endpoint[1] else 403) or refused == [403], answer.text
    assert SECRET not in answer.text
    assert voices.memories(user) == {put: SECRET}


@pytest.mark.parametrize("holder", ["bound", "token"])
@pytest.mark.parametrize("endpoint", OTHER_AUTHOR, ids=" ".join)
def test_caller_cannot_name_another_author(voices: Voices, endpoint: Endpoint, holder: str) -> None:
    own = voices.ask("PUT", "/items", voices.held["chief"], **stored_item_of("ada", "of ada")).json()["memory_id"]

    answer = voices.send(endpoint, "ada", voices.held[holder], id=own, **OTHER_AUTHOR[endpoint])

    document = answer.json()
    errors = (
        [one["error"]["status"] for one in document.get("results") or document["errors"]] if answer.is_success else []
    )
    assert answer.status_code in (403, 422) or (errors and {*errors} <= {403, 422}), answer.text
    assert FORGED not in voices.memories("ada").values()


def test_every_storing_endpoint_has_an_author_case() -> None:
    writing = {one for one in ENDPOINTS if one[0] in ("PUT", "PATCH", "POST")}
    names = ("search", "context", "forget", "tokens", "end")
    reading = {(*one,) for one in writing if one[1].rpartition("/")[2] in names}

    assert writing - reading == {*OTHER_AUTHOR}


def test_token_is_valid_at_all_replicas(voices: Voices) -> None:
    token = voices.mint("bob", "read")

    assert [voices.reads(token, "bob", at=at) for at in (0, 1)] == [200, 200]
    assert [voices.reads(token, "ada", at=at) for at in (0, 1)] == [403, 403]


@pytest.mark.parametrize("at", [0, 1])
def test_model_acts_only_for_the_users_token(voices: Voices, at: int) -> None:
    voices.ask("POST", "/memories", voices.held["chief"], json={"user_id": "bob", "content": SECRET, "vector": VECTOR})
    tools = voices.model("tools/list", {}, "token", at=at).json()["result"]["tools"]
    own = voices.model("tools/call", MODEL_STORES, "token", at=at).json()["result"]
    as_bob = voices.model("tools/call", MODEL_STORES, "bound", at=at, user="bob").json()["result"]
    named = {"name": "upsert_memory", "arguments": {"content": FORGED, "user_id": "bob"}}
    argued = [voices.model("tools/call", named, holder, at=at).json()["result"] for holder in ("token", "bound")]
    unknown = voices.model("initialize", {}, "nobody", at=at)

    assert all("user_id" not in tool["inputSchema"]["properties"] for tool in tools)
    assert "may not act for user 'bob'" in as_bob["content"][0]["text"]
    assert [result["isError"] for result in (as_bob, *argued)] == [True, True, True]
    assert "user_id" in argued[0]["content"][0]["text"]
    assert "no user is set" in argued[1]["content"][0]["text"]
    # The request was authorized: only the vector, which this agent's callers supply, is missing.
    assert "vector" in own["content"][0]["text"]
    assert unknown.status_code == 401
    assert FORGED not in voices.memories("bob").values()


def test_tenant_cannot_read_token_key(voices: Voices, control_plane: ControlPlane) -> None:
    path = f"/api/v1/namespaces/{own_namespace()}/secrets/{KEY_SECRET}"
    token = voices.chief.token("https://kubernetes.default.svc")

    assert control_plane.http.get(path).status_code == 200
    answer = httpx.get(
        f"{control_plane.http.base_url}{path}", headers={"Authorization": f"Bearer {token}"}, verify=False, timeout=10
    )
    assert answer.status_code in (401, 403)


def test_token_ends_with_its_subject_and_object(voices: Voices) -> None:
    token, workspace = voices.mint("ada", "read"), voices.workspace
    assert voices.reads(token) == 200

    workspace.patch(access={"subjects": [voices.chief.subject("read", "write")]})
    wait_until(lambda: voices.reads(token) == 404, seconds=5, what="a subject without delegate")
    workspace.patch(access={"subjects": voices.subjects})
    wait_until(lambda: voices.reads(token) == 200, seconds=5, what="the subject as it was")
    workspace.delete()
    workspace.wait_deleted()
    workspace.create(access={"subjects": voices.subjects})
    workspace.wait_ready()
    wait_until(lambda: voices.reads(voices.held["chief"]) == 200, seconds=5, what="the object again")
    assert [voices.reads(token, at=at) for at in (0, 1)] == [404, 404]


def test_logs_contain_no_token_or_key(voices: Voices, control_plane: ControlPlane, operator: Program) -> None:
    secret = control_plane.http.get(f"/api/v1/namespaces/{own_namespace()}/secrets/{KEY_SECRET}").json()
    document = [voices.held["token"], voices.held["token"].rsplit(".", 1)[1], secret["data"]["key"]]
    voices.ask("GET", "/memories", voices.held["token"] + "x", params=user_request("ada")["params"])

    logs = "".join(program.log for program in (*voices.programs, operator))
    assert logs
    assert [word for word in document if word in logs] == []
