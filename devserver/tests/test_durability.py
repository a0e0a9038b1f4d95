"""No acknowledged change is lost and nothing is left incomplete, at whatever point the process is killed."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from qdrant_devserver.cluster.state import open_state
from qdrant_devserver.features import features_of
from qdrant_devserver.snapshots.collection_snapshots import create_snapshot, recover_collection
from qdrant_devserver.storage.catalogue import Catalogue
from qdrant_devserver.storage.configuration import create_configuration
from qdrant_devserver.storage.files import copy_tree, remove_leftovers
from qdrant_devserver.storage.snapshot_files import hash_file
from tests.support.fault_injection import plant, remove_faults
from tests.support.web.qdrant_nodes import DevServer, StartServer

FEATURES = features_of("1.18.3")
WATCHED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open"}
MAX_STEPS = 80
# Minimum number of points before a kill; with fewer, the test would prove nothing.
MIN_POINTS = 20


def vector(size: int = 8) -> list[float]:
    return [random.gauss(0, 1) for _ in range(size)]


def test_killed_server_keeps_acknowledged_points(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    acknowledged = write_until_killed(running, after_s=0.7)

    again = start_server()

    assert len(acknowledged) >= MIN_POINTS
    assert missing(again, acknowledged) == set()


def test_full_disk_rejects_changes_but_not_searches(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    one, other = ({"points": [{"id": number, "vector": vector()}]} for number in (1, 2))
    running.call("PUT", "/collections/k/points?wait=true", one)
    plant(running.data_dir, update="disk-full")

    running.call("PUT", "/collections/k/points?wait=true", other, status=500)
    running.call("POST", "/collections/k/points/delete?wait=true", {"points": [1]}, status=500)
    assert len(running.call("POST", "/collections/k/points/query", {"query": vector()})["points"]) == 1

    remove_faults(running.data_dir)
    running.call("PUT", "/collections/k/points?wait=true", other)
    assert running.call("POST", "/collections/k/points/count", {"exact": True})["count"] == 2


def test_too_little_free_disk_rejects_changes_but_not_searches(start_server: StartServer) -> None:
    """Qdrant wants room for two write-ahead logs before each change."""
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    running.call("PUT", "/collections/k/points?wait=true", {"points": [{"id": 1, "vector": vector()}]})
    larger_than_any_disk = {"wal_capacity_mb": 1 << 40}
    large = {"vectors": {"size": 8, "distance": "Cosine"}, "wal_config": larger_than_any_disk}
    running.call("PUT", "/collections/large", large)
    body = {"points": [{"id": 1, "vector": vector()}]}

    running.call("PUT", "/collections/large/points?wait=true", body, status=500)
    running.call("POST", "/collections/large/points/delete?wait=true", {"points": [1]}, status=500)

    assert running.call("POST", "/collections/large/points/query", {"query": vector()})["points"] == []
    assert running.call("POST", "/collections/k/points/count", {"exact": True})["count"] == 1


def test_killed_server_keeps_collection_state(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k__1", {"vectors": {"size": 8, "distance": "Cosine"}, "metadata": {"a": 1}})
    running.call("PATCH", "/collections/k__1", {"hnsw_config": {"m": 24}, "metadata": {"b": 2}})
    action = {"create_alias": {"collection_name": "k__1", "alias_name": "k"}}
    running.call("POST", "/collections/aliases", {"actions": [action]})
    running.call("PUT", "/collections/k/index?wait=true", {"field_name": "t", "field_schema": "keyword"})
    running.call("PUT", "/collections/k/points?wait=true", {"points": [{"id": 1, "vector": vector()}]})
    running.call("PUT", "/collections/k/index?wait=true", {"field_name": "n", "field_schema": "integer"})
    before = running.call("GET", "/collections/k")
    running.kill()

    assert start_server().call("GET", "/collections/k") == before
    assert before["config"]["metadata"] == {"a": 1, "b": 2}
    assert before["payload_schema"].keys() == {"t", "n"}


def test_stopped_server_has_flushed(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    running.call("PUT", "/collections/k/points?wait=true", {"points": [{"id": 1, "vector": vector()}]})
    running.stop()

    assert running.process.returncode == 0
    assert len(list(running.data_dir.glob("collections/*/shard-0/summary.json"))) == 1
    assert start_server().call("GET", "/collections/k")["points_count"] == 1


def test_closed_collection_reports_its_statistics(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        state = open_state(tmp_path, FEATURES)
        configuration = create_configuration({"vectors": {"size": 1, "distance": "Dot"}}, FEATURES)
        collection = state.catalogue.create("c", configuration)
        state.shards.open(collection)
        await state.close()
        state = open_state(tmp_path, FEATURES)
        assert state.shards.summary(state.catalogue.resolve("c")).points == 0
        assert len(state.shards) == 0
        await state.close()

    asyncio.run(scenario())


def test_create_and_delete_are_atomic_at_each_step(tmp_path: pathlib.Path) -> None:
    """Kill the process at each file system change in turn. Afterwards a collection exists completely or not at all."""
    for step in itertools.count(1):
        assert step < MAX_STEPS
        data_dir = tmp_path / str(step)
        survived, done = die_at(step, data_dir, create_and_delete)
        check_whole(data_dir, done)
        if survived:
            break
    assert step > 10


def test_snapshots_are_atomic_at_each_step(tmp_path: pathlib.Path) -> None:
    for step in itertools.count(1):
        assert step < MAX_STEPS
        data_dir = tmp_path / str(step)
        survived, done = die_at(step, data_dir, snapshot_and_recover)
        check_snapshots(data_dir, done)
        if survived:
            break
    assert step > 20


def snapshot_and_recover(data_dir: pathlib.Path, report: int) -> None:
    async def scenario() -> None:
        state = open_state(data_dir, FEATURES)
        (peer,) = state.cluster.peers
        configuration = create_configuration(
            {"vectors": {"size": 1, "distance": "Dot"}, "metadata": {"a": 1}}, FEATURES
        )
        kept = state.catalogue.create("kept", configuration)
        os.write(report, b"kept ")
        snapshot = await create_snapshot(state, kept, peer)
        os.write(report, b"made ")
        archive = peer.files.find("kept", snapshot["name"])
        await recover_collection(state, "copy", archive, peer, snapshot["checksum"])
        os.write(report, b"copied ")
        await recover_collection(state, "kept", archive, peer, None)
        os.write(report, b"replaced ")

    asyncio.run(scenario())


def check_snapshots(data_dir: pathlib.Path, done: list[str]) -> None:
    state = open_state(data_dir, FEATURES)
    try:
        collections, files = state.catalogue.collections, state.cluster.peers[0].files
        assert collections.keys() >= ({"kept"} if "kept" in done else set())
        assert collections.keys() >= ({"copy"} if "copied" in done else set())
        assert all(collection.record.configuration["metadata"] == {"a": 1} for collection in collections.values())
        listed = files.list("kept")
        assert len(listed) >= ("made" in done)
        for file in listed:
            assert hash_file(files.find("kept", file["name"])) == file["checksum"]
        assert list(data_dir.glob("collections/*-*")) == []
        assert list(data_dir.glob("snapshots-unfinished/*")) == []
    finally:
        state.lock.release()


def die_at(step: int, data_dir: pathlib.Path, scenario: Callable[[pathlib.Path, int], None]) -> tuple[bool, list[str]]:
    """Run the scenario in a forked process and kill it at its `step`-th change; return what it reported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        count = itertools.count(1)

        def kill_at_step(event: str, arguments: tuple[Any, ...]) -> None:
            if event in WATCHED and next(count) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at_step)
        scenario(data_dir, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as finished:
        done = finished.read().split()
    _, status = os.waitpid(child, 0)
    return status == 0, done


def create_and_delete(data_dir: pathlib.Path, report: int) -> None:
    catalogue = Catalogue(data_dir)
    catalogue.load()
    configuration = create_configuration({"vectors": {"size": 1, "distance": "Dot"}}, FEATURES)
    kept = catalogue.create("kept", configuration)
    os.write(report, b"kept ")
    doomed = catalogue.create("doomed", configuration)
    before = dict(catalogue.aliases)
    catalogue.create_alias("first", kept.name)
    catalogue.create_alias("second", doomed.name)
    catalogue.save_aliases(before)
    os.write(report, b"aliases ")
    catalogue.remove(doomed)
    os.write(report, b"removed ")
    catalogue.create("doomed", configuration)
    os.write(report, b"again ")


def check_whole(data_dir: pathlib.Path, done: list[str]) -> None:
    data_dir.mkdir(exist_ok=True)
    catalogue = Catalogue(data_dir)
    catalogue.load()
    names = catalogue.collections.keys()
    assert ("kept" in names) >= ("kept" in done)
    assert ("doomed" in names) >= ("again" in done or (done[-1:] == ["aliases"] and "second" in catalogue.aliases))
    assert "removed" not in done or "second" not in catalogue.aliases
    assert ("first" in catalogue.aliases) >= ("aliases" in done)
    assert set(catalogue.aliases.values()) <= names
    for collection in catalogue.collections.values():
        assert collection.record.configuration["params"]["vectors"]["size"] == 1
    leftovers = [path.name for path in (data_dir / "collections").iterdir() if "-" in path.name]
    assert leftovers == []


def test_copy_preserves_holes(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "log").open("wb") as log:
        log.write(b"begin")
        log.seek(30_000_000)
        log.write(b"end")
        log.truncate(40_000_000)
    copy_tree(source, tmp_path / "copy")
    copy = tmp_path / "copy" / "log"

    assert copy.read_bytes() == (source / "log").read_bytes()
    assert copy.stat().st_blocks * 512 < 1_000_000


def test_leftovers_are_removed_while_being_written(
    tmp_path: pathlib.Path,
) -> None:
    folder, until = tmp_path / "left", time.monotonic() + 0.3
    folder.mkdir()

    def write() -> None:
        number = 0
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                (folder / f"{(number := number + 1)}").mkdir()

    with concurrent.futures.ThreadPoolExecutor(4) as helpers:
        writing = [helpers.submit(write) for _ in range(4)]
        remove_leftovers(folder)
        for part in writing:
            part.result()

    assert not folder.exists()


@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.6, 1.1, 1.4, 1.8, 2.3, 3.0, 4.0])
def test_kill_during_indexing_keeps_points(start_server: StartServer, after_s: float) -> None:
    """The kill happens before, during and after the copy, the rebuild and the switch to the optimized copy."""
    running = start_server()
    body = {"vectors": {"size": 64, "distance": "Cosine"}, "optimizers_config": {"indexing_threshold": 10}}
    running.call("PUT", "/collections/k", body)
    points = [{"id": 10**9 + n, "vector": vector(64)} for n in range(3000)]
    running.call("PUT", "/collections/k/points?wait=true", {"points": points})
    acknowledged = write_until_killed(running, after_s=after_s, size=64) | {point["id"] for point in points}

    again = start_server()
    again.call("PATCH", "/collections/k", {"optimizers_config": {}})
    again.wait_for_status("k", "green")

    assert missing(again, acknowledged) == set()
    assert again.call("GET", "/collections/k")["indexed_vectors_count"] > 0


