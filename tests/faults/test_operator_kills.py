"""The operator is killed with -9 after every call of create, adopt, change and delete: the next one completes it.

The state changes only with a write, so a kill after each call is enough: at every second step.
"""

import base64
import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pytest

from agentmemory_operator.adapters.kubernetes.agent_secret_store import SECRET_PREFIX
from agentmemory_operator.connections.rules.agent_secret_slots import slot_name
from agentmemory_operator.connections.rules.host_lists import destinations_of
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.zones.rules.entries import Ring
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator, OperatorForks
from tests.support.cluster.workspace import AGENT, SIZE, Workspace, confirm_delete, is_ready
from tests.support.cluster.zone_keys import StoredKeys, wrapping_of
from tests.support.patience import wait_until
from tests.support.zones import new_wrapping_key

pytestmark = pytest.mark.faults

MAX_STEPS = 150
POINTS = 3
TICKET = ("metadata.ticket", "keyword")
# Poll often while the engine works: the steps stay the same.
PERIODS = {"busy_s": 0.3, "settle_s": 0.3, "keys_settle_s": 0.5}
ZONE_KEYS = "default"
ZONES = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}}
# Seconds from the last write of a pass to the kill after it.
SETTLED_S = 0.5


class Scenario(Protocol):
    """Operation on an object during which operators are killed."""

    def prepare(self, workspace: Workspace) -> None:
        """Set up the object before the operation; an operator runs."""
        ...

    def trigger(self, workspace: Workspace) -> None:
        """Request the operation."""
        ...

    def is_done(self, workspace: Workspace) -> bool:
        """Return whether the operation is complete."""
        ...

    def check(self, workspace: Workspace) -> None:
        """Check that nothing is missing, duplicated or lost."""
        ...


class Create:
    """Creation of an object with finalizer, collection, indexes, alias, event and status."""

    def prepare(self, workspace: Workspace) -> None:
        workspace.connect()

    def trigger(self, workspace: Workspace) -> None:
        workspace.create(deletionPolicy="Delete")

    def is_done(self, workspace: Workspace) -> bool:
        return is_ready(workspace.get())

    def check(self, workspace: Workspace) -> None:
        workspace.check_collection()
        assert workspace.config()["hnsw_config"]["m"] == 16
        assert workspace.must_get()["metadata"]["finalizers"] == ["agentmemory.dev/collection"]


class Adopt:
    """Adoption of a manually created collection with points, without marker, indexes and tuning."""

    def prepare(self, workspace: Workspace) -> None:
        workspace.connect()
        plain = {"vectors": {"size": SIZE, "distance": "Cosine"}}
        workspace.qdrant.put(f"/collections/{workspace.alias}", json=plain).raise_for_status()
        workspace.store_points(POINTS)

    def trigger(self, workspace: Workspace) -> None:
        workspace.create(deletionPolicy="Delete", index={"hnsw": {"m": 24}})

    def is_done(self, workspace: Workspace) -> bool:
        return is_ready(workspace.get())

    def check(self, workspace: Workspace) -> None:
        workspace.check_collection(physical=workspace.alias)
        assert workspace.config()["hnsw_config"]["m"] == 24
        assert workspace.config()["metadata"]["agentmemory"]["name"] == AGENT
        assert workspace.count_points() == POINTS


class Change:
    """Change of every mutable setting at once, with and without a reindex, on a collection with points."""

    def prepare(self, workspace: Workspace) -> None:
        prepare_with_points(workspace)

    def trigger(self, workspace: Workspace) -> None:
        index = {
            "hnsw": {"m": 24},
            "quantization": {"type": "None"},
            "vectors": {"memory": "Cold"},
            "optimizers": {"defaultSegmentNumber": 3},
            "sharding": {"replicationFactor": 2},
            "strictMode": {"maxPointsCount": 9000},
            "payloadIndexes": [{"field": TICKET[0], "type": TICKET[1]}],
        }
        workspace.patch(index=index)

    def is_done(self, workspace: Workspace) -> bool:
        return is_ready(workspace.get())

    def check(self, workspace: Workspace) -> None:
        workspace.check_collection(indexes={*RETRIEVAL_INDEXES, TICKET})
        config = workspace.config()
        assert config["hnsw_config"]["m"] == 24
        assert config["quantization_config"] is None
        assert config["params"]["vectors"]["on_disk"] is True
        assert config["params"]["replication_factor"] == 2
        assert config["optimizer_config"]["default_segment_number"] == 3
        assert config["strict_mode_config"]["max_points_count"] == 9000
        assert workspace.count_points() == POINTS


