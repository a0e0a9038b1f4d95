"""Random requests: each response is a described one, JSON and never a 5xx."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FAST = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATHS = ["/v1/agents/probe/memories", "/v1/agents/probe/memories/batch", "/v1/agents/probe/search"]
EXPECTED = {200, 201, 400, 404, 409, 413, 422}

# Includes unpaired surrogates, which JSON can represent.
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
MORE += [
    "namespace",
    "filters",
    "at_time",
    "valid_from",
    "valid_to",
    "include_superseded",
    "reference_time",
    "time_zone",
]
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


# Strings that are too long, and lists and objects that are too large, for any field. `TOO_MUCH` is too much for a body.
LONG = ["a" * 100_000, "\x00" * 20_000, "\U0001f600" * 70_000, "a/" * 150_000]
MANY: list[Any] = [["t"] * 30_000, [f"t{number}" for number in range(30_000)], [[]] * 30_000, [{}] * 30_000]
MANY += [[1.5] * 70_000, {f"k{number}": number for number in range(15_000)}, [["a"] * 300] * 100]
TOO_MUCH: list[Any] = [[{}] * 200_000, json.loads("[" * 200 + "]" * 200)]
SIZES = [*LONG, *MANY, *TOO_MUCH]
SENT = sorted({*FIELDS, *MORE, "user_id", "include_scopes", "source_ids", "context", "filters", "subject"})


def is_short(answer: httpx.Response) -> bool:
    return len(answer.content) < 64 << 10


# Every field gets every second value by default, and every value with the fault tests.
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.faults)], ids=["some", "all"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(PATHS[at % len(PATHS)], value, id=f"{type(value).__name__} of {len(value)}")
        for at, value in enumerate(SIZES)
    ],
)
def test_any_size(client: httpx.Client, path: str, value: Any, step: int) -> None:
    text, good = json.dumps(value), '"user_id": "any", "content": "c"'
    for field in SENT[SIZES.index(value) % step :: step]:
        item = f'{{{good}, "{field}": {text}}}'
        is_item = path == PATHS[1] and field != "memories"
        answer = client.post(path, content=f'{{"memories": [{item}]}}' if is_item else item)

        assert_described(answer)
        assert is_short(answer), field


def test_response_about_many_invalid_items_is_short(client: httpx.Client) -> None:
    """Each of a thousand items has 20 unknown fields with long names."""
    item = {f"{number}{'x' * 600}": 1 for number in range(20)}
    answer = client.post(PATHS[1], content=json.dumps({"memories": [item] * 1000}))

    errors = [result["error"] for result in answer.json()["results"]]
    assert [(len(error["errors"]), error["more_errors"]) for error in errors] == [(5, 17)] * 1000
    assert len(answer.content) < 6 << 20


def test_oversized_item_fails_alone(client: httpx.Client) -> None:
    good = {"user_id": "any", "content": "too much", "vector": [1.0] * 8}
    worse = [{"k": ["s"] * 35_000}, {"k": "x" * (1 << 20)}, {"k": json.loads("[" * 40 + "]" * 40)}]
    items = [good, *(good | {"metadata": metadata} for metadata in worse), good]
    results = client.post(PATHS[1], content=json.dumps({"memories": items})).json()["results"]

    assert ["error" in result for result in results] == [False, True, True, True, False]
    assert [result["error"]["errors"][0]["message"] for result in results[1:4]] == [
        "has more than 32,768 strings, lists and objects: send less, or split it",
        "is larger than 1 MiB",
        "is nested deeper than 32 levels",
    ]


@pytest.mark.parametrize("name", ["tag", "type", "namespace", "include_scopes"])
def test_any_number_of_parameters(client: httpx.Client, name: str) -> None:
    answer = client.get(PATHS[0], params=[("user_id", "any"), *((name, f"group:{number}") for number in range(1_000))])

    assert_described(answer)
    assert answer.status_code == 422
    assert is_short(answer)
