"""Named vectors are added to and dropped from a collection in use, and the result survives a kill."""

from typing import Any

import pytest

from qdrant_devserver.storage.collection import load_record, save_record
from tests.support.web.qdrant_nodes import DevServer, StartServer

POINTS = "/collections/v/points"
OLD = [0.1, 0.2]
IDF = {"sparse": {"modifier": "idf"}}
DENSE = {"dense": {"size": 3, "distance": "Dot"}}

pytestmark = pytest.mark.usefixtures("emptied")


def sparse(*indices: int) -> dict[str, Any]:
    return {"indices": list(indices), "values": [1.0] * len(indices)}


def create(server: DevServer, **body: Any) -> None:
    server.call("PUT", "/collections/v", {"vectors": {"size": 2, "distance": "Dot"}} | body)
    server.call("PUT", f"{POINTS}?wait=true", {"points": [{"id": 1, "vector": OLD}]})


def add(server: DevServer, name: str, body: dict[str, Any], status: int = 200) -> Any:
    return server.call("PUT", f"/collections/v/vectors/{name}?wait=true", body, status=status)


def drop(server: DevServer, name: str) -> Any:
    return server.call("DELETE", f"/collections/v/vectors/{name}?wait=true")


def upsert(server: DevServer, point: int, vector: Any) -> None:
    server.call("PUT", f"{POINTS}?wait=true", {"points": [{"id": point, "vector": vector}]})


def params_of(server: DevServer) -> Any:
    return server.call("GET", "/collections/v")["config"]["params"]


def vectors_of(server: DevServer, point: int) -> Any:
    return server.call("GET", f"{POINTS}/{point}")["vector"]


def find(server: DevServer, **body: Any) -> list[int]:
    return [found["id"] for found in server.call("POST", f"{POINTS}/query", body)["points"]]


def test_added_vectors_are_in_the_configuration(server: DevServer) -> None:
    create(server)
    answer = add(server, "bm25", IDF)
    add(server, "other", DENSE)
    params = params_of(server)

    assert answer["status"] == "completed"
    assert params["vectors"] == {"": {"size": 2, "distance": "Dot"}, "other": {"size": 3, "distance": "Dot"}}
    assert params["sparse_vectors"] == {"bm25": {"modifier": "idf"}}


def test_points_are_found_by_added_vectors(server: DevServer) -> None:
    create(server)
    add(server, "bm25", IDF)
    add(server, "other", DENSE)
    upsert(server, 2, {"": OLD, "bm25": sparse(5), "other": [1.0, 0.0, 0.0]})
    server.call("PUT", f"{POINTS}/vectors?wait=true", {"points": [{"id": 1, "vector": {"bm25": sparse(6)}}]})

    assert find(server, query=sparse(6), using="bm25") == [1]
    assert find(server, query=[1.0, 0.0, 0.0], using="other") == [2]
    assert vectors_of(server, 1) == {"": pytest.approx(OLD), "bm25": sparse(6)}


def test_added_vector_is_missing_in_old_points(server: DevServer) -> None:
    create(server)
    add(server, "bm25", IDF)
    upsert(server, 2, {"bm25": sparse(5)})
    missing = {"must_not": [{"has_vector": "bm25"}]}

    assert server.call("POST", f"{POINTS}/count", {"filter": missing}) == {"count": 1}


def test_vector_can_be_added_before_any_point(server: DevServer) -> None:
    server.call("PUT", "/collections/v", {})
    add(server, "bm25", IDF)
    upsert(server, 1, {"bm25": sparse(1)})

    assert find(server, query=sparse(1), using="bm25") == [1]


def test_dropped_vector_is_removed(server: DevServer) -> None:
    create(server, sparse_vectors={"bm25": {"modifier": "idf"}})
    upsert(server, 2, {"": OLD, "bm25": sparse(5)})
    drop(server, "bm25")

    assert params_of(server)["sparse_vectors"] == {}
    assert vectors_of(server, 2) == pytest.approx(OLD)
    server.call("POST", f"{POINTS}/query", {"query": sparse(5), "using": "bm25"}, status=400)


