"""Access control, the lock of the data folder, and the process metrics."""

import pathlib

import pytest

from qdrant_devserver.injected_faults import FAULTS
from qdrant_devserver.rest.access import LOCAL_HOST, foreign_page_reason
from tests.support.web.qdrant_nodes import DevServer, StartServer

pytestmark = pytest.mark.usefixtures("emptied")

OWN_HOST = b"127.0.0.1:6333"


def test_only_health_checks_need_no_key(start_server: StartServer) -> None:
    guarded = start_server("--api-key", "secret")

    answers = {path: guarded.http.get(path).status_code for path in ("/", "/healthz", "/readyz", "/livez", "/metrics")}

    assert answers == {"/": 200, "/healthz": 200, "/readyz": 200, "/livez": 200, "/metrics": 401}
    assert guarded.http.get("/collections").status_code == 401


@pytest.mark.parametrize("header", [{"api-key": "secret"}, {"authorization": "Bearer secret"}])
def test_key_is_accepted_in_either_header(start_server: StartServer, header: dict[str, str]) -> None:
    guarded = start_server("--api-key", "secret")

    assert guarded.http.get("/collections", headers=header).status_code == 200
    wrong = {name: value + "x" for name, value in header.items()}
    assert guarded.http.get("/collections", headers=wrong).status_code == 401


def test_second_server_on_a_data_folder_fails(start_server: StartServer) -> None:
    first = start_server()

    with pytest.raises(RuntimeError, match=r"in use by another development server \(process \d+\)"):
        start_server()
    assert first.http.get("/readyz").status_code == 200


def test_killed_server_releases_its_data_folder(start_server: StartServer) -> None:
    start_server().kill()

    assert start_server().http.get("/readyz").status_code == 200


def test_unsupported_version_is_rejected(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"1\.18 is the oldest"):
        start_server("--qdrant-version", "1.17.2", data_dir=tmp_path / "old")


def test_metrics_count_collections_and_points(server: DevServer) -> None:
    server.call("PUT", "/collections/counted", {"vectors": {"size": 1, "distance": "Dot"}})
    server.call("PUT", "/collections/counted/points", {"points": [{"id": 1, "vector": [1.0]}]})
    text = server.http.get("/metrics").text

    assert 'collection_points{id="counted"} 1' in text
    assert "collections_total 1" in text


def process_metrics(server: DevServer) -> dict[str, int]:
    """Return the metrics of the process and its system by name."""
    lines = [line.split() for line in server.http.get("/metrics").text.splitlines() if line.startswith(("pro", "sys"))]
    return {name: int(number) for name, number in lines}


def test_metrics_report_the_process(server: DevServer) -> None:
    before = process_metrics(server)
    for number in range(3):
        server.call("PUT", f"/collections/mapped{number}", {"vectors": {"size": 8, "distance": "Dot"}})
        server.call("PUT", f"/collections/mapped{number}/points", {"points": [{"id": 1, "vector": [1.0] * 8}]})

    after = process_metrics(server)

    assert set(before) == {"process_open_mmaps", "system_max_mmaps", "process_open_fds", "process_max_fds"}
    assert 0 < before["process_open_mmaps"] < after["process_open_mmaps"] < after["system_max_mmaps"]
    # Files of an earlier test may be closed in the meantime.
    assert min(before["process_open_fds"], after["process_open_fds"]) > 0


def test_fault_replaces_process_metrics(server: DevServer) -> None:
    faults = server.data_dir / FAULTS
    faults.write_bytes(b'{"process": "process_open_mmaps=900,system_max_mmaps=1000"}')

    metrics = process_metrics(server)
    assert (metrics["process_open_mmaps"], metrics["system_max_mmaps"]) == (900, 1000)
    assert metrics["process_open_fds"] > 0
    faults.write_bytes(b'{"process": "refused"}')
    assert server.http.get("/metrics").status_code == 403
    faults.unlink()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *((host, True) for host in ("localhost", "localhost:6333", "localhost.:6333", "api.localhost", "127.8.9.1:1")),
        *((host, True) for host in ("127.0.0.1", "127.0.0.1:6333", "[::1]", "[::1]:6333")),
        *((host, False) for host in ("", ":6333", "evil.example", "localhost.evil.example", "evillocalhost", "127.1")),
        *((host, False) for host in ("127.0.0.1.evil.example:6333", "127.0.0.1@evil.example", "127.0.0.1:6333:1")),
        *(
            (host, False)
            for host in ("0.0.0.0:6333", "[::]:6333", "::1", "[::1", "[localhost]", "[::1]evil", "127.0.0.1 ")
        ),
    ],
)
def test_local_hosts_are_recognised(host: str, is_local: bool) -> None:
    assert (LOCAL_HOST.fullmatch(host.encode()) is not None) is is_local


@pytest.mark.parametrize(
    ("sent", "passes"),
    [
        ({b"host": OWN_HOST}, True),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"none"}, True),
        ({b"host": OWN_HOST, b"origin": b"http://127.0.0.1:6333", b"sec-fetch-site": b"same-origin"}, True),
        ({b"host": b"LocalHost:6333", b"origin": b"http://localhost:6333"}, True),
        ({b"host": OWN_HOST, b"origin": b"http://evil.example"}, False),
        ({b"host": OWN_HOST, b"origin": b"https://127.0.0.1:6333"}, False),
        ({b"host": OWN_HOST, b"origin": b"null"}, False),
        ({b"host": OWN_HOST, b"sec-fetch-site": b"same-site"}, False),
        ({b"host": b"evil.example:6333", b"origin": b"http://evil.example:6333"}, False),
        ({}, False),
    ],
)
def test_foreign_pages_are_recognised(sent: dict[bytes, bytes], passes: bool) -> None:
    assert (foreign_page_reason(sent, scheme="http") is None) is passes


def test_request_of_a_foreign_page_is_rejected(server: DevServer) -> None:
    answer = server.http.get("/collections", headers={"origin": "http://evil.example"})

    assert answer.status_code == 403
    assert "Origin is 'http://evil.example'" in answer.json()["status"]["error"]
