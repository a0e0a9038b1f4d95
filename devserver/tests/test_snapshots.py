"""Snapshots: created during writes, recovered under another name or in place, and never incomplete."""

import concurrent.futures
import hashlib
import pathlib
import time
from typing import Any

import httpx
import pytest

from qdrant_devserver.injected_faults import FAULT_MARKER
from qdrant_devserver.storage.snapshot_files import OWN_FILE, SnapshotFiles
from tests.support.fault_injection import plant, remove_faults
from tests.support.patience import Patience
from tests.support.web.qdrant_nodes import DevServer, StartServer

VECTORS = {"vectors": {"size": 2, "distance": "Dot"}, "sparse_vectors": {"words": {"modifier": "idf"}}}
KEY = "a key of at least thirty-two characters"


@pytest.fixture(autouse=True)
def clean(emptied: None) -> None:
    """Leave the shared server without collections."""


def fill(server: DevServer, name: str = "s__1", count: int = 20, **more: Any) -> None:
    server.call("PUT", f"/collections/{name}", VECTORS | more)
    words = {"indices": [1, 7], "values": [1.0, 0.5]}
    points = [
        {"id": n, "vector": {"": [n, 1.0], "words": words}, "payload": {"n": n, "tag": f"t{n % 3}"}}
        for n in range(1, count + 1)
    ]
    server.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})
    server.call("PUT", f"/collections/{name}/index?wait=true", {"field_name": "tag", "field_schema": "keyword"})


def points_of(server: DevServer, name: str) -> list[dict[str, Any]]:
    body = {"limit": 10_000, "with_vector": True, "with_payload": True}
    points: list[dict[str, Any]] = server.call("POST", f"/collections/{name}/points/scroll", body)["points"]
    return points


def take(server: DevServer, name: str = "s__1") -> dict[str, Any]:
    snapshot: dict[str, Any] = server.call("POST", f"/collections/{name}/snapshots")
    return snapshot | {"location": f"{server.url}/collections/{name}/snapshots/{snapshot['name']}"}


def recover(server: DevServer, name: str, status: int = 200, **body: Any) -> Any:
    return server.call("PUT", f"/collections/{name}/snapshots/recover", {"priority": "snapshot"} | body, status=status)


def upload(server: DevServer, name: str, content: bytes, **parameters: str) -> httpx.Response:
    files = {"snapshot": ("any.snapshot", content)}
    return server.http.post(f"/collections/{name}/snapshots/upload", params=parameters, files=files)


@pytest.mark.parametrize(
    ("name", "is_found"), [("s/a.snapshot", True), ("..%2Fsecret", False), ("s%2F..%2F..%2Fsecret", False)]
)
def test_own_file_is_in_the_snapshot_folder(tmp_path: pathlib.Path, name: str, is_found: bool) -> None:
    (tmp_path / "secret").touch()
    files = SnapshotFiles(tmp_path)
    identity = files.own_file_header(files.root / "s")[OWN_FILE].partition("/")[0]

    found = [files.find_own(mark) is not None for mark in (f"{identity}/{name}", f"{identity}/{tmp_path}", f"x/{name}")]

    assert found == [is_found, False, False]


def download(server: DevServer, snapshot: dict[str, Any]) -> bytes:
    return server.http.get(snapshot["location"]).content


def names(server: DevServer) -> set[str]:
    return {item["name"] for item in server.call("GET", "/collections")["collections"]}


def unfinished(server: DevServer) -> list[pathlib.Path]:
    """Return the files of unfinished snapshots and collections in the data folder."""
    building = (server.data_dir / "collections").glob("creating-*")
    return [*building, *(server.data_dir / "snapshots-unfinished").iterdir()]


def test_recovered_copy_has_all_but_aliases(server: DevServer) -> None:
    fill(server, metadata={"owner": "a"}, hnsw_config={"m": 24})
    alias = {"create_alias": {"collection_name": "s__1", "alias_name": "s"}}
    server.call("POST", "/collections/aliases", {"actions": [alias]})
    snapshot = take(server)

    recover(server, "s__2", location=snapshot["location"], checksum=snapshot["checksum"])

    assert points_of(server, "s__2") == points_of(server, "s__1")
    original, copy = (server.call("GET", f"/collections/{name}") for name in ("s__1", "s__2"))
    assert copy["config"] == original["config"]
    assert copy["payload_schema"] == original["payload_schema"]
    assert server.call("GET", "/collections/s__2/aliases") == {"aliases": []}


