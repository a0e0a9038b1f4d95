"""A simulated cluster shows shards like a real one: placement, states, and each node's snapshots."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.patience import Patience
from tests.support.web.qdrant_nodes import DevServer, StartServer

ACTIVATION_S = 0.6
COUNT = 300
BODY = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": 3, "replication_factor": 2}


class Peers:
    """Peers of one process, numbered from 1."""

    def __init__(self, server: DevServer) -> None:
        self.server = server
        self.clients = [httpx.Client(base_url=url, timeout=30) for url in server.urls]

    def ask(self, peer: int, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = self.clients[peer - 1].request(method, f"/collections{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json().get("result")

    def states(self, collection: str) -> set[str]:
        cluster = self.ask(1, "GET", f"/{collection}/cluster")
        return {shard["state"] for shard in [*cluster["local_shards"], *cluster["remote_shards"]]}

    def count(self, collection: str) -> int:
        count: int = self.ask(2, "POST", f"/{collection}/points/count", {})["count"]
        return count

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture
def start_peers(start_server: StartServer) -> Iterator[Callable[[], Peers]]:
    """Return a function that starts three peers on one data folder."""
    started: list[Peers] = []

    def start() -> Peers:
        started.append(Peers(start_server("--peers", "3", "--activation-seconds", str(ACTIVATION_S))))
        return started[-1]

    yield start
    for peers in started:
        peers.close()


@pytest.fixture
def peers(start_peers: Callable[[], Peers]) -> Peers:
    """Three peers with a collection of three shards, with two replicas each."""
    started = start_peers()
    started.ask(1, "PUT", "/c__1", BODY | {"metadata": {"owner": "a"}})
    points = [{"id": n, "vector": [n, 1.0], "payload": {"n": n}} for n in range(COUNT)]
    started.ask(1, "PUT", "/c__1/points?wait=true", {"points": points})
    started.ask(2, "PUT", "/c__1/index?wait=true", {"field_name": "n", "field_schema": "integer"})
    return started


def wait_until_active(peers: Peers, collection: str) -> None:
    patience = Patience(20)
    while peers.states(collection) != {"Active"}:
        assert not patience.is_over
        time.sleep(0.02)


def first_replica(peers: Peers, collection: str, shard: int) -> int:
    return next(
        peer
        for peer in (1, 2, 3)
        if shard in [s["shard_id"] for s in peers.ask(peer, "GET", f"/{collection}/cluster")["local_shards"]]
    )


def shard_snapshot(peers: Peers, shard: int) -> dict[str, Any]:
    peer = first_replica(peers, "c__1", shard)
    path = f"/c__1/shards/{shard}/snapshots"
    snapshot: dict[str, Any] = peers.ask(peer, "POST", path)
    return snapshot | {"location": f"{peers.server.urls[peer - 1]}/collections{path}/{snapshot['name']}"}


def test_each_peer_reports_the_cluster(peers: Peers) -> None:
    answers = [client.get("/cluster").json()["result"] for client in peers.clients]

    assert [answer["status"] for answer in answers] == ["enabled"] * 3
    assert [answer["peer_id"] for answer in answers] == [1, 2, 3]
    assert all(answer["peers"].keys() == {"1", "2", "3"} for answer in answers)


def test_replicas_and_points_are_distributed(peers: Peers) -> None:
    clusters = [peers.ask(peer, "GET", "/c__1/cluster") for peer in (1, 2, 3)]

    local = [(shard["shard_id"], shard["points_count"]) for cluster in clusters for shard in cluster["local_shards"]]
    assert sorted(shard for shard, _ in local) == [0, 0, 1, 1, 2, 2]
    assert sum(points for _, points in set(local)) == COUNT
    assert all(len(cluster["remote_shards"]) == 4 for cluster in clusters)
    assert peers.states("c__1") == {"Active"}


def test_snapshot_exists_on_its_node_only(peers: Peers) -> None:
    name = peers.ask(1, "POST", "/c__1/snapshots")["name"]

    assert [len(peers.ask(peer, "GET", "/c__1/snapshots")) for peer in (1, 2, 3)] == [1, 0, 0]
    peers.ask(2, "DELETE", f"/c__1/snapshots/{name}", status=404)


def test_recovered_shard_has_points_once_active(peers: Peers) -> None:
    peers.ask(1, "PUT", "/c__2", BODY)
    snapshots = {shard: shard_snapshot(peers, shard) for shard in range(3)}

    for shard, snapshot in snapshots.items():
        body = {"location": snapshot["location"], "priority": "snapshot", "checksum": snapshot["checksum"]}
        peer = first_replica(peers, "c__2", shard)
        peers.ask(peer, "PUT", f"/c__2/shards/{shard}/snapshots/recover?wait=true", body)

    early, states = peers.count("c__2"), peers.states("c__2")
    wait_until_active(peers, "c__2")
    assert early < COUNT
    assert states & {"ManualRecovery", "Dead", "Partial"}
    assert peers.count("c__2") == COUNT
    assert [len(peers.ask(1, "GET", "/c__2/cluster")[kind]) for kind in ("local_shards", "remote_shards")] == [2, 4]


def test_shard_of_another_peer_is_rejected(peers: Peers) -> None:
    missing = ({0, 1, 2} - {shard["shard_id"] for shard in peers.ask(1, "GET", "/c__1/cluster")["local_shards"]}).pop()
    snapshot = shard_snapshot(peers, missing)

    peers.ask(1, "POST", f"/c__1/shards/{missing}/snapshots", status=400)
    peers.ask(1, "POST", "/c__1/shards/7/snapshots", status=404)
    other = (missing + 1) % 3
    body = {"location": snapshot["location"], "priority": "snapshot"}
    peer = first_replica(peers, "c__1", other)
    peers.ask(peer, "PUT", f"/c__1/shards/{other}/snapshots/recover", body, status=400)
    assert peers.count("c__1") == COUNT


def test_recovery_by_node_completes_once_active(peers: Peers) -> None:
    names = {peer: peers.ask(peer, "POST", "/c__1/snapshots")["name"] for peer in (1, 2, 3)}
    for peer, name in names.items():
        location = f"{peers.server.urls[peer - 1]}/collections/c__1/snapshots/{name}"
        peers.ask(peer, "PUT", "/c__2/snapshots/recover?wait=true", {"location": location, "priority": "snapshot"})

    early = peers.count("c__2")
    wait_until_active(peers, "c__2")
    assert early < COUNT
    assert peers.count("c__2") == COUNT
    assert peers.ask(1, "GET", "/c__2")["config"]["metadata"] == {"owner": "a"}
    assert "n" in peers.ask(1, "GET", "/c__2")["payload_schema"]


def test_interrupted_recovery_can_be_repeated(peers: Peers, start_peers: Callable[[], Peers]) -> None:
    snapshot = shard_snapshot(peers, 0)
    peer = first_replica(peers, "c__1", 0)
    content = httpx.get(snapshot["location"]).content
    path = f"/collections/c__1/shards/0/snapshots/upload?priority=snapshot&checksum={snapshot['checksum']}"
    assert peers.clients[peer - 1].post(path, files={"snapshot": ("a", content)}).status_code == 200
    peers.server.kill()

    again = start_peers()

    assert again.states("c__1") == {"Active", "Dead"}
    assert again.count("c__1") < COUNT
    assert again.clients[peer - 1].post(path, files={"snapshot": ("a", content)}).status_code == 200
    wait_until_active(again, "c__1")
    assert again.count("c__1") == COUNT


def test_single_server_supports_shard_snapshots(server: DevServer, emptied: None) -> None:
    server.call("PUT", "/collections/c__1", BODY)
    points = [{"id": n, "vector": [n, 1.0]} for n in range(COUNT)]
    server.call("PUT", "/collections/c__1/points?wait=true", {"points": points})
    path = "/collections/c__1/shards/1/snapshots"
    name = server.call("POST", path)["name"]
    server.call("POST", "/collections/c__1/points/delete?wait=true", {"filter": {}})

    server.call("PUT", f"{path}/recover", {"location": f"{server.url}{path}/{name}", "priority": "snapshot"})

    shards = server.call("GET", "/collections/c__1/cluster")["local_shards"]
    assert [(shard["shard_id"], shard["state"], shard["points_count"] > 0) for shard in shards] == [
        (0, "Active", False),
        (1, "Active", True),
        (2, "Active", False),
    ]
