"""Sparse vectors, and texts embedded as sparse vectors: stored, found and rejected as on a real server."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.qdrant_nodes import DevServer, StartServer

POINTS = "/collections/s/points"
VECTOR = [0.1, 0.2]
UNSORTED = {"indices": [9, 1, 5], "values": [0.5, 1.0, 2.0]}
SORTED = {"indices": [1, 5, 9], "values": [1.0, 2.0, 0.5]}


def text(words: str, **options: Any) -> dict[str, Any]:
    return {"text": words, "model": "qdrant/bm25", "options": options}


def sparse(*indices: int) -> dict[str, Any]:
    return {"indices": list(indices), "values": [1.0] * len(indices)}


@pytest.fixture(autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    """Three points: one dense and sparse, one sparse, one dense."""
    vectors = {"bm25": {"modifier": "idf"}, "plain": {}}
    server.call("PUT", "/collections/s", {"vectors": {"size": 2, "distance": "Dot"}, "sparse_vectors": vectors})
    points = [
        {"id": 1, "vector": {"": VECTOR, "bm25": UNSORTED, "plain": UNSORTED}, "payload": {"n": 1}},
        {"id": 2, "vector": {"bm25": sparse(1), "plain": sparse(1)}, "payload": {"n": 2}},
        {"id": 3, "vector": VECTOR, "payload": {"n": 3}},
    ]
    server.call("PUT", f"{POINTS}?wait=true", {"points": points})
    yield
    server.call("DELETE", "/collections/s")


def query(server: DevServer, **body: Any) -> dict[int, float]:
    return {found["id"]: found["score"] for found in server.call("POST", f"{POINTS}/query", body)["points"]}


def vectors_of(server: DevServer, point: int) -> Any:
    return server.call("GET", f"{POINTS}/{point}")["vector"]


def test_reads_return_the_requested_vectors(server: DevServer) -> None:
    body = {"with_vector": ["plain"], "with_payload": False}

    retrieved = server.call("POST", POINTS, {"ids": [2], **body})
    scrolled = server.call("POST", f"{POINTS}/scroll", {"limit": 2, **body})["points"]
    queried = server.call("POST", f"{POINTS}/query", {"query": sparse(5), "using": "plain", **body})["points"]

    assert retrieved == [{"id": 2, "vector": {"plain": sparse(1)}}]
    assert [found["vector"]["plain"] for found in scrolled] == [SORTED, sparse(1)]
    assert [found["vector"] for found in queried] == [{"plain": SORTED}]


def test_one_vector_can_be_replaced_or_deleted(server: DevServer) -> None:
    body = {"points": [{"id": 1, "vector": {"plain": sparse(7)}}]}
    server.call("PUT", f"{POINTS}/vectors?wait=true", body)
    server.call("POST", f"{POINTS}/vectors/delete?wait=true", {"points": [1], "vector": ["bm25"]})

    assert vectors_of(server, 1).keys() == {"", "plain"}
    assert query(server, query=sparse(7), using="plain") == {1: 1.0}
    assert query(server, query=sparse(5), using="bm25") == {}


def test_batch_columns_accept_sparse_and_texts(server: DevServer) -> None:
    columns = {"plain": [sparse(70), sparse(71)], "bm25": [text("cat"), text("dog")]}
    server.call("PUT", f"{POINTS}?wait=true", {"batch": {"ids": [8, 9], "vectors": columns}})

    assert query(server, query=sparse(71), using="plain").keys() == {9}
    assert query(server, query=text("cats"), using="bm25").keys() == {8}


def test_score_without_modifier_is_dot_product(server: DevServer) -> None:
    request = {"indices": [5, 1], "values": [10.0, 1.0]}

    assert query(server, query=request, using="plain") == pytest.approx({1: 21.0, 2: 1.0})


def test_filter_applies_at_any_depth(server: DevServer) -> None:
    only = {"must": [{"key": "n", "match": {"value": 2}}]}
    request = {"query": sparse(1), "using": "plain"}
    nested = {"prefetch": {"prefetch": {"prefetch": {**request, "filter": only}, **request}, **request}, **request}

    assert query(server, **request, filter=only) == {2: 1.0}
    assert query(server, **nested) == {2: 1.0}


@pytest.mark.parametrize("wanted", [1, sparse(1, 5, 9)], ids=["a point", "its vector"])
def test_filters_of_prefetches_are_merged(server: DevServer, wanted: Any) -> None:
    """As in Qdrant, one match of either `should` is enough then."""
    inner, outer = ({"should": [{"key": "n", "match": {"value": n}}]} for n in (9, 2))
    prefetch = {"query": sparse(1), "using": "plain", "filter": inner}

    assert query(server, query=wanted, using="plain", filter=outer, prefetch=prefetch).keys() == {2}


def test_query_points_of_prefetches_are_excluded(server: DevServer) -> None:
    prefetches = [{"query": point, "using": "plain"} for point in (1, 2)]

    assert query(server, query=sparse(1), using="plain", prefetch=prefetches) == {}
    assert query(server, query=sparse(1), using="plain", prefetch=prefetches[1:]).keys() == {1}
    assert query(server, query={"fusion": "rrf"}, prefetch=[*prefetches[1:], {}]).keys() == {1, 3}


def test_idf_counts_all_points(server: DevServer) -> None:
    only = {"must": [{"key": "n", "match": {"value": 1}}]}
    alone = query(server, query=sparse(5), using="bm25", filter=only)
    server.call("PUT", f"{POINTS}?wait=true", {"points": [{"id": 4, "vector": {"bm25": sparse(5)}}]})
    everywhere = query(server, query=sparse(5), using="bm25")

    assert query(server, query=sparse(5), using="bm25", filter=only) == {1: everywhere[1]}
    assert everywhere[1] < alone[1]


def test_idf_corpus_is_filtered_since_1_19(start_server: StartServer) -> None:
    later = start_server("--qdrant-version", "1.19")
    later.call("PUT", "/collections/s", {"sparse_vectors": {"bm25": {"modifier": "idf"}}})
    points = [{"id": n, "vector": {"bm25": sparse(5)}, "payload": {"n": n % 3}} for n in range(9)]
    later.call("PUT", f"{POINTS}?wait=true", {"points": [*points, {"id": 9, "vector": {"bm25": sparse(6)}}]})
    request = {"query": sparse(6), "using": "bm25"}
    corpus = {"must": [{"has_id": [0, 9]}]}

    everywhere = query(later, **request)[9]
    assert query(later, **request, params={"idf": "global"}) == {9: everywhere}
    assert query(later, **request, params={"idf": {"corpus": corpus}})[9] < everywhere
    later.call("POST", f"{POINTS}/query", {**request, "params": {"idf": {}}}, status=400)


def test_default_version_ignores_idf_corpus(server: DevServer) -> None:
    request = {"query": sparse(5), "using": "bm25"}
    corpus = {"must": [{"has_id": [1]}]}

    assert query(server, **request, params={"idf": {"corpus": corpus}}) == query(server, **request)


@pytest.mark.parametrize(
    ("options", "stored", "asked", "found"),
    [
        ({}, "running cats", "cat runs", True),
        ({"language": "en"}, "running cats", "cat runs", True),
        ({"language": "none"}, "running", "runs", False),
        ({"language": "none"}, "the", "the", True),
        ({"language": "german"}, "Katzen", "Katze", True),
        ({"language": "german"}, "und", "und", False),
        ({"language": "tamil"}, "the", "the", True),
        ({"stopwords": "german"}, "the", "the", True),
        ({"stopwords": {"languages": ["english"], "custom": ["cat"]}}, "cat", "cat", False),
        ({"stopwords": {}}, "the", "the", True),
        ({"stemmer": {"type": "snowball", "language": "german"}}, "running", "runs", False),
        ({"lowercase": False}, "Cat", "cat", False),
        ({"ascii_folding": True}, "café", "cafe", True),
        ({}, "café", "cafe", False),
        ({"min_token_len": 4}, "cat", "cat", False),
        ({"max_token_len": 2}, "cat", "cat", False),
        ({"tokenizer": "whitespace"}, "cat,dog", "dog", False),
        ({"tokenizer": "word"}, "cat,dog", "dog", True),
        ({"tokenizer": "prefix"}, "helicopter", "heli", True),
    ],
    ids=str,
)
def test_options_determine_the_words(
    server: DevServer, options: dict[str, Any], stored: str, asked: str, found: bool
) -> None:
    points = [{"id": 4, "vector": {"plain": text(stored, **options)}}]
    server.call("PUT", f"{POINTS}?wait=true", {"points": points})

    assert (4 in query(server, query=text(asked, **options), using="plain")) is found


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 256))),
        ({"avg_len": 3}, 2 * 2.2 / (2 + 1.2)),
        ({"k": 0}, 1.0),
        ({"k": 2.0, "b": 0}, 2 * 3.0 / (2 + 2.0)),
    ],
    ids=str,
)
def test_options_determine_the_word_weight(server: DevServer, options: dict[str, Any], weight: float) -> None:
    server.call(
        "PUT", f"{POINTS}?wait=true", {"points": [{"id": 4, "vector": {"plain": text("cat dog cat", **options)}}]}
    )

    assert query(server, query=text("cat"), using="plain")[4] == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize(
    ("vector", "status", "message"),
    [
        ({"bm25": {"indices": [1, 1], "values": [1.0, 1.0]}}, 422, "must be unique"),
        ({"bm25": {"indices": [1], "values": [1.0, 2.0]}}, 422, "must be the same length as indices"),
        ({"bm25": {"indices": [-1], "values": [1.0]}}, 400, "variant"),
        ({"bm25": {"indices": [2**32], "values": [1.0]}}, 400, "variant"),
        ({"bm25": {"indices": [1.5], "values": [1.0]}}, 400, "variant"),
        ({"bm25": {"indices": [1], "values": ["a"]}}, 400, "variant"),
        ({"bm25": {"indices": [1]}}, 400, "variant"),
        ({"no": sparse(1)}, 400, "Not existing vector name error: no"),
        ({"no": text("cat")}, 400, "Not existing vector name error: no"),
        ({"": sparse(1)}, 400, "Conversion between sparse and regular vectors failed"),
        ({"bm25": VECTOR}, 400, "Conversion between sparse and regular vectors failed"),
        (text("cat"), 400, "should be named"),
        ({"bm25": {"image": "cat.png", "model": "qdrant/bm25"}}, 400, "Only text input"),
        ({"bm25": text("cat", b=2)}, 400, "BM25 b"),
        ({"bm25": text("cat", k="much")}, 400, "Invalid BM25 config"),
        ({"bm25": text("cat", avg_len=0)}, 400, "avg_doc_len"),
        ({"bm25": text("cat", stopwords="elvish")}, 400, "elvish"),
        ({"bm25": text("cat", stemmer={"type": "lovins"})}, 400, "StemmingAlgorithm"),
        ({"bm25": text("cat", tokenizer="code")}, 400, "code"),
    ],
    ids=str,
)
def test_invalid_vector_stores_nothing(server: DevServer, vector: Any, status: int, message: str) -> None:
    answer = server.http.put(f"{POINTS}?wait=true", json={"points": [{"id": 4, "vector": vector}]})

    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert server.call("POST", f"{POINTS}/count", {}) == {"count": 3}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": sparse(1, 1), "using": "bm25"}, 422, "must be unique"),
        ({"query": {"indices": [1], "values": []}, "using": "bm25"}, 422, "same length"),
        ({"query": sparse(1), "using": "no"}, 400, "Not existing vector name error: no"),
        ({"query": sparse(1)}, 400, "Conversion between"),
        ({"query": VECTOR, "using": "bm25"}, 400, "Conversion between"),
        ({"query": 3, "using": "bm25"}, 404, "for point not found"),
        ({"query": {"fusion": "rrf"}}, 400, "without prefetches"),
        ({"query": {"fusion": "max"}, "prefetch": [{}]}, 400, "max"),
        ({"query": {"rrf": {"k": 0}}, "prefetch": [{}]}, 422, "rrf.k"),
        ({"query": {"rrf": {"weights": [1.0, 2.0]}}, "prefetch": [{}]}, 400, "does not match number of prefetches"),
        (
            {
                "query": {"fusion": "dbsf"},
                "prefetch": {"query": {"formula": "absent"}, "prefetch": {"query": sparse(1), "using": "plain"}},
            },
            400,
            "No value found",
        ),
    ],
    ids=str,
)
def test_invalid_query_is_rejected(server: DevServer, body: Any, status: int, message: str) -> None:
    answer = server.http.post(f"{POINTS}/query", json=body)

    assert (answer.status_code, message in answer.text) == (status, True), answer.text


def test_dense_vectors_wait_for_their_index(start_server: StartServer) -> None:
    running = start_server()
    body = {
        "vectors": {"size": 64, "distance": "Dot"},
        "sparse_vectors": {"bm25": {"modifier": "idf"}},
        "optimizers_config": {"indexing_threshold": 50},
    }
    running.call("PUT", "/collections/w", body)
    points = [{"id": n, "vector": {"": [n % 97 / 97.0] * 64, "bm25": sparse(n, n + 1)}} for n in range(600)]
    running.call("PUT", "/collections/w/points?wait=true", {"points": points})

    assert running.call("GET", "/collections/w")["status"] == "yellow"
    running.wait_for_status("w", "green")
    assert running.call("GET", "/collections/w")["indexed_vectors_count"] == 1200
    found = running.call("POST", "/collections/w/points/query", {"query": sparse(7), "using": "bm25"})["points"]
    assert {point["id"] for point in found} == {6, 7}
