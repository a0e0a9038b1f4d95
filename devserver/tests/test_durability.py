"""Nothing acknowledged is lost, and nothing is left half-made, wherever the process is killed."""

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
from qdrant_devserver.storage.files import copy_tree, remove_left
from qdrant_devserver.storage.snapshot_files import hash_file
from tests.support.planted import lift, plant
from tests.support.web.qdrant_nodes import DevServer, StartServer

FEATURES = features_of("1.18.3")
WATCHED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open"}
MOST_STEPS = 80
# Points that a kill has to come after, or it shows nothing.
FEWEST = 20


def vector(size: int = 8) -> list[float]:
    return [random.gauss(0, 1) for _ in range(size)]


def test_a_killed_server_has_every_acknowledged_point(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    acknowledged = write_until_killed(running, after_s=0.7)

    again = start_server()

    assert len(acknowledged) >= FEWEST
    assert missing(again, acknowledged) == set()


def test_a_full_disk_refuses_changes_and_answers_searches(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    one, other = ({"points": [{"id": number, "vector": vector()}]} for number in (1, 2))
    running.call("PUT", "/collections/k/points?wait=true", one)
    plant(running.data_dir, update="disk-full")

    running.call("PUT", "/collections/k/points?wait=true", other, status=500)
    running.call("POST", "/collections/k/points/delete?wait=true", {"points": [1]}, status=500)
    assert len(running.call("POST", "/collections/k/points/query", {"query": vector()})["points"]) == 1

    lift(running.data_dir)
    running.call("PUT", "/collections/k/points?wait=true", other)
    assert running.call("POST", "/collections/k/points/count", {"exact": True})["count"] == 2


def test_a_killed_server_has_its_collections_aliases_and_indexes(start_server: StartServer) -> None:
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


def test_a_stopped_server_has_flushed_and_ended_in_good_order(start_server: StartServer) -> None:
    running = start_server()
    running.call("PUT", "/collections/k", {"vectors": {"size": 8, "distance": "Cosine"}})
    running.call("PUT", "/collections/k/points?wait=true", {"points": [{"id": 1, "vector": vector()}]})
    running.stop()

    assert running.process.returncode == 0
    assert len(list(running.data_dir.glob("collections/*/shard-0/summary.json"))) == 1
    assert start_server().call("GET", "/collections/k")["points_count"] == 1


def test_a_stopped_server_answers_for_a_collection_without_opening_it(tmp_path: pathlib.Path) -> None:
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


def test_create_and_delete_leave_nothing_half_made_at_any_step(tmp_path: pathlib.Path) -> None:
    """The process dies at every change of a file or folder in turn; afterwards a thing is there whole or not at all."""
    for step in itertools.count(1):
        assert step < MOST_STEPS
        data_dir = tmp_path / str(step)
        survived, done = die_at(step, data_dir, create_and_delete)
        check_whole(data_dir, done)
        if survived:
            break
    assert step > 10


def test_a_snapshot_and_what_is_recovered_from_it_are_whole_or_not_there_at_any_step(tmp_path: pathlib.Path) -> None:
    for step in itertools.count(1):
        assert step < MOST_STEPS
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
        made = await create_snapshot(state, kept, peer)
        os.write(report, b"made ")
        archive = peer.files.find("kept", made["name"])
        await recover_collection(state, "copy", archive, peer, made["checksum"])
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
        assert all(each.record.configuration["metadata"] == {"a": 1} for each in collections.values())
        listed = files.list("kept")
        assert len(listed) >= ("made" in done)
        for file in listed:
            assert hash_file(files.find("kept", file["name"])) == file["checksum"]
        assert list(data_dir.glob("collections/*-*")) == []
        assert list(data_dir.glob("snapshots-unfinished/*")) == []
    finally:
        state.lock.release()


def die_at(step: int, data_dir: pathlib.Path, scenario: Callable[[pathlib.Path, int], None]) -> tuple[bool, list[str]]:
    """Run the scenario in a forked process that is killed at its step-th change; return what it had finished."""
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


def test_holes_in_a_copied_file_stay_holes(tmp_path: pathlib.Path) -> None:
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


def test_what_a_killed_server_left_is_removed_though_its_helper_writes_for_a_moment_longer(
    tmp_path: pathlib.Path,
) -> None:
    left, until = tmp_path / "left", time.monotonic() + 0.3
    left.mkdir()

    def write() -> None:
        number = 0
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                (left / f"{(number := number + 1)}").mkdir()

    with concurrent.futures.ThreadPoolExecutor(4) as helpers:
        writing = [helpers.submit(write) for _ in range(4)]
        remove_left(left)
        for part in writing:
            part.result()

    assert not left.exists()


@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.6, 1.1, 1.4, 1.8, 2.3, 3.0, 4.0])
def test_a_server_killed_while_it_indexes_has_every_acknowledged_point(
    start_server: StartServer, after_s: float
) -> None:
    """The kill falls before, in and after the copy, the rebuilding and the switch to the optimized copy."""
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
def test_a_server_killed_under_many_writers_has_every_acknowledged_point(
    start_server: StartServer, round_: int
) -> None:
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
        while len(acknowledged) < FEWEST and time.monotonic() < until:
            time.sleep(0.02)
        running.kill()
    return written.result()


def write_points(url: str, size: int, first: int, last: int, acknowledged: set[int] | None = None) -> set[int]:
    """Write points one by one until the server is gone; return those that it acknowledged, added as they are."""
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