def test_snapshot_has_physical_name_and_checksum(server: DevServer) -> None:
    fill(server)
    alias = {"create_alias": {"collection_name": "s__1", "alias_name": "s"}}
    server.call("POST", "/collections/aliases", {"actions": [alias]})
    now = time.time()

    snapshot = take(server, "s")
    content = download(server, snapshot)

    stem, _, moment = snapshot["name"].partition("-1-")
    assert stem == "s__1"
    assert moment in {time.strftime("%Y-%m-%d-%H-%M-%S.snapshot", time.gmtime(now + late)) for late in range(5)}
    assert snapshot["size"] == len(content)
    assert snapshot["checksum"] == hashlib.sha256(content).hexdigest()
    assert server.call("GET", "/collections/s/snapshots") == server.call("GET", "/collections/s__1/snapshots")


def test_snapshot_omits_holes_of_the_log(start_server: StartServer, on_disk: pathlib.Path) -> None:
    running = start_server(data_dir=on_disk)
    fill(running)

    assert take(running)["size"] < 2_000_000


def test_collection_without_points_is_recovered(server: DevServer) -> None:
    server.call("PUT", "/collections/s__1", VECTORS | {"metadata": {"a": 1}})
    recover(server, "s__2", location=take(server)["location"])

    assert server.call("GET", "/collections/s__2")["config"]["metadata"] == {"a": 1}
    fill(server, "s__3")
    recover(server, "s__3", location=take(server)["location"])
    assert points_of(server, "s__3") == []


def test_recovered_collection_survives_a_kill(start_server: StartServer) -> None:
    running = start_server()
    fill(running)
    snapshot = take(running)
    recover(running, "s__2", location=snapshot["location"])
    recover(running, "s__1", location=snapshot["location"])
    for name in ("s__1", "s__2"):
        point = {"id": 99, "vector": {"": [9.0, 9.0]}}
        running.call("PUT", f"/collections/{name}/points?wait=true", {"points": [point]})
    running.kill()

    again = start_server()
    assert {name: len(points_of(again, name)) for name in ("s__1", "s__2")} == {"s__1": 21, "s__2": 21}
    assert again.call("GET", "/collections/s__1/snapshots")[0]["checksum"] == snapshot["checksum"]


def test_recovery_in_place_keeps_configuration(server: DevServer) -> None:
    fill(server, metadata={"owner": "a"})
    before, snapshot = points_of(server, "s__1"), take(server)
    server.call("POST", "/collections/s__1/points/delete?wait=true", {"points": [1, 2, 3]})
    server.call("PATCH", "/collections/s__1", {"hnsw_config": {"m": 8}, "metadata": {"owner": "b"}})
    server.call("DELETE", "/collections/s__1/index/tag")
    server.call("PUT", "/collections/s__1/index?wait=true", {"field_name": "n", "field_schema": "integer"})
    own = server.call("GET", "/collections/s__1")

    recover(server, "s__1", location=snapshot["location"], checksum=snapshot["checksum"])

    assert points_of(server, "s__1") == before
    after = server.call("GET", "/collections/s__1")
    assert after["config"] == own["config"]
    assert after["payload_schema"] == {"n": {"data_type": "integer", "points": 20}}


def test_recovery_requires_equal_shard_number(server: DevServer) -> None:
    fill(server)
    fill(server, "s__2", shard_number=2)

    recover(server, "s__2", location=take(server)["location"], status=400)

    assert len(points_of(server, "s__2")) == 20


def test_upload_creates_the_collection(server: DevServer) -> None:
    fill(server, count=300)
    snapshot = take(server)

    answer = upload(server, "s__2", download(server, snapshot), priority="snapshot", checksum=snapshot["checksum"])

    assert answer.json()["result"] is True
    assert points_of(server, "s__2") == points_of(server, "s__1")


def test_uploaded_file_is_kept_as_a_snapshot(server: DevServer) -> None:
    """Like a real server: the file keeps its name, and the client has to delete it."""
    fill(server)
    snapshot = take(server)

    upload(server, "s__2", download(server, snapshot), priority="snapshot")

    (kept,) = server.call("GET", "/collections/s__2/snapshots")
    assert (kept["name"], kept["size"]) == ("any.snapshot", snapshot["size"])
    server.call("DELETE", "/collections/s__2/snapshots/any.snapshot")
    assert server.call("GET", "/collections/s__2/snapshots") == []


