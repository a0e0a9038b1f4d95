"""Staging with production's manifests and Qdrant: it reads, writes and reports nothing of production.

Production is the operator of this control plane. Staging is an API with another cluster id, or this API with a
collection of another cluster.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import OLD_CLUSTER, SIZE, Workspace, change_marker, conditions_of, marker_of
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.web.qdrant_proxy import Proxy

Json = dict[str, Any]
SECRET = "the launch code of production"
VECTOR = [1.0] * SIZE
MEMORY = {"user_id": "ada", "content": SECRET, "vector": VECTOR}
# Longer than the lease of an API process on the metadata of a collection.
LEASE_S = 5.5


@dataclass(frozen=True, slots=True)
class Served:
    """API client of one agent."""

    client: httpx.Client
    slug: str

    def get(self, path: str = "", **query: str) -> httpx.Response:
        return self.client.get(f"/v1/agents/{self.slug}{path}", params=query)

    def post(self, path: str, body: Json) -> httpx.Response:
        return self.client.post(f"/v1/agents/{self.slug}{path}", json=body)

    def is_refused(self) -> bool:
        return self.get("/memories", user_id="ada").status_code == 503


@pytest.fixture(scope="module")
def staging(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """API with the same objects and another cluster id."""
    program = Program(
        tmp_path_factory.mktemp("staging") / "api.log",
        *(*AGENTMEMORY, "api", "--source", "kubernetes", "--port", "0"),
        KUBECONFIG=str(control_plane.kubeconfig),
        AGENTMEMORY_AUTH="none",
        AGENTMEMORY_CLUSTER_ID="staging",
    )
    with running(program):
        url = program.wait_for(r"API (http://\S+)")[1]
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client


def everything(id_: str) -> dict[str, Callable[[Served], httpx.Response]]:
    """Return all requests about an agent's memories."""
    one, user = f"/memories/{id_}", {"user_id": "ada"}
    item = {"content": "mine", "metadata": {}}
    return {
        "describe": lambda of: of.get(),
        "list": lambda of: of.get("/memories", **user),
        "read": lambda of: of.get(one, **user),
        "history": lambda of: of.get(f"{one}/history", **user),
        "search": lambda of: of.post("/search", {"user_id": "ada", "vector": VECTOR}),
        "stats": lambda of: of.get("/stats", **user),
        "export": lambda of: of.get("/export", **user),
        "keys": lambda of: of.client.get(
            f"/v1/agents/{of.slug}/keys", params=[("namespace", "memories"), ("namespace", "ada")]
        ),
        "store": lambda of: of.post("/memories", MEMORY | {"content": "staging's"}),
        "batch": lambda of: of.post("/memories/batch", {"memories": [MEMORY]}),
        "edit": lambda of: of.client.patch(f"/v1/agents/{of.slug}{one}", params=user, json={"importance": 1}),
        "delete": lambda of: of.client.delete(f"/v1/agents/{of.slug}{one}", params=user),
        "forget": lambda of: of.post("/forget", user | {"everything": True}),
        "rehearse": lambda of: of.post("/forget", user | {"everything": True, "dry_run": True}),
        "put": lambda of: of.client.put(
            f"/v1/agents/{of.slug}/items",
            params=[("namespace", "memories"), ("namespace", "ada"), ("key", "k")],
            json=item,
        ),
        "end": lambda of: of.client.post(f"/v1/agents/{of.slug}/sessions/s/end", params=user),
        "import": lambda of: of.client.post(
            f"/v1/agents/{of.slug}/import",
            params=user,
            content=json.dumps({"content": "staging's", "vector": VECTOR}),
            headers={"content-type": "application/x-ndjson"},
        ),
    }


