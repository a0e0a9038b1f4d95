"""Responses with `fields` and `format: compact`: they match the OpenAPI document, for a strict client."""

import itertools
from typing import Any

import httpx
import jsonschema
import pytest

WORDS = "/v1/agents/keywords"
FIELDS: list[list[str]] = [[], ["id"], ["content", "session_id", "created_at"], ["connections", "entities"]]
FORMATS = ("full", "compact")


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def schema_of(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    answer = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    return answer | {"components": document["components"]}


def fits(document: dict[str, Any], schema: dict[str, Any], answer: Any) -> bool:
    return jsonschema.Draft202012Validator(schema | {"components": document["components"]}).is_valid(answer)


def store(client: httpx.Client, user: str, **more: Any) -> str:
    memory = {"user_id": user, "content": "Ada Lovelace works for Acme"} | more
    return str(client.post(f"{WORDS}/memories", json=memory).json()["id"])


@pytest.mark.parametrize(("fields", "format"), list(itertools.product(FIELDS, FORMATS)))
def test_shortened_response_matches_the_document(
    client: httpx.Client, document: dict[str, Any], user: str, fields: list[str], format: str
) -> None:
    ids = [store(client, user), store(client, user, content="b", session_id="s", tags=["t"], importance=1)]
    shown = {"fields": fields, "format": format}
    read: list[tuple[str, str, str, Any]] = []
    path = "/v1/agents/{agent}/memories/{id}"
    for id in ids:
        answer = client.get(f"{WORDS}/memories/{id}", params={"user_id": user} | shown)
        read.append(("get", path, "MemoryOut", answer.json()))
    answer = client.get(f"{WORDS}/memories", params={"user_id": user} | shown)
    read.append(("get", "/v1/agents/{agent}/memories", "PageOut", answer.json()))
    more = [{}, {"terms": True}, {"explain": True}, {"include": {"neighbours": 1}}]
    for options in more:
        answer = client.post(f"{WORDS}/search", json={"user_id": user, "query": "Ada"} | shown | options)
        assert len(answer.json()["results"]) == 2, answer.text
        read.append(("post", "/v1/agents/{agent}/search", "SearchOut", answer.json()))

    for method, template, whole, document_read in read:
        assert fits(document, schema_of(document, method, template), document_read), (template, document_read)
        is_whole = fits(document, {"$ref": f"#/components/schemas/{whole}"}, document_read)
        assert is_whole == (not fields and format == "full"), (template, document_read)


def test_undescribed_response_does_not_match(document: dict[str, Any]) -> None:
    schema = schema_of(document, "post", "/v1/agents/{agent}/search")
    empty = {"results": [], "generation": 1, "total_candidates": 0, "removed_by_threshold": 0, "threshold": None}
    empty |= {"min_similarity": None, "candidates": None, "time_spans": None, "left_out": None}
    empty |= {"took_ms": 1.5, "warnings": []}

    assert fits(document, schema, empty)
    assert fits(document, schema, empty | {"results": [{"score": 0.5}]})
    for wrong in ({"score": 0.5, "other": 1}, {"id": "x"}, {"score": 0.5, "content": 7}):
        assert not fits(document, schema, empty | {"results": [wrong]})


def test_integral_floats_are_accepted_as_integers(client: httpx.Client, user: str) -> None:
    store(client, user)
    query = {"user_id": user, "query": "Ada"}

    for path, body in [("/search", query | {"top_k": 5.0, "include": {"neighbours": 1.0}}), ("/tokens", TOKEN)]:
        assert client.post(f"{WORDS}{path}", json=body | {"user_id": user}).status_code == 200
    for wrong in (5.5, True, "5", 1e300, -1.0):
        assert client.post(f"{WORDS}/search", json=query | {"top_k": wrong}).status_code == 422, wrong
    assert client.get(f"{WORDS}/memories", params={"user_id": user, "limit": "5.0"}).status_code == 200
    assert client.get(f"{WORDS}/memories", params={"user_id": user, "limit": "5.5"}).status_code == 422
    assert client.get(f"{WORDS}/memories", params={"user_id": user, "limit": "true"}).status_code == 422


TOKEN = {"verbs": ["read"], "ttl_seconds": 60.0}