@pytest.mark.parametrize(
    ("spoil", "parameters", "status"),
    [
        (lambda content: content, {"checksum": "0" * 64}, 400),
        (lambda content: content, {"checksum": "short"}, 422),
        (lambda content: content, {"priority": "mine"}, 400),
        (lambda content: content[: len(content) // 2], {}, 500),
        (lambda content: content[:10_240], {}, 500),
        (lambda content: b"\0" * len(content), {}, 500),
        (lambda content: content.replace(b"segment", b"sEgment"), {}, 500),
        (lambda content: b"", {}, 500),
    ],
    ids=["wrong checksum", "no checksum", "priority", "half", "cut at an entry", "zeros", "other names", "empty"],
)
def test_broken_upload_leaves_nothing(server: DevServer, spoil: Any, parameters: dict[str, str], status: int) -> None:
    fill(server)
    content = spoil(download(server, take(server)))

    answer = upload(server, "s__2", content, **parameters)

    assert answer.status_code == status, answer.text
    assert names(server) == {"s__1"}
    assert unfinished(server) == []
    assert upload(server, "s__1", content, **parameters).status_code == status
    assert len(points_of(server, "s__1")) == 20


def test_upload_without_complete_field_is_rejected(server: DevServer) -> None:
    path = "/collections/s__2/snapshots/upload"
    cut = b'--b\r\nContent-Disposition: form-data; name="snapshot"; filename="a"\r\n\r\nabc'
    form = {"content-type": "multipart/form-data; boundary=b"}

    assert server.http.post(path, files={"other": b"x"}).status_code == 400
    assert server.http.post(path, content=cut, headers=form).status_code == 400
    assert server.http.post(path, json={}).status_code == 400
    assert unfinished(server) == []


def test_upload_is_not_held_in_memory(server: DevServer) -> None:
    def pieces() -> Any:
        yield b'--b\r\nContent-Disposition: form-data; name="snapshot"; filename="a"\r\n\r\n'
        for _ in range(150):
            yield bytes(1 << 20)
        yield b"\r\n--b--\r\n"

    fill(server)
    before = peak_memory_kib(server)
    form = {"content-type": "multipart/form-data; boundary=b"}
    answer = server.http.post("/collections/s__2/snapshots/upload", content=pieces(), headers=form)

    assert answer.status_code == 500
    assert peak_memory_kib(server) - before < 50_000


def peak_memory_kib(server: DevServer) -> int:
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_file_location_must_be_a_snapshot(server: DevServer) -> None:
    fill(server)
    path = server.data_dir / "snapshots" / "s__1" / take(server)["name"]

    recover(server, "s__2", location=f"file://{path}")

    assert len(points_of(server, "s__2")) == 20
    recover(server, "s__3", location=f"file://{path}.none", status=400)
    recover(server, "s__3", location=f"file://{server.data_dir}/snapshots/../lock", status=403)
    recover(server, "s__3", location="ftp://host/file", status=400)
    assert path.exists()


def test_foreign_snapshot_is_fetched_with_its_key(server: DevServer, start_server: StartServer) -> None:
    guarded = start_server("--api-key", KEY)
    guarded.http.headers["api-key"] = KEY
    fill(guarded)
    location = take(guarded)["location"]

    recover(server, "s__2", location=location, status=400)
    recover(server, "s__2", location=location, api_key=KEY)

    assert points_of(server, "s__2") == points_of(guarded, "s__1")


@pytest.mark.parametrize(("version", "status"), [("1.18.4", 200), ("1.18.2", 400), ("1.19.0", 400)])
def test_snapshot_requires_same_minor_version(
    server: DevServer, start_server: StartServer, version: str, status: int
) -> None:
    other = start_server("--qdrant-version", version)
    fill(server)

    recover(other, "s__2", location=take(server)["location"], status=status)

    assert names(other) == ({"s__2"} if status == 200 else set())


def test_request_without_wait_completes_later(server: DevServer) -> None:
    fill(server)
    accepted = server.http.post("/collections/s__1/snapshots?wait=false")
    (snapshot,) = eventually(lambda: server.call("GET", "/collections/s__1/snapshots"))
    location = f"{server.url}/collections/s__1/snapshots/{snapshot['name']}"
    again = server.http.put("/collections/s__2/snapshots/recover?wait=false", json={"location": location})

    assert (accepted.status_code, again.status_code) == (202, 202)
    assert accepted.json()["status"] == "accepted"
    eventually(lambda: "s__2" in names(server))
    assert len(points_of(server, "s__2")) == 20


def eventually(read: Any, within_s: float = 20) -> Any:
    patience = Patience(within_s)
    while not (value := read()):
        assert not patience.is_over
        time.sleep(0.02)
    return value


def test_snapshot_contains_acknowledged_writes(server: DevServer) -> None:
    fill(server, count=2000)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        snapshotting = pool.submit(take, server)
        acknowledged = 0
        while not snapshotting.done():
            point = {"id": 10_000 + acknowledged, "vector": {"": [1.0, 1.0]}}
            server.call("PUT", "/collections/s__1/points?wait=true", {"points": [point]})
            acknowledged += 1
    recover(server, "s__2", location=snapshotting.result()["location"])

    ids = {point["id"] for point in points_of(server, "s__2")}
    late = sorted(ids - set(range(1, 2001)))
    assert ids >= set(range(1, 2001))
    assert late == list(range(10_000, 10_000 + len(late)))
    assert len(points_of(server, "s__1")) == 2000 + acknowledged


@pytest.mark.parametrize("step", ["create", "recover"])
def test_full_disk_leaves_nothing(start_server: StartServer, step: str) -> None:
    running = start_server()
    fill(running)
    location = take(running)["location"] if step == "recover" else ""
    plant(running.data_dir, **{step: "disk-full"})

    if step == "create":
        running.call("POST", "/collections/s__1/snapshots", status=500)
    else:
        recover(running, "s__2", location=location, status=500)
        recover(running, "s__1", location=location, status=500)

    remove_faults(running.data_dir)
    assert unfinished(running) == []
    assert len(running.call("GET", "/collections/s__1/snapshots")) == (step == "recover")
    assert names(running) == {"s__1"}
    assert len(points_of(running, "s__1")) == 20


@pytest.mark.parametrize("step", ["create", "recover"])
def test_killed_server_leaves_nothing_unfinished(start_server: StartServer, step: str) -> None:
    running = start_server()
    fill(running)
    location = take(running)["location"] if step == "recover" else ""
    plant(running.data_dir, **{step: "kill"})
    path = "s__2/snapshots/recover" if step == "recover" else "s__1/snapshots"
    with pytest.raises(httpx.TransportError):
        running.http.request("PUT" if location else "POST", f"/collections/{path}", json={"location": location})
    running.process.wait(timeout=20)
    running.kill()
    leftover_count = len(unfinished(running))
    remove_faults(running.data_dir)

    port = location.split(":")[2].split("/")[0] if location else "0"
    again = start_server("--port", port)

    assert leftover_count > 0
    assert unfinished(again) == []
    assert names(again) == {"s__1"}
    assert len(points_of(again, "s__1")) == 20
    if location:
        recover(again, "s__2", location=location)
        assert len(points_of(again, "s__2")) == 20


def test_endless_recovery_shows_nothing(
    start_server: StartServer,
) -> None:
    running = start_server()
    fill(running)
    location = take(running)["location"]
    plant(running.data_dir, recover="never-ends")

    answer = running.http.put("/collections/s__2/snapshots/recover?wait=false", json={"location": location})

    assert answer.status_code == 202
    eventually((running.data_dir / f"{FAULT_MARKER}.recover").exists)
    assert names(running) == {"s__1"}
    remove_faults(running.data_dir)
    recover(running, "s__2", location=location)
    assert names(running) == {"s__1", "s__2"}
    running.stop()
    assert running.process.returncode == 0


def test_collection_deleted_during_recovery_is_404(server: DevServer) -> None:
    fill(server)
    location = take(server)["location"]
    plant(server.data_dir, recover="2")

    with concurrent.futures.ThreadPoolExecutor() as pool:
        path = "/collections/s__2/snapshots/recover"
        recovering = pool.submit(server.http.put, path, json={"location": location})
        eventually((server.data_dir / f"{FAULT_MARKER}.recover").exists)
        assert server.call("DELETE", "/collections/s__2") is True
        answer = recovering.result()

    remove_faults(server.data_dir)
    assert (answer.status_code, answer.json()["status"]["error"]) == (404, "Not found: shard 0 not found")
    assert names(server) == {"s__1"}
    assert server.call("DELETE", "/collections/s__2") is False
    recover(server, "s__2", location=location)
    assert points_of(server, "s__2") == points_of(server, "s__1")
