"""Items over HTTP: put, get, delete, keys, namespaces and batches; a bad request names its field."""

from typing import Any

import httpx
import pytest

ITEMS, KEYS, NAMESPACES = (f"/v1/agents/words/{name}" for name in ("items", "keys", "namespaces"))


def place(user: str, **more: Any) -> dict[str, Any]:
    return {"namespace": ["memories", user], **more}


def put(client: httpx.Client, content: str, **parameters: Any) -> httpx.Response:
    return client.put(ITEMS, params=parameters, json={"content": content, "metadata": {"n": 1}})


def test_item_is_put_read_listed_found_and_deleted(client: httpx.Client, user: str) -> None:
    answer = put(client, "Ada pays by invoice", **place(user, key="billing"))

    assert answer.status_code == 200
    stored = answer.json()
    assert {name: stored[name] for name in ("success", "key", "message")} == {
        "success": True,
        "key": "billing",
        "message": "stored",
    }
    item = client.get(ITEMS, params=place(user, key="billing")).json()
    assert (item["id"], item["user_id"], item["key"]) == (stored["memory_id"], user, "billing")
    assert (item["namespace"], item["metadata"], item["content"]) == (
        ["memories", user],
        {"n": 1},
        "Ada pays by invoice",
    )
    assert client.get(KEYS, params=place(user)).json() == {"results": ["billing"], "next_cursor": None}
    assert client.get(NAMESPACES, params={"user_id": user}).json() == {
        "results": [{"namespace": ["memories", user], "items": 1}]
    }
    question = {"user_id": user, "query": "Ada pays by invoice", "namespace": ["memories"], "threshold": -1}
    assert [one["key"] for one in client.post("/v1/agents/words/search", json=question).json()["results"]] == [
        "billing"
    ]
    assert client.delete(ITEMS, params=place(user, key="billing")).status_code == 204
    assert client.get(ITEMS, params=place(user, key="billing")).status_code == 404


def test_put_without_key_generates_one(client: httpx.Client, user: str) -> None:
    keys = {put(client, "c", **place(user)).json()["key"] for _ in range(2)}

    assert set(client.get(KEYS, params=place(user)).json()["results"]) == keys
    assert len(keys) == 2


def test_repeated_put_without_key_makes_one_item(client: httpx.Client, user: str) -> None:
    headers = {"Idempotency-Key": f"once-{user}"}
    keys = {
        client.put(ITEMS, params=place(user), json={"content": "c"}, headers=headers).json()["key"] for _ in range(2)
    }
    conflict = client.put(ITEMS, params=place(user), json={"content": "d"}, headers=headers)

    assert client.get(KEYS, params=place(user)).json()["results"] == list(keys)
    assert conflict.status_code == 409


def test_namespace_without_user_needs_user_id(client: httpx.Client, user: str) -> None:
    shared = {"namespace": ["docs", "api"], "key": "k"}

    refused = put(client, "c", **shared)
    stored = put(client, "c", **shared, user_id=user)

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "user_id")
    assert stored.status_code == 200
    assert client.get(ITEMS, params=shared | {"user_id": f"not-{user}"}).status_code == 404
    assert client.get(ITEMS, params=shared | {"user_id": user}).json()["user_id"] == user


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_namespace_of_another_user_is_404(client: httpx.Client, user: str, method: str) -> None:
    put(client, "c", **place(user, key="k"))
    body = {"json": {"content": "d"}} if method == "PUT" else {}

    answer = client.request(method, ITEMS, params=place(user, key="k", user_id="another"), **body)

    assert answer.status_code == 404
    assert client.get(ITEMS, params=place(user, key="k")).json()["content"] == "c"
    assert client.get(KEYS, params=place(user, user_id="another")).status_code == 404
    assert client.get(NAMESPACES, params=place(user, user_id="another")).status_code == 404


def test_versions_belong_to_owner_and_end_with_item(client: httpx.Client, user: str) -> None:
    versions = f"{ITEMS}/versions"
    for content in ("first", "second"):
        client.put(ITEMS, params=place(user, key="k"), json={"content": content})

    kept = client.get(versions, params=place(user, key="k")).json()["results"]
    assert [one["content"] for one in kept] == ["first"]
    assert (kept[0]["user_id"], kept[0]["superseded_at"]) == (user, kept[0]["valid_to"])
    assert client.get(versions, params=place(user, key="k", user_id="another")).status_code == 404
    assert client.get(versions, params=place(user, key="other")).status_code == 404
    client.delete(ITEMS, params=place(user, key="k"))
    assert client.get(versions, params=place(user, key="k")).status_code == 404


