"""A running API follows the cluster's objects: ranking immediately, vectors by the collection's embedding."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program
from tests.support.web.http_server import serve
from tests.support.web.qdrant_proxy import Proxy
from tests.support.web.services import FakeOpenAI

pytestmark = pytest.mark.usefixtures("operator")

EFFECT_WITHIN_S = 1.0
EVERYTHING_PASSES = {"scoreThreshold": -1, "minSimilarity": -1}
QUERY, ALIKE, UNLIKE = [1.0] * 8, [1.0] * 8, [1.0] * 4 + [-0.5] * 4
RECENCY_ONLY = '{"spec":{"scoring":{"weights":{"similarity":0,"recency":1,"utility":0}}}}'


class Agent:
    """Client of one agent."""

    def __init__(self, client: httpx.Client, slug: str) -> None:
        self._client = client
        self._path = f"/v1/agents/{slug}"

    def describe(self) -> httpx.Response:
        return self._client.get(self._path)

    def store(self, content: str, **memory: Any) -> str:
        answer = self._client.post(f"{self._path}/memories", json={"user_id": "u", "content": content} | memory)
        assert answer.status_code == 201, answer.text
        stored: str = answer.json()["id"]
        return stored

    def search(self, **asked: Any) -> httpx.Response:
        return self._client.post(f"{self._path}/search", json={"user_id": "u"} | asked)

    def found(self, **asked: Any) -> list[str]:
        answer = self.search(**asked)
        assert answer.status_code == 200, answer.text
        return [memory["content"] for memory in answer.json()["results"]]


@pytest.fixture
def agent(api: httpx.Client, workspace: Workspace) -> Agent:
    """The workspace's agent, as served by the API."""
    return Agent(api, workspace.slug)


def wait_served(agent: Agent) -> None:
    """Wait until the API has the agent and reaches its collection."""
    wait_until(lambda: agent.describe().status_code == 200, seconds=10, what="the agent in the API")


def test_patched_weights_reorder_within_a_second(
    workspace: Workspace, proxy: Proxy, agent: Agent, api_program: Program
) -> None:
    """The change needs no restart and no write to the collection."""
    workspace.connect(url=proxy.url)
    workspace.create(scoring={"weights": {"similarity": 1, "recency": 0, "utility": 0}} | EVERYTHING_PASSES)
    workspace.wait_ready()
    wait_served(agent)
    a_year_ago = (datetime.now(UTC) - timedelta(days=365)).isoformat()
    agent.store("alike and old", vector=ALIKE, created_at=a_year_ago)
    agent.store("unlike and new", vector=UNLIKE)
    assert agent.found(vector=QUERY) == ["alike and old", "unlike and new"]
    wait_until(lambda: workspace.status()["observedGeneration"] == 1, seconds=5, what="the status")
    config = workspace.config()

    arguments = ("patch", "amem", AGENT, "-n", workspace.namespace, "--type=merge", "-p", RECENCY_ONLY)
    assert workspace.control_plane.kubectl(*arguments).returncode == 0
    patched = time.monotonic()
    wait_until(lambda: agent.search(vector=QUERY).json()["generation"] == 2, seconds=10, what="generation 2")
    took = time.monotonic() - patched

    answer = agent.search(vector=QUERY)
    assert [memory["content"] for memory in answer.json()["results"]] == ["unlike and new", "alike and old"]
    assert answer.headers["X-AgentMemory-Generation"] == "2"
    assert took <= EFFECT_WITHIN_S
    assert api_program.returncode is None
    workspace.wait_ready()
    assert workspace.config() == config, "a weight is nothing that the collection knows"
    assert not [call for call in proxy.mutations() if call[0] == "PATCH"]


def test_object_is_served_from_ready_to_deletion(workspace: Workspace, agent: Agent) -> None:
    assert agent.describe().status_code == 404

    workspace.create_ready()
    wait_served(agent)
    assert agent.describe().json()["memories"] == 0

    workspace.delete()
    wait_until(lambda: agent.describe().status_code == 404, seconds=5, what="404")


def test_held_model_of_same_size_is_not_used(workspace: Workspace, agent: Agent) -> None:
    """Two models of the same size have different vector spaces: the API keeps the collection's own."""
    provider = FakeOpenAI()
    with serve(provider.app()) as url:
        embedding = {"provider": "openai", "model": "first", "dimensions": 8, "baseURL": f"{url}/v1"}
        workspace.create_ready(embedding=embedding, scoring=EVERYTHING_PASSES)
        wait_served(agent)
        agent.store("one")

        workspace.patch(embedding={"model": "second"})
        workspace.wait_condition("InSync", "False/AwaitingApproval")
        wait_until(lambda: agent.describe().json()["generation"] == 2, seconds=5, what="generation 2")
        agent.store("two")
        agent.found(query="three")

    assert [body["model"] for body in provider.bodies] == ["first"] * 3


def test_collection_of_another_object_is_not_served(
    control_plane: ControlPlane, workspace: Workspace, agent: Agent
) -> None:
    """The older object is deleted, its memories are kept; the younger one must not read them."""
    workspace.create_ready(scoring=EVERYTHING_PASSES)
    wait_served(agent)
    agent.store("not yours", vector=ALIKE)
    other = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url, claims=workspace.slug)
    created = workspace.must_get()["metadata"]["creationTimestamp"]
    wait_until(lambda: workspace.server_time() > created, seconds=3, what="the next second")
    other.connect()
    other.create(scoring=EVERYTHING_PASSES)
    other.wait_condition("Stalled", "True/SlugTaken")
    assert agent.found(vector=QUERY) == ["not yours"]

    workspace.delete()
    workspace.wait_deleted()
    other.request_pass()
    other.wait_condition("Stalled", "True/SlugTaken")
    answer = agent.search(vector=QUERY)

    other.clean()
    assert answer.status_code == 404, answer.text
