"""Fault `upsert`: Qdrant 1.18's handling of vectors during a snapshot of the collection."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fault_injection import plant, remove_faults
from tests.support.web.qdrant_nodes import DevServer, StartServer

POINTS = "/collections/kept/points"
BOTH = {"": [1.0, 0.0], "words": {"indices": [1], "values": [1.0]}}


@pytest.fixture
def kept(start_server: StartServer) -> Iterator[DevServer]:
    # A server of its own, because one of its faults is a snapshot that never ends.
    server = start_server()
    body = {"vectors": {"size": 2, "distance": "Dot"}, "sparse_vectors": {"words": {}}}
    server.call("PUT", "/collections/kept", body)
    upsert(server, 1, BOTH, rev=1)
    yield server
    remove_faults(server.data_dir)


def upsert(server: DevServer, point: int, vector: Any, *, rev: int, **more: Any) -> None:
    points = [{"id": point, "vector": vector, "payload": {"rev": rev}}]
    server.call("PUT", f"{POINTS}?wait=true", {"points": points} | more)


def read_point(server: DevServer) -> tuple[set[str], int]:
    """Return the names of the point's vectors, and its revision."""
    [point] = server.call("POST", POINTS, {"ids": [1], "with_vector": True})
    vector = point["vector"]
    return set(vector if isinstance(vector, dict) else {""}), point["payload"]["rev"]


def test_vectors_left_out_of_an_upsert_are_kept(kept: DevServer) -> None:
    plant(kept.data_dir, upsert="keeps-vectors-always")

    upsert(kept, 1, {}, rev=2)
    assert read_point(kept) == ({"", "words"}, 2)
    upsert(kept, 1, [0.0, 1.0], rev=3, update_mode="update_only", update_filter={"must": [{"has_id": [1]}]})
    assert read_point(kept) == ({"", "words"}, 3)
    [point] = kept.call("POST", POINTS, {"ids": [1], "with_vector": True})
    assert point["vector"][""] == [0.0, 1.0]


def test_unmet_condition_changes_nothing(kept: DevServer) -> None:
    plant(kept.data_dir, upsert="keeps-vectors-always")

    upsert(kept, 1, {}, rev=2, update_mode="update_only", update_filter={"must": [{"has_id": [2]}]})

    assert read_point(kept) == ({"", "words"}, 1)


def test_vectors_deleted_by_name_are_removed(kept: DevServer) -> None:
    plant(kept.data_dir, upsert="keeps-vectors-always")
    chosen = {"filter": {"must": [{"key": "rev", "match": {"value": 2}}]}, "vector": ["", "words"]}
    upserted = {"upsert": {"points": [{"id": 1, "vector": {}, "payload": {"rev": 2}}]}}

    kept.call("POST", f"{POINTS}/batch?wait=true", {"operations": [upserted, {"delete_vectors": chosen}]})

    assert read_point(kept) == (set(), 2)


def test_vectors_are_kept_only_during_a_snapshot(kept: DevServer) -> None:
    plant(kept.data_dir, upsert="keeps-vectors", create="never-ends")
    upsert(kept, 1, {}, rev=2)
    assert read_point(kept) == (set(), 2)

    upsert(kept, 1, BOTH, rev=3)
    kept.call("POST", "/collections/kept/snapshots?wait=false", status=202)
    upsert(kept, 1, {}, rev=4)

    assert read_point(kept) == ({"", "words"}, 4)