def test_shared_namespace_defaults_to_its_group(client: httpx.Client, user: str) -> None:
    group = f"group:{user}"
    shared = {"namespace": ["shared", user, "docs"], "key": "k"}
    client.put(ITEMS, params=shared, json={"content": "the team's"})
    client.put(ITEMS, params=shared | {"user_id": user}, json={"content": "a user's own"})

    assert client.get(ITEMS, params=shared).json()["user_id"] == group
    assert client.get(ITEMS, params=shared | {"user_id": group}).json()["content"] == "the team's"
    assert client.get(ITEMS, params=shared | {"user_id": user}).json()["content"] == "a user's own"
    assert client.get(KEYS, params={"namespace": shared["namespace"]}).json()["results"] == ["k"]
    assert client.get("/v1/agents/words/stats", params={"user_id": group}).json()["total"] == 1
    erased = client.post("/v1/agents/words/forget", json={"user_id": group, "everything": True})
    assert erased.status_code == 200, erased.text
    assert client.get(ITEMS, params=shared).status_code == 404
    assert client.get(ITEMS, params=shared | {"user_id": user}).status_code == 200


def test_shared_global_namespace_is_scope_global(client: httpx.Client, user: str) -> None:
    shared = {"namespace": ["shared", "global", user], "key": "k"}
    content = f"the office closes at {user}"
    client.put(ITEMS, params=shared, json={"content": content})
    client.put(ITEMS, params=shared | {"user_id": user}, json={"content": "a user's own"})

    assert client.get(ITEMS, params=shared).json()["user_id"] == "global"
    assert client.get(ITEMS, params=shared | {"user_id": "global"}).json()["content"] == content
    assert client.get(ITEMS, params=shared | {"user_id": "group:global"}).status_code == 404
    assert client.get(ITEMS, params=shared | {"user_id": user}).json()["content"] == "a user's own"
    assert client.get(KEYS, params={"namespace": shared["namespace"]}).json()["results"] == ["k"]
    question = {"query": content, "user_id": f"not {user}", "namespace": ["shared", "global"], "threshold": -1}
    found = client.post("/v1/agents/words/search", json=question).json()["results"]
    assert content in [memory["content"] for memory in found]
    assert client.delete(ITEMS, params=shared).status_code == 204
    assert client.get(ITEMS, params=shared).status_code == 404


BAD: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"namespace": ["memories"]}, {}, "namespace", "at least 2"),
    ({"namespace": []}, {}, "namespace", "required"),
    ({"namespace": ["memories", ""]}, {}, "namespace[1]", "at least 1 character"),
    ({"namespace": ["memories", "u", " "]}, {}, "namespace[2]", "must not be blank"),
    ({"namespace": ["memories", "u\n"]}, {}, "namespace[1]", "control characters"),
    ({"namespace": ["memories", "group:"]}, {}, "namespace[1]", "is not a scope"),
    ({"namespace": ["a"] * 17, "user_id": "u"}, {}, "namespace", "at most 16"),
    ({"key": ""}, {}, "key", "at least 1 character"),
    ({"key": " "}, {}, "key", "must not be blank"),
    ({"key": "a\x1fb"}, {}, "key", "control characters"),
    ({"key": "k" * 257}, {}, "key", "at most 256"),
    ({"colour": "red"}, {}, "colour", "unknown"),
    ({}, {"content": None}, "content", "must be a string"),
    ({}, {"content": " \n"}, "content", "must not be blank"),
    (
        {},
        {"content": "x" * 8193},
        "content",
        "has 2049 tokens (4 characters each), more than the limit of 2048: split it",
    ),
    ({}, {"content": "x" * 100_000}, "content", "has 25000 tokens"),
    ({}, {"metadata": []}, "metadata", "JSON object"),
    ({}, {"vector": [1.0] * 64}, "vector", "embeds content itself"),
    ({}, {"colour": "red"}, "colour", "unknown; known are content, metadata, importance, tags, category, expires_at"),
    ({}, {"tags": "a"}, "tags", "must be a list"),
    ({}, {"importance": 1.5}, "importance", "0 to 1"),
    ({}, {"expires_at": "soon"}, "expires_at", "RFC 3339"),
    ({}, {"category": ""}, "category", "at least 1 character"),
    ({}, {"parent_id": "none"}, "parent_id", "must be the ID of a memory"),
    ({"namespace": ["shared", "a team"]}, {}, "namespace[1]", "is not a group"),
    ({"namespace": ["docs", "api"]}, {}, "user_id", "'shared' and 'global' or a group"),
]


@pytest.mark.parametrize(("parameters", "body", "field", "message"), BAD)
def test_bad_put_names_its_field_and_stores_nothing(
    client: httpx.Client, user: str, parameters: dict[str, Any], body: dict[str, Any], field: str, message: str
) -> None:
    answer = client.put(ITEMS, params=place(user, key="k") | parameters, json={"content": "c"} | body)

    assert answer.status_code == 422, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert message in answer.json()["detail"]
    assert client.get(NAMESPACES, params={"user_id": user}).json() == {"results": []}