class TestStaging:
    """API with production's objects that reaches production's Qdrant."""

    def test_gets_503_and_touches_no_point(
        self, workspace: Workspace, operator: Program, api: httpx.Client, staging: httpx.Client, proxy: Proxy
    ) -> None:
        workspace.connect(url=proxy.url)
        workspace.create()
        workspace.wait_ready()
        at_home, abroad = Served(api, workspace.slug), Served(staging, workspace.slug)
        wait_until(lambda: at_home.get().status_code == 200, seconds=10, what="production's agent")
        id_ = at_home.post("/memories", MEMORY).raise_for_status().json()["id"]
        wait_until(lambda: abroad.get().status_code != 404, seconds=10, what="the object in staging")
        before = points_of(workspace)
        # Production's own processes poll too; the requests below are staging's only.
        proxy.forget()

        answers = {name: ask(abroad) for name, ask in everything(id_).items()}

        point_calls = [call for call in proxy.calls if "/points" in call[1] or "/facet" in call[1]]
        assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(answers, 503)
        for name, answer in answers.items():
            assert "see the object's Ready condition" in answer.text, name
            assert SECRET not in answer.text
            assert marker_of(workspace)["clusterId"] not in answer.text
        assert point_calls == []
        assert points_of(workspace) == before
        assert at_home.get("/memories", user_id="ada").json()["results"][0]["content"] == SECRET

    def test_lists_agent_without_memory_count(
        self, workspace: Workspace, operator: Program, staging: httpx.Client
    ) -> None:
        workspace.create_ready()
        workspace.store_points(3)

        def listed() -> Json | None:
            rows = staging.get("/v1/agents").raise_for_status().json()["results"]
            return next((row for row in rows if row["agent"] == workspace.slug), None)

        found = wait_until(listed, seconds=10, what="the agent in the list")

        assert (found["ready"], found["memories"]) == (False, None)


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({"clusterId": OLD_CLUSTER}, id="another cluster's"),
        pytest.param({"clusterId": None}, id="no cluster"),
        pytest.param({"clusterId": ""}, id="an empty cluster"),
        pytest.param({"namespace": None}, id="no namespace"),
        pytest.param({"name": None}, id="no name"),
        pytest.param({"clusterId": None, "namespace": None, "name": None}, id="nobody's"),
        pytest.param({"clusterId": "", "namespace": "", "name": ""}, id="empty"),
        pytest.param({"clusterId": 5}, id="a number"),
    ],
)
def test_operator_and_api_agree_on_ownership(
    workspace: Workspace, operator: Program, api: httpx.Client, owner: Json
) -> None:
    """With a foreign marker, operator and API refuse the collection; with the right one, both continue."""
    workspace.create_ready()
    agent = Served(api, workspace.slug)
    wait_until(lambda: agent.get().status_code == 200, seconds=10, what="the agent")
    agent.post("/memories", MEMORY).raise_for_status()
    right = marker_of(workspace)

    marker = {key: value for key, value in (right | owner).items() if value is not None}
    body = {"metadata": {"agentmemory": marker}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()
    workspace.request_pass()
    workspace.wait_condition("Ready", "False/CollectionNotOwned")

    wait_until(agent.is_refused, seconds=10, what="a refusal")
    before = points_of(workspace)
    assert agent.post("/search", {"user_id": "ada", "vector": VECTOR}).status_code == 503
    assert agent.post("/memories", MEMORY | {"content": "another"}).status_code == 503
    assert points_of(workspace) == before

    change_marker(workspace, **right)
    workspace.request_pass()
    workspace.wait_ready(seconds=10)
    wait_until(lambda: not agent.is_refused(), seconds=10, what="the agent again")


def test_collection_of_other_cluster_is_not_used(workspace: Workspace, operator: Program, api: httpx.Client) -> None:
    """The other cluster's operator took the collection over; no process here has read the marker since."""
    workspace.create_ready()
    agent = Served(api, workspace.slug)
    wait_until(lambda: agent.get().status_code == 200, seconds=10, what="the agent")
    id_ = agent.post("/memories", MEMORY).raise_for_status().json()["id"]

    change_marker(workspace, clusterId=OLD_CLUSTER)
    time.sleep(LEASE_S)

    before = points_of(workspace)
    answers = {name: ask(agent).status_code for name, ask in everything(id_).items()}
    assert answers == dict.fromkeys(answers, 503)
    assert points_of(workspace) == before
    assert conditions_of(workspace.must_get())["Ready"] == "True/Serving"


def points_of(workspace: Workspace) -> list[Json]:
    """Return up to 1,000 points behind the alias, with payload and vector."""
    body = {"limit": 1000, "with_payload": True, "with_vector": True}
    answer = workspace.qdrant.post(f"/collections/{workspace.alias}/points/scroll", json=body)
    found: list[Json] = answer.raise_for_status().json()["result"]["points"]
    return found
