"""Sparse vectors are added to a collection that holds points, and dropped from it."""

from typing import Any

import pytest

from tests.devserver.conftest import Server, StartServer

PLAIN = {"vectors": {"size": 2, "distance": "Dot"}}
IDF = {"sparse": {"modifier": "idf"}}
QUERY = {"query": {"text": "running cats", "model": "qdrant/bm25"}, "using": "words", "limit": 5}


def fill(server: Server, name: str = "n") -> None:
    server.call("PUT", f"/collections/{name}", PLAIN)
    points = [{"id": number, "vector": [1.0, number], "payload": {"n": number}} for number in (1, 2)]
    server.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})


def write_words(server: Server, point: int, text: str) -> None:
    vectors = {"points": [{"id": point, "vector": {"words": {"text": text, "model": "qdrant/bm25"}}}]}
    server.call("PUT", "/collections/n/points/vectors?wait=true", vectors)


def found(server: Server) -> list[Any]:
    return [point["id"] for point in server.call("POST", "/collections/n/points/query", QUERY)["points"]]


@pytest.mark.usefixtures("emptied")
def test_an_added_vector_is_empty_for_old_points_and_takes_new_ones(server: Server) -> None:
    fill(server)

    server.call("PUT", "/collections/n/vectors/words?wait=true", IDF)
    before = found(server)
    write_words(server, 2, "a cat runs")

    assert (before, found(server)) == ([], [2])
    missing = {"filter": {"must_not": [{"has_vector": "words"}]}, "with_payload": False}
    assert [row["id"] for row in server.call("POST", "/collections/n/points/scroll", missing)["points"]] == [1]


@pytest.mark.usefixtures("emptied")
def test_a_vector_is_added_before_the_first_point(server: Server) -> None:
    server.call("PUT", "/collections/n", PLAIN)
    server.call("PUT", "/collections/n/vectors/words?wait=true", IDF)

    assert server.call("GET", "/collections/n")["config"]["params"]["sparse_vectors"] == {"words": {"modifier": "idf"}}
    assert found(server) == []


@pytest.mark.usefixtures("emptied")
def test_a_dropped_vector_is_gone_and_may_come_back_empty(server: Server) -> None:
    fill(server)
    for _ in range(2):
        server.call("PUT", "/collections/n/vectors/words?wait=true", IDF)
    write_words(server, 1, "running cats")

    for _ in range(2):
        server.call("DELETE", "/collections/n/vectors/words?wait=true")
    assert "sparse_vectors" not in server.call("GET", "/collections/n")["config"]["params"]
    server.call("POST", "/collections/n/points/query", QUERY, status=400)
    server.call("PUT", "/collections/n/vectors/words?wait=true", IDF)

    assert found(server) == []


@pytest.mark.usefixtures("emptied")
def test_a_vector_of_the_same_name_with_another_modifier_is_refused(server: Server) -> None:
    fill(server)
    server.call("PUT", "/collections/n/vectors/words", IDF)

    server.call("PUT", "/collections/n/vectors/words", {"sparse": {}}, status=400)


def test_an_added_vector_and_what_it_holds_outlive_a_kill(start_server: StartServer) -> None:
    running = start_server()
    fill(running)
    running.call("PUT", "/collections/n/vectors/words?wait=true", IDF)
    write_words(running, 2, "a cat runs")
    running.kill()

    again = start_server()

    assert found(again) == [2]