class Delete:
    """Confirmed deletion of a collection with points."""

    def prepare(self, workspace: Workspace) -> None:
        prepare_with_points(workspace, annotations=confirm_delete(workspace.alias))

    def trigger(self, workspace: Workspace) -> None:
        workspace.delete()

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.get() is None

    def check(self, workspace: Workspace) -> None:
        assert workspace.physicals() == []
        assert workspace.aliases() == {}


class DeleteUnconfirmed:
    """Unconfirmed deletion, which keeps the collection."""

    def prepare(self, workspace: Workspace) -> None:
        prepare_with_points(workspace)

    def trigger(self, workspace: Workspace) -> None:
        workspace.delete()

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.get() is None

    def check(self, workspace: Workspace) -> None:
        workspace.check_collection()
        assert workspace.count_points() == POINTS
        assert "CollectionKept" in workspace.events()


class HandOver:
    """Recreation of the API's Secret after it was lost."""

    def prepare(self, workspace: Workspace) -> None:
        workspace.create_secret("qdrant-key", **{"api-key": "any"})
        workspace.connect(apiKeySecretRef={"name": "qdrant-key", "key": "api-key"})
        workspace.create()
        workspace.wait_ready(seconds=20)

    def trigger(self, workspace: Workspace) -> None:
        workspace.control_plane.http.delete(handed_over(workspace)).raise_for_status()
        workspace.request_pass()

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.control_plane.http.get(handed_over(workspace)).status_code == 200

    def check(self, workspace: Workspace) -> None:
        secret = workspace.control_plane.http.get(handed_over(workspace)).json()
        slot = slot_name((workspace.namespace, "qdrant-key", "api-key"), destinations_of(workspace.qdrant_url))
        assert base64.b64decode(secret["data"][slot]) == b"any"


def handed_over(workspace: Workspace) -> str:
    """Return the path of the agent's Secret; outside a cluster the API's namespace is `default`."""
    return f"/api/v1/namespaces/default/secrets/{SECRET_PREFIX}{workspace.slug}"


class Rewrap:
    """Replacement of the wrapping key, with users in several shards; no key is lost, and no destroyed key returns."""

    users: Sequence[str] = tuple(f"user-{number}" for number in range(66))

    def __init__(self) -> None:
        self.before, self.after = new_wrapping_key(), new_wrapping_key()
        self._made: dict[str, Mapping[str, bytes]] = {}

    def prepare(self, workspace: Workspace) -> None:
        workspace.create_secret("zones", key=self.before)
        keys = stored_keys(workspace)
        keys.create(self.before, self.users)
        self._made[workspace.slug] = keys.unwrap_all(self.before)
        workspace.connect()
        workspace.create(zones=ZONES)
        workspace.wait_ready(seconds=20)
        wait_until(lambda: told_wrapping_key(workspace), seconds=20, what="a first count")

    def trigger(self, workspace: Workspace) -> None:
        workspace.change_secret("zones", **{"key": self.after, "key.previous": self.before})
        workspace.request_pass()

    def is_done(self, workspace: Workspace) -> bool:
        return told_wrapping_key(workspace) == wrapping_of(self.after).fingerprint

    def check(self, workspace: Workspace) -> None:
        assert stored_keys(workspace).unwrap_all(self.after) == self._made[workspace.slug]
        assert workspace.status()["zones"]["keys"] == len(self.users)


class DestroyKeys:
    """Confirmed deletion of an agent with keys."""

    def prepare(self, workspace: Workspace) -> None:
        value = new_wrapping_key()
        workspace.create_secret("zones", key=value)
        stored_keys(workspace).create(value, Rewrap.users)
        workspace.connect()
        annotations = confirm_delete(workspace.alias)
        workspace.create(deletionPolicy="Delete", annotations=annotations, zones=ZONES)
        workspace.wait_ready(seconds=20)

    def trigger(self, workspace: Workspace) -> None:
        workspace.delete()

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.get() is None

    def check(self, workspace: Workspace) -> None:
        assert workspace.physicals() == []
        assert stored_keys(workspace).secrets() == []


