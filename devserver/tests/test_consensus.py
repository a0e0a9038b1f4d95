"""Peers of a simulated cluster that see changes late, and replicas that become active late."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qdrant_devserver.injected_faults import FAULTS
from tests.support.web.qdrant_nodes import DevServer, wait_for_value

BODY = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": 3, "replication_factor": 3}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    started = DevServer(tmp_path_factory.mktemp("peers"), "--peers", "3", "--activation-seconds", "0")
    yield started
    started.stop()


class Peers:
    """Three peers, numbered from 1."""

    def __init__(self, server: DevServer) -> None:
        self.server = server

    def ask(self, peer: int, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, self.server.urls[peer - 1] + path, json=body, timeout=10)

    def result(self, peer: int, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(peer, method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def metadata(self, peer: int) -> Any:
        return self.result(peer, "GET", "/collections/c__1")["config"].get("metadata")

    def fault(self, **faults: str) -> None:
        (self.server.data_dir / FAULTS).write_text(json.dumps(faults))


@pytest.fixture
def peers(running: DevServer) -> Iterator[Peers]:
    opened = Peers(running)
    opened.fault()
    opened.result(1, "PUT", "/collections/c__1", BODY | {"metadata": {"n": 1}})
    yield opened
    opened.fault()
    for name in ("c__1", "c__2"):
        opened.ask(1, "DELETE", f"/collections/{name}")


def test_change_is_visible_to_its_peer_first(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})
    peers.result(2, "POST", "/collections/aliases", _alias("c", "c__1"))
    values = [peers.metadata(peer) for peer in (1, 2, 3)]
    statuses = [peers.ask(peer, "POST", "/collections/c/points/count", {}).status_code for peer in (1, 2, 3)]
    peers.fault()

    assert values == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert statuses == [404, 200, 404]
    assert [peers.metadata(peer) for peer in (1, 2, 3)] == [{"n": 2}] * 3


def test_change_is_visible_to_all_after_the_lag(peers: Peers) -> None:
    peers.fault(lag="0.3")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})

    wait_for_value(lambda: [peers.metadata(peer) for peer in (1, 2, 3)], [{"n": 2}] * 3)


def test_peer_that_changes_sees_earlier_changes(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})
    peers.result(3, "PATCH", "/collections/c__1", {"metadata": {"m": 3}})

    assert [peers.metadata(peer) for peer in (1, 2, 3)] == [{"n": 1}, {"n": 2}, {"n": 2, "m": 3}]


def test_peer_without_replica_uses_a_replicas_view(peers: Peers) -> None:
    """As in Qdrant's source: the configuration is that of the first shard that responds."""
    peers.fault()
    peers.result(1, "PUT", "/collections/c__2", BODY | {"shard_number": 1, "replication_factor": 1})
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__2", {"metadata": {"n": 2}})

    values = [peers.result(peer, "GET", "/collections/c__2")["config"].get("metadata") for peer in (1, 2, 3)]
    assert values == [None, None, None]


def test_deleted_collection_is_visible_until_the_lag(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(1, "DELETE", "/collections/c__1")

    assert [peers.ask(peer, "GET", "/collections/c__1").status_code for peer in (1, 2, 3)] == [404, 200, 200]
    assert [peers.ask(peer, "GET", "/collections/c__1/cluster").status_code for peer in (1, 2)] == [404, 200]
    assert peers.ask(2, "POST", "/collections/c__1/points/count", {}).status_code == 404
    peers.result(2, "PUT", "/collections/c__1", BODY | {"metadata": {"n": 3}})
    assert peers.metadata(2) == {"n": 3}


def test_slow_replicas_become_active_later(peers: Peers) -> None:
    peers.fault(**{"slow-replicas": "3600"})
    peers.result(1, "PUT", "/collections/c__2", BODY)
    early = _states(peers), _listings(peers)
    peers.result(1, "DELETE", "/collections/c__2")
    peers.fault(**{"slow-replicas": "0.6"})
    peers.result(1, "PUT", "/collections/c__2", BODY)

    assert early == (["Initializing"] * 3, [404] * 3)
    wait_for_value(lambda: (_states(peers), _listings(peers)), (["Active"] * 3, [200] * 3))


def _listings(peers: Peers) -> list[int]:
    return [peers.ask(2, "GET", f"/collections/c__2/shards/{shard}/snapshots").status_code for shard in range(3)]


def _states(peers: Peers) -> list[str]:
    shards = peers.result(2, "GET", "/collections/c__2/cluster")["local_shards"]
    return [shard["state"] for shard in sorted(shards, key=lambda shard: int(shard["shard_id"]))]


def _alias(alias: str, name: str) -> Any:
    return {"actions": [{"create_alias": {"alias_name": alias, "collection_name": name}}]}
