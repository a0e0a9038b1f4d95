"""Rebuild with more shards in a cluster, under writers and readers, while a peer leaves and the operator is killed."""

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import OperatorForks, start_api
from tests.support.cluster.traffic.witness import SPEC, Witness
from tests.support.cluster.workspace import Workspace
from tests.support.fault_injection import plant, remove_faults
from tests.support.patience import wait_until
from tests.support.programs import running
from tests.support.web.qdrant_nodes import DevServer

PERIODS = {"busy_s": 0.2, "settle_s": 0.2, "stalled_s": 0.5, "probe_s": 1.0, "converged_s": 1.0}
LIVE_WITHIN_S = 90.0


@pytest.fixture
def peers(tmp_path: pathlib.Path) -> Iterator[DevServer]:
    started = DevServer(tmp_path / "cluster", "--peers", "3", "--activation-seconds", "0.3")
    yield started
    started.stop()


@pytest.fixture
def agent(control_plane: ControlPlane, namespace: str, peers: DevServer) -> Iterator[Workspace]:
    """Agent in one shard with one replica."""
    made = Workspace(control_plane, namespace, peers.urls[0])
    made.connect()
    sharding = {"shardNumber": 1, "replicationFactor": 1}
    made.create(**SPEC, changePolicy="Apply", index={"sharding": sharding})
    yield made
    made.clean()


def replicas(agent: Workspace, collection: str) -> list[tuple[int, str]]:
    """Return the shard and state of every replica."""
    cluster_info = agent.qdrant.get(f"/collections/{collection}/cluster").json()["result"]
    return sorted(
        (each["shard_id"], each["state"]) for each in (*cluster_info["local_shards"], *cluster_info["remote_shards"])
    )


def test_resharding_survives_peer_and_kill(
    agent: Workspace, control_plane: ControlPlane, peers: DevServer, nursery: OperatorForks, tmp_path: pathlib.Path
) -> None:
    target = f"{agent.alias}__2"
    operator = nursery.start(periods=PERIODS)
    agent.wait_ready(seconds=20)
    api, url = start_api(control_plane, tmp_path)
    with running(api), Witness([url], agent.slug) as witness:
        witness.wait_for(40)
        agent.patch(index={"sharding": {"shardNumber": 3, "replicationFactor": 2}})
        wait_until(lambda: target in agent.physicals(), seconds=20, what="the target")
        plant(peers.data_dir, away="3")
        waiting_message = wait_until(lambda: waiting_for_peer(agent), seconds=40, what="word of the dead replicas")
        assert agent.aliases() == {agent.alias: agent.physical}
        operator.kill()
        operator = nursery.start(periods=PERIODS)
        remove_faults(peers.data_dir)

        wait_until(lambda: agent.aliases().get(agent.alias) == target, seconds=LIVE_WITHIN_S, what="the move")
        states = replicas(agent, target)
        witness.wait_for(20)
        agent.wait_ready(seconds=30)
        witness.check(peers.urls[0], agent.alias)
    assert "on peer 3 is Dead" in waiting_message
    assert states == [(shard, "Active") for shard in (0, 0, 1, 1, 2, 2)]
    assert agent.status()["effective"]["sharding"] == {"shardNumber": 3, "replicationFactor": 2}


def waiting_for_peer(agent: Workspace) -> str:
    """Return the rebuild's message while replicas of its target are dead, else ''."""
    message = str((agent.status().get("rebuild") or {}).get("message"))
    return message if "Dead" in message else ""
