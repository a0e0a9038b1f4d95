"""Peers of a simulated cluster that learn late of what another was told, and replicas that take their time."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qdrant_devserver.injected_faults import FAULTS
from tests.support.web.qdrant_nodes import DevServer, eventually

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
    made = Peers(running)
    made.fault()
    made.result(1, "PUT", "/collections/c__1", BODY | {"metadata": {"n": 1}})
    yield made
    made.fault()
    for name in ("c__1", "c__2"):
        made.ask(1, "DELETE", f"/collections/{name}")


def test_the_peer_that_took_a_change_knows_it_and_the_others_later(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})
    peers.result(2, "POST", "/collections/aliases", _alias("c", "c__1"))
    told = [peers.metadata(peer) for peer in (1, 2, 3)]
    statuses = [peers.ask(peer, "POST", "/collections/c/points/count", {}).status_code for peer in (1, 2, 3)]
    peers.fault()

    assert told == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert statuses == [404, 200, 404]
    assert [peers.metadata(peer) for peer in (1, 2, 3)] == [{"n": 2}] * 3


def test_the_others_know_a_change_once_the_lag_is_over(peers: Peers) -> None:
    peers.fault(lag="0.3")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})

    eventually(lambda: [peers.metadata(peer) for peer in (1, 2, 3)], [{"n": 2}] * 3)


def test_who_takes_a_change_knows_those_before_it(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__1", {"metadata": {"n": 2}})
    peers.result(3, "PATCH", "/collections/c__1", {"metadata": {"m": 3}})

    assert [peers.metadata(peer) for peer in (1, 2, 3)] == [{"n": 1}, {"n": 2}, {"n": 2, "m": 3}]


def test_a_peer_without_a_replica_tells_what_one_with_a_replica_knows(peers: Peers) -> None:
    """Seen in Qdrant's source: the configuration comes with the first shard that answers."""
    peers.fault()
    peers.result(1, "PUT", "/collections/c__2", BODY | {"shard_number": 1, "replication_factor": 1})
    peers.fault(lag="60")
    peers.result(2, "PATCH", "/collections/c__2", {"metadata": {"n": 2}})

    told = [peers.result(peer, "GET", "/collections/c__2")["config"].get("metadata") for peer in (1, 2, 3)]
    assert told == [None, None, None]


def test_a_collection_that_is_gone_is_still_told_of_and_serves_nothing(peers: Peers) -> None:
    peers.fault(lag="60")
    peers.result(1, "DELETE", "/collections/c__1")

    assert [peers.ask(peer, "GET", "/collections/c__1").status_code for peer in (1, 2, 3)] == [404, 200, 200]
    assert [peers.ask(peer, "GET", "/collections/c__1/cluster").status_code for peer in (1, 2)] == [404, 200]
    assert peers.ask(2, "POST", "/collections/c__1/points/count", {}).status_code == 404
    peers.result(2, "PUT", "/collections/c__1", BODY | {"metadata": {"n": 3}})
    assert peers.metadata(2) == {"n": 3}


def test_slow_replicas_are_active_later_and_have_no_files_before(peers: Peers) -> None:
    peers.fault(**{"slow-replicas": "3600"})
    peers.result(1, "PUT", "/collections/c__2", BODY)
    early = _states(peers), _listings(peers)
    peers.result(1, "DELETE", "/collections/c__2")
    peers.fault(**{"slow-replicas": "0.6"})
    peers.result(1, "PUT", "/collections/c__2", BODY)

    assert early == (["Initializing"] * 3, [404] * 3)
    eventually(lambda: (_states(peers), _listings(peers)), (["Active"] * 3, [200] * 3))


def _listings(peers: Peers) -> list[int]:
    return [peers.ask(2, "GET", f"/collections/c__2/shards/{shard}/snapshots").status_code for shard in range(3)]


def _states(peers: Peers) -> list[str]:
    told = peers.result(2, "GET", "/collections/c__2/cluster")["local_shards"]
    return [each["state"] for each in sorted(told, key=lambda each: int(each["shard_id"]))]


def _alias(alias: str, name: str) -> Any:
    return {"actions": [{"create_alias": {"alias_name": alias, "collection_name": name}}]}
