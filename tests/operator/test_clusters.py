"""Replicas of an agent's collection in a cluster of three peers, under a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import OperatorForks
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.web.qdrant_nodes import SIMULATED, Peers

PERIODS = {"busy_s": 0.2, "settle_s": 0.2, "stalled_s": 0.5, "probe_s": 1.0, "converged_s": 1.0}
POINTS = 60
MOVED_WITHIN_S = 30.0


@pytest.fixture(scope="module", params=SIMULATED)
def peers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """Simulated cluster whose shard copies take 0.3 s."""
    running = Peers(tmp_path_factory.mktemp("cluster"), request.param, 0.3)
    yield running
    running.stop()


class Operators:
    """One operator for all tests; a test that kills it starts the next."""

    def __init__(self, nursery: OperatorForks) -> None:
        self._nursery = nursery
        self._running = nursery.start(periods=PERIODS)

    def replace(self) -> None:
        """Kill the operator and start another."""
        self._running.kill()
        self._running = self._nursery.start(periods=PERIODS)


@pytest.fixture(scope="module")
def operators(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    nursery = OperatorForks(control_plane, tmp_path_factory.mktemp("operator"))
    yield Operators(nursery)
    nursery.close()


@pytest.fixture
def agent(control_plane: ControlPlane, namespace: str, peers: Peers, operators: Operators) -> Iterator[Workspace]:
    """Agent with memories in three shards of one replica each."""
    workspace = Workspace(control_plane, namespace, peers.urls[0])
    workspace.create_ready(index={"sharding": {"shardNumber": 3, "replicationFactor": 1}})
    workspace.store_points(POINTS)
    yield workspace
    disconnect(peers)
    workspace.clean()


def disconnect(peers: Peers, *numbers: int) -> None:
    peers.set_faults(away=",".join(map(str, numbers)))


def ask_for(agent: Workspace, factor: int) -> None:
    agent.patch(index={"sharding": {"shardNumber": 3, "replicationFactor": factor}})


def replicas(agent: Workspace) -> dict[int, dict[int, str]]:
    cluster_info = agent.qdrant.get(f"/collections/{agent.alias}/cluster").json()["result"]
    shards: dict[int, dict[int, str]] = {}
    for each in (*cluster_info["local_shards"], *cluster_info["remote_shards"]):
        shards.setdefault(each["shard_id"], {})[each.get("peer_id", cluster_info["peer_id"])] = each["state"]
    return shards


def counts(agent: Workspace) -> list[int]:
    """Return the active replicas of each shard, then the most and the fewest replicas of a peer."""
    shards = replicas(agent)
    loads = [sum(peer in states for states in shards.values()) for peer in (1, 2, 3)]
    return [*(list(states.values()).count("Active") for _, states in sorted(shards.items())), max(loads), min(loads)]


def replica_status(agent: Workspace) -> dict[str, Any]:
    shown: dict[str, Any] = agent.status()["collection"]["replicas"]
    return shown


def test_replicas_follow_replication_factor(agent: Workspace) -> None:
    for factor, expected in ((2, [2, 2, 2, 2, 2]), (3, [3, 3, 3, 3, 3]), (1, [1, 1, 1, 1, 1])):
        ask_for(agent, factor)
        agent.wait_ready(seconds=MOVED_WITHIN_S)

        assert counts(agent) == expected
        assert replica_status(agent) == {"peers": 3, "shards": 3, "wanted": 3 * factor, "active": 3 * factor}
        assert agent.count_points() == POINTS
    assert agent.status()["effective"]["sharding"] == {"shardNumber": 3, "replicationFactor": 1}
    events = agent.events(kind="Normal")
    assert "copying shard 0 from peer" in events["Replicating"]
    assert "dropping shard" in events["Replicating"]
    assert "all replicas" in events["ReplicasActive"]


def test_lost_peer_is_reported_and_awaited(agent: Workspace, peers: Peers) -> None:
    ask_for(agent, 3)
    agent.wait_condition("InSync", "False/Replicating")
    disconnect(peers, 3)

    condition = agent.wait_condition("InSync", "False/ReplicasInactive", seconds=MOVED_WITHIN_S)

    assert "on peer 3 is Dead" in condition["message"]
    assert "on peer 3 is Dead" in replica_status(agent)["inactive"]
    assert agent.count_points() == POINTS
    disconnect(peers)
    agent.wait_ready(seconds=MOVED_WITHIN_S)
    assert counts(agent) == [3, 3, 3, 3, 3]


def test_next_operator_completes_replication(agent: Workspace, operators: Operators) -> None:
    ask_for(agent, 2)
    wait_until(lambda: max(map(len, replicas(agent).values())) > 1, seconds=10, what="the first copy")

    operators.replace()
    agent.wait_ready(seconds=MOVED_WITHIN_S)

    assert counts(agent) == [2, 2, 2, 2, 2]
