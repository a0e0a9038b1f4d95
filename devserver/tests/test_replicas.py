"""Transfers of replicas between peers of a simulated cluster follow the source of Qdrant 1.19."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fault_injection import plant
from tests.support.patience import Patience
from tests.support.web.qdrant_nodes import DevServer, StartServer

COPY_S = 1.0
BODY = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": 1, "replication_factor": 1}


class Peers:
    """Three peers of one process, with one collection of one shard, which is on peer 1."""

    def __init__(self, server: DevServer) -> None:
        self.server = server
        self._clients = [httpx.Client(base_url=url, timeout=30) for url in server.urls]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def call(self, peer: int, method: str, path: str, body: Any = None) -> httpx.Response:
        return self._clients[peer - 1].request(method, f"/collections{path}", json=body)

    def cluster(self, body: Any, *, status: int = 200, peer: int = 1) -> str:
        answer = self.call(peer, "POST", "/c__1/cluster", body)
        assert answer.status_code == status, answer.text
        return "" if status == 200 else str(answer.json()["status"]["error"])

    def seen(self, peer: int = 1) -> dict[str, Any]:
        seen: dict[str, Any] = self.call(peer, "GET", "/c__1/cluster").json()["result"]
        return seen

    def states(self, shard: int = 0) -> dict[int, str]:
        seen = self.seen()
        replicas = [*seen["local_shards"], *seen["remote_shards"]]
        own = seen["peer_id"]
        return {replica.get("peer_id", own): replica["state"] for replica in replicas if replica["shard_id"] == shard}

    def eventually(self, states: dict[int, str]) -> None:
        patience = Patience(20)
        while (seen := self.states()) != states:
            assert not patience.is_over, seen
            time.sleep(0.02)

    def send_away(self, *peers: int) -> None:
        plant(self.server.data_dir, away=",".join(map(str, peers)))


def transfer(kind: str, source: int, target: int, **more: Any) -> dict[str, Any]:
    return {kind: {"shard_id": 0, "from_peer_id": source, "to_peer_id": target} | more}


OPTIONS = ("--peers", "3", "--activation-seconds", str(COPY_S))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Three peers, for tests that restore the initial state."""
    started = DevServer(tmp_path_factory.mktemp("peers"), *OPTIONS)
    yield started
    started.stop()


@pytest.fixture
def peers(running: DevServer) -> Iterator[Peers]:
    made = Peers(running)
    assert made.call(1, "PUT", "/c__1", BODY).status_code == 200
    yield made
    made.send_away()
    made.call(1, "DELETE", "/c__1")
    made.close()


@pytest.mark.parametrize(
    ("method", "state"), [("stream_records", "Partial"), ("snapshot", "Recovery"), (None, "Recovery")]
)
def test_copy_is_listed_until_active(peers: Peers, method: str | None, state: str) -> None:
    peers.cluster(transfer("replicate_shard", 1, 2, method=method), peer=3)

    listed, of_others = peers.seen()["shard_transfers"], peers.seen(2)["shard_transfers"]
    assert peers.states() == {1: "Active", 2: state}
    assert "Transferring" in listed[0].pop("comment")
    assert listed == of_others
    assert listed == [{"shard_id": 0, "from": 1, "to": 2, "sync": True, "method": method or "snapshot"}]
    peers.eventually({1: "Active", 2: "Active"})
    assert peers.seen()["shard_transfers"] == []


def test_moved_shard_leaves_its_peer(peers: Peers) -> None:
    peers.cluster(transfer("move_shard", 1, 3))

    assert peers.seen()["shard_transfers"][0]["sync"] is False
    peers.eventually({3: "Active"})


def test_aborted_copy_is_refilled_and_move_is_not(peers: Peers) -> None:
    peers.cluster(transfer("move_shard", 1, 3))
    peers.cluster(transfer("abort_transfer", 1, 3))
    assert peers.states() == {1: "Active"}

    peers.cluster(transfer("replicate_shard", 1, 2))
    peers.cluster(transfer("abort_transfer", 1, 2))
    peers.eventually({1: "Active", 2: "Active"})


def test_dropped_replica_ends_its_transfer(peers: Peers) -> None:
    peers.cluster(transfer("replicate_shard", 1, 2))

    peers.cluster({"drop_replica": {"shard_id": 0, "peer_id": 2}})

    assert peers.states() == {1: "Active"}
    assert peers.seen()["shard_transfers"] == []
    time.sleep(COPY_S * 1.5)
    assert peers.states() == {1: "Active"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"drop_replica": {"shard_id": 0, "peer_id": 1}}, 400, "at least one active replica after removing 1"),
        ({"drop_replica": {"shard_id": 0, "peer_id": 2}}, 400, "Peer 2 has no replica of shard 0"),
        ({"drop_replica": {"shard_id": 7, "peer_id": 1}}, 400, "Shard 7 of c__1 does not exist"),
        (transfer("replicate_shard", 1, 9), 400, "Peer 9 does not exist"),
        (transfer("replicate_shard", 2, 3), 400, "Shard 0 is not active on peer 2"),
        (transfer("move_shard", 1, 1), 422, "to_peer_id"),
        (transfer("abort_transfer", 1, 2), 404, "does not exist"),
        (transfer("replicate_shard", 1, 2, method="by_hand"), 400, "unknown variant"),
        ({"something": {}}, 400, "did not match any variant"),
        ({"start_resharding": {"direction": "up"}}, 501, "start_resharding"),
        (transfer("replicate_shard", 1, 2, method="resharding_stream_records"), 501, "resharding"),
    ],
)
def test_invalid_request_changes_nothing(peers: Peers, body: dict[str, Any], status: int, words: str) -> None:
    assert words in peers.cluster(body, status=status)
    assert peers.states() == {1: "Active"}


def test_shard_has_one_transfer_at_a_time(peers: Peers) -> None:
    peers.cluster(transfer("replicate_shard", 1, 2))

    message = peers.cluster(transfer("replicate_shard", 1, 3), status=400)

    assert "already involved in transfer 1 -> 2" in message


def test_replicas_of_unreachable_peer_are_dead(peers: Peers) -> None:
    peers.cluster(transfer("replicate_shard", 1, 2))
    peers.send_away(2)

    assert peers.states() == {1: "Active", 2: "Dead"}
    assert peers.call(2, "GET", "/c__1").status_code == 503
    peers.send_away()
    peers.eventually({1: "Active", 2: "Active"})


def test_last_active_replica_stays_active(peers: Peers) -> None:
    peers.cluster(transfer("replicate_shard", 1, 2))
    peers.eventually({1: "Active", 2: "Active"})

    peers.send_away(2, 3)
    assert peers.states() == {1: "Active", 2: "Dead"}


def test_copy_interrupted_by_a_kill_is_repeated(start_server: StartServer) -> None:
    with contextlib.closing(Peers(start_server(*OPTIONS))) as peers:
        peers.call(1, "PUT", "/c__1", BODY)
        peers.cluster(transfer("replicate_shard", 1, 2))
        peers.server.kill()

    with contextlib.closing(Peers(start_server(*OPTIONS))) as again:
        again.eventually({1: "Active", 2: "Active"})


def test_single_server_moves_nothing(server: DevServer, emptied: None) -> None:
    server.call("PUT", "/collections/c__1", BODY)

    answer = server.http.post("/collections/c__1/cluster", json=transfer("replicate_shard", 1, 2))

    assert answer.status_code == 405
    assert "standalone" in answer.json()["status"]["error"]