@pytest.mark.faults
@pytest.mark.parametrize("round_", range(5))
def test_kill_under_many_writers_keeps_points(start_server: StartServer, round_: int) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    with concurrent.futures.ThreadPoolExecutor(8) as writers:
        starts = range(0, 8 * 10**6, 10**6)
        parts = [writers.submit(write_points, running.url, 8, start, start + 10**6) for start in starts]
        time.sleep(0.5 + round_ * 0.3)
        running.kill()
    acknowledged = set().union(*(part.result() for part in parts))

    assert missing(start_server(), acknowledged) == set()


def write_until_killed(running: DevServer, *, after_s: float, size: int = 8) -> set[int]:
    with concurrent.futures.ThreadPoolExecutor(1) as writer:
        acknowledged: set[int] = set()
        written = writer.submit(write_points, running.url, size, 0, 10**6, acknowledged)
        time.sleep(after_s)
        until = time.monotonic() + 20
        while len(acknowledged) < MIN_POINTS and time.monotonic() < until:
            time.sleep(0.02)
        running.kill()
    return written.result()


def write_points(url: str, size: int, first: int, last: int, acknowledged: set[int] | None = None) -> set[int]:
    """Write points one by one until the server stops; add each acknowledged one to the set, and return the set."""
    acknowledged = set() if acknowledged is None else acknowledged
    with httpx.Client(base_url=url) as http:
        for point in range(first, last):
            body = {"points": [{"id": point, "vector": vector(size), "payload": {"n": point}}]}
            try:
                answer = http.put("/collections/k/points?wait=true", json=body)
            except httpx.TransportError:
                break
            assert answer.json()["result"]["status"] == "completed"
            acknowledged.add(point)
    return acknowledged


def missing(running: DevServer, points: set[int]) -> set[int]:
    found = running.call("POST", "/collections/k/points", {"ids": sorted(points), "with_payload": False})
    return points - {point["id"] for point in found}
