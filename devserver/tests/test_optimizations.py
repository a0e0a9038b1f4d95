"""Indexing runs in the background, concurrently with reads and writes; the collection's colour shows it."""

import os
import pathlib
import random
import time

import pytest

from tests.support.web.qdrant_nodes import DevServer, StartServer

SIZE = 64
POINTS = 1500
# 1,500 x 64 dimensions take 375 KiB.
LOW_THRESHOLD = 100
TOUCHED = 150

pytestmark = pytest.mark.usefixtures("emptied")


def vector() -> list[float]:
    return [random.gauss(0, 1) for _ in range(SIZE)]


def fill(server: DevServer, name: str, *, threshold: int) -> None:
    body = {"vectors": {"size": SIZE, "distance": "Cosine"}, "optimizers_config": {"indexing_threshold": threshold}}
    server.call("PUT", f"/collections/{name}", body)
    points = [{"id": n, "vector": vector(), "payload": {"n": n}} for n in range(POINTS)]
    server.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})


def test_collection_serves_while_it_is_indexed(server: DevServer) -> None:
    fill(server, "o", threshold=LOW_THRESHOLD)
    first_status = {server.call("GET", "/collections/o")["status"]}
    touched, runs, deadline = 0, [], time.monotonic() + 60
    while server.call("GET", "/collections/o")["status"] != "green":
        assert time.monotonic() < deadline
        if touched < TOUCHED:
            body = {"payload": {"w": touched}, "points": [touched]}
            server.call("POST", "/collections/o/points/payload?wait=true", body)
            touched += 1
        assert len(server.call("POST", "/collections/o/points/query", {"query": vector()})["points"]) == 10
        runs += server.call("GET", "/collections/o/optimizations")["running"]
    written = {"must": [{"key": "w", "range": {"gte": 0}}]}
    info = server.call("GET", "/collections/o")
    kept = server.call("POST", "/collections/o/points/count", {"filter": written})

    assert first_status == {"yellow"}
    assert {run["optimizer"] for run in runs} == {"indexing"}
    assert kept == {"count": touched}
    assert info["points_count"] == POINTS
    assert info["indexed_vectors_count"] > 0


def test_writes_during_indexing_are_indexed_next(server: DevServer) -> None:
    fill(server, "o", threshold=LOW_THRESHOLD)
    deadline = time.monotonic() + 60
    while not server.call("GET", "/collections/o/optimizations")["running"]:
        assert time.monotonic() < deadline
    points = [{"id": POINTS + n, "vector": vector()} for n in range(POINTS)]
    server.call("PUT", "/collections/o/points?wait=true", {"points": points})
    while (info := server.call("GET", "/collections/o"))["status"] != "green":
        assert time.monotonic() < deadline

    plain = info["points_count"] - info["indexed_vectors_count"]
    assert plain * SIZE * 4 <= LOW_THRESHOLD * 1024


def test_collection_stays_grey_until_an_update(start_server: StartServer) -> None:
    running = start_server()
    fill(running, "g", threshold=0)
    running.call("PATCH", "/collections/g", {"optimizers_config": {"indexing_threshold": LOW_THRESHOLD}})
    running.kill()
    running = start_server()

    running.call("PATCH", "/collections/g", {"metadata": {"a": 1}})
    time.sleep(1.5)
    grey = running.call("GET", "/collections/g")
    running.call("PATCH", "/collections/g", {"optimizers_config": {}})
    woken = running.call("GET", "/collections/g")["status"]
    running.wait_for_status("g", "green")

    assert (grey["status"], grey["indexed_vectors_count"]) == ("grey", 0)
    assert woken == "yellow"
    assert running.call("GET", "/collections/g")["indexed_vectors_count"] == POINTS


@pytest.mark.faults
def test_write_without_effect_wakes_a_collection(start_server: StartServer) -> None:
    running = start_server()
    fill(running, "g", threshold=0)
    running.call("PATCH", "/collections/g", {"optimizers_config": {"indexing_threshold": LOW_THRESHOLD}})
    running.kill()
    running = start_server()

    nothing = {"payload": {"x": 1}, "filter": {"must": [{"has_id": [10**9]}]}}
    running.call("POST", "/collections/g/points/payload?wait=true", nothing)

    running.wait_for_status("g", "green")


def test_changed_graph_is_rebuilt(start_server: StartServer) -> None:
    running = start_server()
    fill(running, "m", threshold=LOW_THRESHOLD)
    running.wait_for_status("m", "green")
    running.call("PATCH", "/collections/m", {"hnsw_config": {"m": 32}})
    assert running.call("GET", "/collections/m")["status"] == "yellow"
    running.wait_for_status("m", "green")
    running.stop()
    running = start_server()

    assert running.call("GET", "/collections/m")["status"] == "green"
    assert running.call("POST", "/collections/m/points/count", {}) == {"count": POINTS}


def test_collection_can_be_deleted_during_indexing(server: DevServer) -> None:
    fill(server, "d", threshold=LOW_THRESHOLD)
    while not server.call("GET", "/collections/d/optimizations")["running"]:
        time.sleep(0.02)
    server.call("DELETE", "/collections/d")

    server.call("GET", "/collections/d", status=404)
    fill(server, "d", threshold=0)
    assert server.call("POST", "/collections/d/points/count", {}) == {"count": POINTS}


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="reads the process's CPU time from /proc")
def test_idle_server_uses_no_cpu(start_server: StartServer) -> None:
    running = start_server()
    fill(running, "i", threshold=LOW_THRESHOLD)
    running.wait_for_status("i", "green")
    time.sleep(1.5)
    before = processor_seconds(running.process.pid)
    time.sleep(2)

    assert processor_seconds(running.process.pid) - before < 0.05


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