def test_dropped_name_can_be_reused(server: DevServer) -> None:
    create(server, sparse_vectors={"x": {}})
    upsert(server, 2, {"x": sparse(5)})
    drop(server, "x")
    add(server, "x", DENSE)
    upsert(server, 3, {"x": [1.0, 0.0, 0.0]})

    assert vectors_of(server, 2) == {}
    assert vectors_of(server, 3) == {"x": [1.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    ("name", "body", "status", "message"),
    [
        ("bm25", {"sparse": {}}, 400, "different configuration"),
        ("bm25", DENSE, 400, "already exists as a sparse vector"),
        ("dense", {"dense": {"size": 4, "distance": "Dot"}}, 400, "different configuration"),
        ("dense", IDF, 400, "already exists as a dense vector"),
        ("new", {}, 400, "VectorNameConfig"),
        ("new", {"dense": {"size": 3}}, 400, "distance"),
        ("new", {"dense": {"size": 0, "distance": "Dot"}}, 422, "size"),
        ("new", {"dense": {"size": 65537, "distance": "Dot"}}, 422, "size"),
        ("new", {"sparse": {"modifier": "tf"}}, 400, "tf"),
        ("a%7Cb", IDF, 400, "a|b"),
        ("n" * 201, IDF, 400, "Invalid vector name"),
        ("new", {"dense": {"size": 3, "distance": "Dot", "multivector_config": {}}}, 501, "multivectors"),
    ],
)
def test_invalid_vector_is_not_added(server: DevServer, name: str, body: Any, status: int, message: str) -> None:
    vectors = {"dense": {"size": 3, "distance": "Dot"}}
    create_body = {"vectors": vectors, "sparse_vectors": {"bm25": {"modifier": "idf"}}}
    server.call("PUT", "/collections/v", create_body)
    before = params_of(server)
    answer = server.http.put(f"/collections/v/vectors/{name}", json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert params_of(server) == before


def test_modifier_change_of_stored_vector_is_501(server: DevServer) -> None:
    server.call("PUT", "/collections/v", {"sparse_vectors": {"bm25": {}}})
    server.call("PATCH", "/collections/v", {"sparse_vectors": {"bm25": {"modifier": "idf"}}})
    upsert(server, 1, {"bm25": sparse(1)})
    server.call("PATCH", "/collections/v", {"sparse_vectors": {"bm25": {"modifier": "none"}}}, status=501)

    assert params_of(server)["sparse_vectors"] == {"bm25": {"modifier": "idf"}}


def test_add_and_drop_need_no_rebuild(server: DevServer) -> None:
    create(server)
    add(server, "other", DENSE)
    added = server.call("GET", "/collections/v")["status"]
    drop(server, "other")

    assert (added, server.call("GET", "/collections/v")["status"]) == ("green", "green")


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_sparse_vectors_survive_a_restart(start_server: StartServer, end: str) -> None:
    running = start_server()
    create(running, sparse_vectors={"bm25": {"modifier": "idf"}})
    points = [{"id": n, "vector": {"bm25": {"text": f"word{n}", "model": "qdrant/bm25"}}} for n in range(200)]
    running.call("PUT", f"{POINTS}?wait=true", {"points": points})
    request = {"query": {"text": "word7", "model": "qdrant/bm25"}, "using": "bm25", "with_vector": True}
    before = running.call("POST", f"{POINTS}/query", request)
    getattr(running, end)()

    assert start_server().call("POST", f"{POINTS}/query", request) == before
    assert [point["id"] for point in before["points"]] == [7]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_vector_changes_survive_a_restart(start_server: StartServer, end: str) -> None:
    """The vector `again` gets another shape. The replay of the log must not apply the old shape to the new one."""
    running = start_server()
    create(running, sparse_vectors={"dropped": {}, "again": {}})
    upsert(running, 2, {"": OLD, "dropped": sparse(1), "again": sparse(1)})
    add(running, "bm25", IDF)
    drop(running, "dropped")
    drop(running, "again")
    add(running, "again", DENSE)
    upsert(running, 3, {"bm25": sparse(5), "again": [1.0, 0.0, 0.0]})
    before = params_of(running)
    getattr(running, end)()
    restarted = start_server()

    assert params_of(restarted) == before
    assert [vectors_of(restarted, point) for point in (1, 2, 3)] == [
        pytest.approx(OLD),
        pytest.approx(OLD),
        {"bm25": sparse(5), "again": [1.0, 0.0, 0.0]},
    ]
    assert find(restarted, query=sparse(5), using="bm25") == [3]
    restarted.call("PATCH", "/collections/v", {"hnsw_config": {"m": 24}, "params": {"on_disk_payload": False}})
    restarted.wait_for_status("v", "green")
    assert restarted.call("POST", f"{POINTS}/count", {}) == {"count": 3}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"x": {}}, {"x": {}, "y": {}}, "y"),
        ({"x": {}, "y": {}}, {"x": {}}, "y"),
        ({"x": {}, "y": {}}, {"x": {}, "y": {"modifier": "idf"}}, "y"),
    ],
    ids=["added", "dropped", "dropped and added"],
)
def test_interrupted_change_is_completed(
    start_server: StartServer, before: dict[str, Any], after: dict[str, Any], changed: str
) -> None:
    """State after a kill between storing the configuration and changing the engine's files."""
    running = start_server()
    create(running, sparse_vectors=before)
    running.stop()
    (folder,) = (running.data_dir / "collections").iterdir()
    record = load_record(folder)
    record.configuration["params"]["sparse_vectors"] = after
    record.unsettled = changed
    save_record(folder, record)

    restarted = start_server()
    upsert(restarted, 2, {name: sparse(5) for name in after})

    assert vectors_of(restarted, 1) == pytest.approx(OLD)
    assert vectors_of(restarted, 2) == {name: sparse(5) for name in after}
    assert load_record(folder).unsettled is None
    # This fails if the engine's files have other vectors than the configuration.
    restarted.call("PATCH", "/collections/v", {"params": {"on_disk_payload": False}})
    restarted.wait_for_status("v", "green")
