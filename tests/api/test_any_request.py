"""Whatever comes in, the answer is a described one: never a 5xx, never anything but JSON."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FAST = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATHS = ["/v1/agents/probe/memories", "/v1/agents/probe/memories/batch", "/v1/agents/probe/search"]
EXPECTED = {200, 201, 400, 404, 409, 413, 422}

# Halves of surrogate pairs too: JSON can spell them.
text = st.text(st.characters(codec=None), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4))
FIELDS = [
    "user_id",
    "content",
    "type",
    "importance",
    "tags",
    "metadata",
    "supersedes",
    "expires_at",
    "vector",
    "explain",
]
MORE = ["query", "top_k", "threshold", "types", "session_id", "memories", "created_at", "confidence", "source"]
MORE += ["namespace", "filters", "at_time", "valid_from", "valid_to", "include_superseded"]
almost = st.dictionaries(st.sampled_from(FIELDS + MORE), values, max_size=6).map(
    lambda odd: {"user_id": "any", "content": "c", "vector": [1.0] * 8} | odd
)


def assert_described(answer: httpx.Response) -> None:
    assert answer.status_code in EXPECTED, answer.text
    problem = "application/problem+json" if answer.status_code >= 400 else "application/json"
    assert answer.headers["content-type"] == problem
    answer.json()


@pytest.mark.parametrize("path", PATHS)
@FAST
@given(body=values | almost)
def test_any_json(client: httpx.Client, path: str, body: Any) -> None:
    assert_described(client.post(path, content=json.dumps(body)))


@pytest.mark.parametrize("path", PATHS)
@FAST
@given(body=st.binary(max_size=64))
def test_any_bytes(client: httpx.Client, path: str, body: bytes) -> None:
    assert_described(client.post(path, content=body))


@FAST
@given(
    filters=st.dictionaries(
        st.sampled_from(
            ["AND", "OR", "NOT", "type", "tags", "importance", "created_at", "metadata.a", "metadata.a-b.c"]
        ),
        values | st.lists(st.dictionaries(st.sampled_from(["type", "metadata.a"]), values, max_size=2), max_size=2),
        max_size=3,
    )
)
def test_any_filters(client: httpx.Client, filters: dict[str, Any]) -> None:
    body = {"user_id": "any", "vector": [1.0] * 8, "filters": filters}

    assert_described(client.post(PATHS[2], content=json.dumps(body)))


@FAST
@given(items=st.lists(values | almost, min_size=1, max_size=4))
def test_any_batch(client: httpx.Client, items: list[Any]) -> None:
    assert_described(client.post(PATHS[1], content=json.dumps({"memories": items})))


@FAST
@given(
    user=st.text(max_size=8),
    more=st.dictionaries(st.sampled_from(["tag", "type", "cursor", "limit", "namespace"]), st.text()),
)
def test_any_parameters(client: httpx.Client, user: str, more: dict[str, str]) -> None:
    try:
        url = httpx.URL(PATHS[0], params={"user_id": user} | more)
    except UnicodeEncodeError:
        return
    assert_described(client.get(url))