def test_get_needs_a_key(client: httpx.Client, user: str) -> None:
    answer = client.get(ITEMS, params=place(user))

    assert (answer.status_code, answer.json()["errors"]) == (422, [{"field": "key", "message": "required"}])


def test_tools_are_described_with_or_without_agent(client: httpx.Client) -> None:
    openai = client.get("/v1/tools", params={"agent": "words"}).json()["tools"]
    mcp = client.get("/v1/tools", params={"format": "mcp"}).json()["tools"]

    assert [tool["function"]["name"] for tool in openai] == [tool["name"] for tool in mcp]
    assert "correction" in openai[0]["function"]["parameters"]["properties"]["type"]["enum"]
    assert "enum" not in mcp[0]["inputSchema"]["properties"]["type"]
    assert client.get("/v1/tools", params={"agent": "nobody"}).status_code == 404
    assert client.get("/v1/tools", params={"format": "xml"}).status_code == 422


BATCH = f"{ITEMS}/batch"


def put_all(client: httpx.Client, items: list[dict[str, Any]], **headers: str) -> list[dict[str, Any]]:
    answer = client.post(BATCH, json={"items": items}, headers=headers)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    assert len(results) == len(items)
    return results


def test_batch_puts_each_item(client: httpx.Client, user: str) -> None:
    items = [place(user, key=f"k{number}", content=f"item {number}", tags=["t"]) for number in range(40)]
    put(client, "was there", **place(user, key="k3"))

    results = put_all(client, items)

    assert [one["key"] for one in results] == [item["key"] for item in items]
    assert [number for number, one in enumerate(results) if "replaced the item" in one["message"]] == [3]
    for item, one in list(zip(items, results, strict=True))[::13]:
        stored = client.get(ITEMS, params=place(user, key=item["key"])).json()
        assert (stored["id"], stored["content"], stored["tags"]) == (one["memory_id"], item["content"], ["t"])
    assert set(client.get(KEYS, params=place(user)).json()["results"]) == {item["key"] for item in items}
    question = {"user_id": user, "query": "item 7", "namespace": ["memories"], "threshold": -1, "top_k": 1}
    assert [one["key"] for one in client.post("/v1/agents/words/search", json=question).json()["results"]] == ["k7"]


def test_bad_batch_items_fail_alone(client: httpx.Client, user: str) -> None:
    items = [
        place(user, key="a", content="good"),
        place(user, key="b", content=" "),
        place(user, key="c", content="x" * 8193),
        place(user, key="d", content="c", nonsense=1),
        {"namespace": ["one"], "user_id": user, "content": "c"},
        {"namespace": ["no", "owner"], "content": "c"},
        {"namespace": ["memories", user], "user_id": "another", "content": "c"},
        place(user, key="e", content="good"),
    ]

    results = put_all(client, items)

    outcomes = [one["error"]["status"] if "error" in one else one["key"] for one in results]
    assert outcomes == ["a", 422, 422, 422, 422, 422, 404, "e"]
    assert [one["error"]["errors"][0]["field"] for one in results if one.get("error", {}).get("errors")] == [
        "content",
        "content",
        "nonsense",
        "namespace",
        "user_id",
    ]
    assert set(client.get(KEYS, params=place(user)).json()["results"]) == {"a", "e"}


def test_batch_items_of_one_key_keep_their_order(client: httpx.Client, user: str) -> None:
    contents = [f"state {number}" for number in range(12)]

    put_all(client, [place(user, key="k", content=content) for content in contents])

    assert client.get(ITEMS, params=place(user, key="k")).json()["content"] == contents[-1]
    versions = client.get(f"{ITEMS}/versions", params=place(user, key="k")).json()["results"]
    assert [version["content"] for version in versions] == contents[-2:-4:-1]


def test_repeated_batch_replaces_no_later_write(client: httpx.Client, user: str) -> None:
    items = [place(user, key="k", content="first"), place(user, content="without a key")]
    first = put_all(client, items, **{"Idempotency-Key": "batch"})
    put(client, "later", **place(user, key="k"))

    again = put_all(client, items, **{"Idempotency-Key": "batch"})

    assert [one["memory_id"] for one in again] == [one["memory_id"] for one in first]
    assert client.get(ITEMS, params=place(user, key="k")).json()["content"] == "later"
    assert len(client.get(KEYS, params=place(user)).json()["results"]) == 2


@pytest.mark.parametrize("items", [[], "x", None, [{}] * 1001], ids=["none", "text", "null", "many"])
def test_invalid_batch_is_refused_whole(client: httpx.Client, items: object) -> None:
    answer = client.post(BATCH, json={"items": items})

    assert answer.status_code in (413, 422)
    assert answer.json()["errors"][0]["field"] == "items"
