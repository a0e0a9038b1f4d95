"""Privacy zones from an object to a memory: the wrapping key is added, changed and removed, on a real API server."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.zones.rules.entries import Ring
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import OperatorForks, start_api
from tests.support.cluster.workspace import SIZE, Workspace, confirm_delete
from tests.support.cluster.zone_keys import StoredKeys, wrapping_of
from tests.support.patience import wait_until
from tests.support.programs import Program, running
from tests.support.zones import new_wrapping_key

PERIODS = {"stalled_s": 0.5, "converged_s": 1.0, "busy_s": 0.3, "keys_settle_s": 2.0}
ZONES = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}}


@pytest.fixture(scope="module")
def folder(control_plane: ControlPlane) -> str:
    """Namespace for data keys only."""
    return control_plane.create_namespace("keys-")


@pytest.fixture(scope="module", autouse=True)
def own_operator(nursery: OperatorForks, folder: str) -> None:
    """Operator with short periods."""
    nursery.start(periods=PERIODS, zone_keys_namespace=folder)


@pytest.fixture(scope="module")
def api_program(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, folder: str
) -> Iterator[Program]:
    """API that reads data keys from that namespace."""
    program, _ = start_api(control_plane, tmp_path_factory.mktemp("api"), AGENTMEMORY_ZONE_KEYS_NAMESPACE=folder)
    with running(program):
        yield program


class Agent:
    """The agent of a workspace, as served by the API."""

    def __init__(self, workspace: Workspace, api: httpx.Client, folder: str) -> None:
        self._workspace, self._api = workspace, api
        self._path = f"/v1/agents/{workspace.slug}/memories"
        self.keys = StoredKeys(workspace.control_plane, folder, Ring(workspace.namespace, workspace.slug))

    def create(self, *, annotations: dict[str, str] | None = None, **spec: object) -> None:
        self._workspace.connect()
        self._workspace.create(annotations=annotations, **{"zones": ZONES} | spec)
        self._workspace.wait_ready()
        wait_until(lambda: self.store("plain", zone=None) == 201, seconds=20, what="the agent")

    def store(self, content: str, *, user: str = "ada", zone: str | None = "PERSONAL") -> int:
        """Store a memory; return the status."""
        body = {"user_id": user, "content": content, "vector": [1.0] * SIZE} | ({"zone": zone} if zone else {})
        return self._api.post(self._path, json=body).status_code

    def contents(self, user: str = "ada", *, api: httpx.Client | None = None) -> set[str | None]:
        """Return the contents of a user's memories."""
        answer = (api or self._api).get(self._path, params={"user_id": user})
        return {memory["content"] for memory in answer.raise_for_status().json()["results"]}

    def wait_for(self, reason: str) -> None:
        """Wait until the condition has a reason."""
        is_true = reason != "KeysAvailable"
        self._workspace.wait_condition("KeysUnavailable", f"{is_true}/{reason}", seconds=30)


@pytest.fixture
def agent(workspace: Workspace, api: httpx.Client, folder: str) -> Agent:
    return Agent(workspace, api, folder)


def zone_status(workspace: Workspace) -> dict[str, object]:
    return dict(workspace.status().get("zones") or {})


def remove(workspace: Workspace, key: str) -> None:
    """Remove an entry of the Secret."""
    path = f"/api/v1/namespaces/{workspace.namespace}/secrets/zones"
    headers = {"content-type": "application/merge-patch+json"}
    workspace.control_plane.http.patch(path, json={"data": {key: None}}, headers=headers).raise_for_status()


def test_missing_wrapping_key_blocks_zones_only(workspace: Workspace, agent: Agent) -> None:
    agent.create()

    agent.wait_for("WrappingKeyMissing")
    assert agent.store("a secret") == 503
    assert "WrappingKeyMissing" in workspace.events()
    workspace.create_secret("zones", key="c2hvcnQ=")
    agent.wait_for("WrappingKeyInvalid")
    workspace.change_secret("zones", key=new_wrapping_key())

    agent.wait_for("KeysAvailable")
    wait_until(lambda: agent.store("a secret") == 201, seconds=30, what="the key in the hands of the API")
    assert agent.contents() == {"plain", "a secret"}
    wait_until(lambda: zone_status(workspace).get("keys") == 1, seconds=30, what="the count")


def test_wrapping_key_is_replaced_during_reads(
    workspace: Workspace, agent: Agent, control_plane: ControlPlane, folder: str, tmp_path: pathlib.Path
) -> None:
    first, second = new_wrapping_key(), new_wrapping_key()
    workspace.create_secret("zones", key=first)
    agent.create()
    agent.wait_for("KeysAvailable")
    assert agent.store("told in confidence") == 201
    made = agent.keys.unwrap_all(first)
    wait_until(lambda: zone_status(workspace).get("keys") == 1, seconds=30, what="the count")
    assert zone_status(workspace)["wrappingKey"] == wrapping_of(first).fingerprint

    workspace.change_secret("zones", **{"key": second, "key.previous": first})
    wrapped = wrapping_of(second).fingerprint
    wait_until(lambda: zone_status(workspace).get("wrappingKey") == wrapped, seconds=30, what="the other wrapping key")
    remove(workspace, "key.previous")
    workspace.run_pass()

    assert "'key.previous' can be removed from Secret zones" in workspace.events(kind="Normal")["KeysRewrapped"]
    assert agent.keys.unwrap_all(second) == made
    assert {entry.wrapping_fingerprint for entry in agent.keys.entries().values()} == {wrapped}
    program, url = start_api(control_plane, tmp_path, AGENTMEMORY_ZONE_KEYS_NAMESPACE=folder)
    with running(program), httpx.Client(base_url=url, timeout=30) as fresh:
        wait_until(lambda: fresh.get("/readyz").status_code == 200, seconds=30, what="a new replica")
        assert agent.contents(api=fresh) == {"plain", "told in confidence"}
    secret = workspace.control_plane.http.get(f"/api/v1/namespaces/{workspace.namespace}/secrets/zones").json()
    assert all(value not in str(workspace.must_get()) for value in (first, second, *secret["data"].values()))


@pytest.mark.parametrize(("policy", "is_left"), [("Delete", False), ("Retain", True)])
def test_keys_follow_the_deletion_policy(workspace: Workspace, agent: Agent, policy: str, is_left: bool) -> None:
    workspace.create_secret("zones", key=new_wrapping_key())
    agent.create(deletionPolicy=policy, annotations=confirm_delete(workspace.alias))
    agent.wait_for("KeysAvailable")
    assert agent.store("told in confidence") == 201
    workspace.delete()
    workspace.wait_deleted()

    assert bool(agent.keys.secrets()) is is_left
    assert bool(workspace.physicals()) is is_left
