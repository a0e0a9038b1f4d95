"""Conditional requests over HTTP: `ETag`, `If-Match` and `If-None-Match`."""

from typing import Any

import httpx
import pytest

from agentmemory_client import Client, PreconditionFailed

ITEMS, MEMORIES = "/v1/agents/words/items", "/v1/agents/words/memories"


@pytest.fixture
def place(user: str) -> dict[str, Any]:
    return {"namespace": ["memories", user], "key": "k"}


def put(client: httpx.Client, place: dict[str, Any], content: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.put(ITEMS, params=place, json={"content": content}, headers=named)


@pytest.fixture
def memory(client: httpx.Client, user: str) -> str:
    stored = client.post(MEMORIES, json={"user_id": user, "content": "Ada drinks tea"}).json()
    return f"{MEMORIES}/{stored['id']}?user_id={user}"


def test_item_is_created_then_replaced_by_its_etag(client: httpx.Client, place: dict[str, Any]) -> None:
    created = put(client, place, "a", If_None_Match="*")
    read = client.get(ITEMS, params=place)

    assert (created.status_code, read.status_code) == (200, 200)
    assert created.headers["ETag"] == read.headers["ETag"] == f'"{created.json()["etag"]}"'
    replaced = put(client, place, "b", If_Match=read.headers["ETag"])
    assert replaced.status_code == 200
    assert replaced.headers["ETag"] != read.headers["ETag"]
    deleted = client.delete(ITEMS, params=place, headers={"If-Match": replaced.headers["ETag"]})
    assert deleted.status_code == 204


@pytest.mark.parametrize("headers", [{"If_None_Match": "*"}, {"If_Match": '"other"'}], ids=["create", "replace"])
def test_failure_has_the_current_etag(client: httpx.Client, place: dict[str, Any], headers: dict[str, str]) -> None:
    stored = put(client, place, "a")

    refused = put(client, place, "b", **headers)

    problem = refused.json()
    assert (refused.status_code, problem["type"], problem["status"]) == (412, "/problems/precondition-failed", 412)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["ETag"] == stored.headers["ETag"] == f'"{problem["etag"]}"'
    assert put(client, place, "b", If_Match=refused.headers["ETag"]).status_code == 200


def test_failure_without_item_has_no_etag(client: httpx.Client, place: dict[str, Any]) -> None:
    refused = put(client, place, "a", If_Match="*")

    assert (refused.status_code, refused.json()["etag"], refused.headers.get("ETag")) == (412, None, None)
    assert client.get(ITEMS, params=place).status_code == 404
    assert client.delete(ITEMS, params=place, headers={"If-Match": "*"}).status_code == 404


def test_memory_changes_and_is_deleted_by_its_etag(client: httpx.Client, memory: str) -> None:
    first = client.get(memory).headers["ETag"]
    changed = client.patch(memory, json={"pinned": True}, headers={"If-Match": first})

    assert changed.status_code == 200
    assert changed.headers["ETag"] == client.get(memory).headers["ETag"] != first
    for method, more in (("PATCH", {"json": {"pinned": False}}), ("DELETE", {})):
        refused = client.request(method, memory, headers={"If-Match": first}, **more)
        assert (refused.status_code, refused.headers["ETag"]) == (412, changed.headers["ETag"])
    assert client.delete(memory, headers={"If-Match": changed.headers["ETag"]}).status_code == 204


def test_repeated_change_has_an_answer(client: httpx.Client, memory: str) -> None:
    headers = {"If-Match": client.get(memory).headers["ETag"], "Idempotency-Key": "once"}

    answers = [client.patch(memory, json={"pinned": True}, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert client.patch(memory, json={"pinned": False}, headers=headers).status_code == 409


@pytest.mark.parametrize(
    ("header", "values", "message"),
    [
        pytest.param("If-Match", ['W/"a"'], "is a weak tag", id="weak"),
        pytest.param("If-Match", ['"a", "b"'], "must be one tag, not a list", id="list"),
        pytest.param("If-Match", ['"a"', '"b"'], "must be one tag, not a list", id="header twice"),
        pytest.param("If-Match", ["a"], "one ETag in double quotes", id="no quotes"),
        pytest.param("If-Match", [""], "one ETag in double quotes", id="empty"),
        pytest.param("If-Match", ['"' + "a" * 65 + '"'], "one ETag in double quotes", id="long"),
        pytest.param("If-Match", ['"\u00e9"'], "one ETag in double quotes", id="not ASCII"),
        pytest.param("If-None-Match", ['"a"'], "must be *", id="tag that must not match"),
        pytest.param("If-None-Match", ["*", "*"], "must be *", id="star twice"),
    ],
)
def test_malformed_header_is_named(
    client: httpx.Client, place: dict[str, Any], header: str, values: list[str], message: str
) -> None:
    headers = [(header, value.encode()) for value in values]

    refused = client.put(ITEMS, params=place, json={"content": "a"}, headers=headers)

    [error] = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, header)
    assert message in error["message"]
    assert client.get(ITEMS, params=place).status_code == 404


def test_misplaced_header_is_refused(client: httpx.Client, place: dict[str, Any], memory: str) -> None:
    """A condition that is ignored would overwrite or delete what it protects."""
    batch = {"items": [{**place, "content": "a"}]}
    refusals = [
        put(client, place, "a", If_Match="*", If_None_Match="*"),
        client.delete(ITEMS, params=place, headers={"If-None-Match": "*"}),
        client.delete(memory, headers={"If-None-Match": "*"}),
        client.patch(memory, json={"pinned": True}, headers={"If-None-Match": "*"}),
        client.post(f"{ITEMS}/batch", json=batch, headers={"If-None-Match": "*"}),
        client.post(f"{ITEMS}/batch", json=batch, headers={"If-Match": "*"}),
    ]

    assert [answer.status_code for answer in refusals] == [422] * 6
    assert "set if_match or if_none_match of its items" in refusals[-1].json()["detail"]


def test_items_of_a_batch_have_their_own_conditions(client: httpx.Client, place: dict[str, Any]) -> None:
    etag = put(client, place, "a").json()["etag"]
    items = [
        {"content": "b", "if_none_match": True},
        {"content": "c", "if_match": "other"},
        {"content": "d", "if_match": etag},
        {"content": "e", "if_match": etag},
        {"content": "f", "if_match": etag, "if_none_match": True},
        {"content": "g", "if_match": 'W/"x"'},
        {"content": "h", "key": "new", "if_none_match": True},
    ]

    answer = client.post(f"{ITEMS}/batch", json={"items": [place | item for item in items]})

    results = answer.json()["results"]
    assert [result.get("error", {}).get("status", 200) for result in results] == [412, 412, 200, 412, 422, 422, 200]
    assert results[0]["error"]["etag"] == etag
    assert results[3]["error"]["etag"] == results[2]["etag"] == client.get(ITEMS, params=place).headers["ETag"][1:-1]
    assert [result["error"]["errors"][0]["field"] for result in results[4:6]] == ["if_none_match", "if_match"]


def test_condition_of_a_read_is_ignored(client: httpx.Client, memory: str) -> None:
    """A count of accesses changes the response and keeps the ETag, so no response is 304."""
    etag = client.get(memory).headers["ETag"]

    assert client.get(memory, headers={"If-None-Match": etag}).status_code == 200


def test_selected_fields_have_the_etag(client: httpx.Client, memory: str) -> None:
    whole, part = client.get(memory), client.get(f"{memory}&fields=id&format=compact")

    assert whole.headers["ETag"] == part.headers["ETag"]


def test_other_users_item_shows_no_etag(client: httpx.Client, place: dict[str, Any], user: str) -> None:
    shared = {"namespace": ["docs", "api"], "key": "k"}
    stored = put(client, shared | {"user_id": user}, "a")

    foreign = put(client, shared | {"user_id": f"not-{user}"}, "b", If_Match=stored.headers["ETag"])

    assert (foreign.status_code, foreign.json()["etag"]) == (412, None)


def test_client_increments_without_a_lost_update(client: httpx.Client, user: str) -> None:
    home = ("memories", user)
    with Client(str(client.base_url)) as api:
        agent = api.agent("words")
        agent.put_item(home, "c", key="n", metadata={"n": 0}, if_none_match=True)
        with pytest.raises(PreconditionFailed) as failure:
            agent.put_item(home, "c", key="n", metadata={"n": 0}, if_none_match=True)
        read = agent.get_item(home, "n")
        assert read.etag == failure.value.etag
        agent.put_item(home, "c", key="n", metadata={"n": 1}, if_match=read.etag)
        with pytest.raises(PreconditionFailed):
            agent.delete_item(home, "n", if_match=read.etag)
        etag = agent.get_item(home, "n").etag
        assert etag
        agent.delete_item(home, "n", if_match=etag)