def stored_keys(workspace: Workspace) -> StoredKeys:
    """Return the data keys of the workspace's agent."""
    return StoredKeys(workspace.control_plane, ZONE_KEYS, Ring(workspace.namespace, workspace.slug))


def told_wrapping_key(workspace: Workspace) -> str | None:
    """Return the fingerprint of the wrapping key in the status."""
    found: str | None = (workspace.status().get("zones") or {}).get("wrappingKey")
    return found


# Calls: a finalizer, a body, 10 indexes, an alias, an event, a status, etc.
SCENARIOS = [
    (Create(), 15),
    (Adopt(), 16),
    (Change(), 11),
    (Delete(), 3),
    (DeleteUnconfirmed(), 2),
    (HandOver(), 1),
    # These change the API's Secret, a first shard and some of the second level, an event, and a status.
    (Rewrap(), 5),
    (DestroyKeys(), 5),
]


@pytest.mark.parametrize(("scenario", "min_kills"), SCENARIOS, ids=[type(case[0]).__name__ for case in SCENARIOS])
def test_next_operator_completes_killed_step(
    control_plane: ControlPlane, qdrant_url: str, nursery: OperatorForks, scenario: Scenario, min_kills: int
) -> None:
    kills = kill_after_every_call(control_plane, qdrant_url, nursery, scenario)

    assert kills >= min_kills, f"only {kills} kills were tried"


def kill_after_every_call(
    control_plane: ControlPlane, qdrant_url: str, nursery: OperatorForks, scenario: Scenario
) -> int:
    """Run a scenario once per call, killed after it and completed by another operator; return the number of kills."""

    def new_workspace() -> Workspace:
        """Create a namespace with an object ready for the scenario."""
        workspace = Workspace(control_plane, control_plane.create_namespace("kill-"), qdrant_url)
        scenario.prepare(workspace)
        return workspace

    with operating(nursery):
        workspace = new_workspace()
    for step in itertools.count(2, 2):
        assert step < MAX_STEPS, "the scenario never ends"
        was_killed = run_until_killed(nursery, scenario, workspace, step=step)
        with operating(nursery) as operator:
            check(operator, scenario, workspace, step=step)
            workspace.clean()
            workspace = new_workspace()
        if not was_killed:
            break
    workspace.clean()
    return step // 2 - 1


@contextlib.contextmanager
def operating(nursery: OperatorForks) -> Iterator[ForkedOperator]:
    """Run an operator that does not kill itself."""
    operator = nursery.start(periods=PERIODS, zone_keys_namespace=ZONE_KEYS)
    try:
        yield operator
    finally:
        operator.kill()


def run_until_killed(nursery: OperatorForks, scenario: Scenario, workspace: Workspace, *, step: int) -> bool:
    """Run the scenario with an operator that kills itself at a step; return whether it reached that step."""
    operator = nursery.start(victim=workspace.slug, crash_at=step, periods=PERIODS, zone_keys_namespace=ZONE_KEYS)
    scenario.trigger(workspace)
    wait_until(
        lambda: operator.returncode is not None or scenario.is_done(workspace),
        seconds=20,
        what=f"step {step} of {workspace.status() if workspace.get() else 'a deletion'}",
    )
    time.sleep(0 if operator.returncode is not None else SETTLED_S)
    return ended_by_kill(operator)


def ended_by_kill(operator: ForkedOperator) -> bool:
    """Return whether the operator killed itself, and make sure that it has ended."""
    code = operator.returncode
    assert code in (None, -9), f"the operator ended with {code}: {operator.log[-1500:]}"
    operator.kill()
    return code == -9


def check(operator: ForkedOperator, scenario: Scenario, workspace: Workspace, *, step: int) -> None:
    """Wait until the operator has completed the scenario, and check the result."""
    try:
        wait_until(lambda: scenario.is_done(workspace), seconds=20, what="convergence")
        scenario.check(workspace)
    except AssertionError as exc:
        raise AssertionError(f"after a kill at step {step}: {exc}; the log ends: {operator.log[-1500:]}") from exc


def prepare_with_points(workspace: Workspace, *, annotations: dict[str, str] | None = None) -> None:
    """Create an object with points, which are deleted with it."""
    workspace.connect()
    workspace.create(deletionPolicy="Delete", annotations=annotations)
    workspace.wait_ready(seconds=20)
    workspace.store_points(POINTS)
