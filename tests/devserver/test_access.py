"""Who gets in: the API key, and one server per data folder."""

import pathlib

import pytest

from tests.devserver.conftest import Server, StartServer

pytestmark = pytest.mark.usefixtures("emptied")


def test_without_the_key_only_health_is_answered(start_server: StartServer) -> None:
    guarded = start_server("--api-key", "secret")

    answers = {path: guarded.http.get(path).status_code for path in ("/", "/healthz", "/readyz", "/livez", "/metrics")}

    assert answers == {"/": 200, "/healthz": 200, "/readyz": 200, "/livez": 200, "/metrics": 401}
    assert guarded.http.get("/collections").status_code == 401


@pytest.mark.parametrize("header", [{"api-key": "secret"}, {"authorization": "Bearer secret"}])
def test_the_key_is_taken_in_either_header(start_server: StartServer, header: dict[str, str]) -> None:
    guarded = start_server("--api-key", "secret")

    assert guarded.http.get("/collections", headers=header).status_code == 200
    wrong = {name: value + "x" for name, value in header.items()}
    assert guarded.http.get("/collections", headers=wrong).status_code == 401


def test_a_second_server_on_a_data_folder_is_refused(start_server: StartServer) -> None:
    first = start_server()

    with pytest.raises(RuntimeError, match=r"in use by another development server \(process \d+\)"):
        start_server()
    assert first.http.get("/readyz").status_code == 200


def test_a_killed_server_leaves_its_folder_free(start_server: StartServer) -> None:
    start_server().kill()

    assert start_server().http.get("/readyz").status_code == 200


def test_a_version_that_is_not_served_is_refused(start_server: StartServer, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"1\.18 is the oldest"):
        start_server("--qdrant-version", "1.17.2", data_dir=tmp_path / "old")


def test_metrics_count_collections_and_points(server: Server) -> None:
    server.call("PUT", "/collections/counted", {"vectors": {"size": 1, "distance": "Dot"}})
    server.call("PUT", "/collections/counted/points", {"points": [{"id": 1, "vector": [1.0]}]})
    text = server.http.get("/metrics").text

    assert 'collection_points{id="counted"} 1' in text
    assert "collections_total 1" in text
