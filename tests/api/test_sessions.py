"""Working memory and the end of a session over HTTP."""

from typing import Any

import httpx
import pytest

from tests.support.patience import wait_until

VECTOR = [0.5] * 8
AGENT = "/v1/agents/mind"


def keep(client: httpx.Client, user: str, session: str = "s", agent: str = AGENT, **body: Any) -> httpx.Response:
    sent = {"content": "c", "vector": VECTOR} | body
    return client.put(f"{agent}/sessions/{session}/working", params={"user_id": user}, json=sent)


def in_mind(client: httpx.Client, user: str, session: str = "s") -> dict[str, Any]:
    answer = client.get(f"{AGENT}/sessions/{session}/working", params={"user_id": user})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def contents(found: dict[str, Any]) -> list[str]:
    return [memory["content"] for memory in found["results"]]


def end(client: httpx.Client, user: str, session: str = "s") -> dict[str, Any]:
    answer = client.post(f"{AGENT}/sessions/{session}/end", params={"user_id": user})
    assert answer.status_code == 200, answer.text
    ended: dict[str, Any] = answer.json()
    return ended


def test_session_keeps_the_last_four_memories(client: httpx.Client, user: str) -> None:
    kept = [keep(client, user, content=content).json() for content in "abcde"]

    found = in_mind(client, user)

    assert (contents(found), found["slots"]) == (["e", "d", "c", "b"], 4)
    assert [each["evicted"] and each["evicted"]["content"] for each in kept] == [None, None, None, None, "a"]
    assert {memory["type"] for memory in found["results"]} == {"working"}
    assert {memory["session_id"] for memory in found["results"]} == {"s"}


def test_end_drops_working_memories_once(client: httpx.Client, user: str) -> None:
    for session, content in (("s", "a"), ("s", "b"), ("t", "c")):
        keep(client, user, session, content=content)

    ended = [end(client, user) for _ in range(2)]

    assert ended == [
        {"dropped": 2, "counts": {"working": 2}, "run": None},
        {"dropped": 0, "counts": {}, "run": None},
    ]
    assert contents(in_mind(client, user)) == []
    assert contents(in_mind(client, user, "t")) == ["c"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"content": " "}, "content"),
        ({"content": None}, "content"),
        ({"importance": 2}, "importance"),
        ({"type": "semantic"}, "type"),
        ({"vector": [1.0] * 7}, "vector"),
        ({"vector": None}, "vector"),
    ],
)
def test_invalid_field_is_named_and_nothing_kept(
    client: httpx.Client, user: str, body: dict[str, Any], field: str
) -> None:
    answer = keep(client, user, **body)

    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert contents(in_mind(client, user)) == []


def test_missing_working_type_names_the_setting(client: httpx.Client, user: str) -> None:
    answer = keep(client, user, agent="/v1/agents/probe")

    assert answer.status_code == 422
    assert "spec.types" in answer.json()["detail"]


@pytest.mark.parametrize("session", ["a%00b", "%20", "x" * 257])
def test_invalid_session_id_is_422(client: httpx.Client, user: str, session: str) -> None:
    answer = keep(client, user, session)

    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, ["session_id"])


def test_idle_session_ends(client: httpx.Client, user: str) -> None:
    agent, listed = "/v1/agents/fleeting", {"user_id": user}
    keep(client, user, agent=agent).raise_for_status()
    body = {"user_id": user, "content": "d", "vector": VECTOR, "type": "working", "session_id": "s"}
    stored = client.post(f"{agent}/memories", json=body).json()["id"]

    wait_until(lambda: not client.get(f"{agent}/memories", params=listed).json()["results"], seconds=20, what="the end")

    assert client.get(f"{agent}/sessions/s/working", params=listed).json()["results"] == []
    assert client.post(f"{agent}/search", json={"user_id": user, "vector": VECTOR}).json()["results"] == []
    assert client.get(f"{agent}/memories/{stored}", params=listed).status_code == 404


def test_working_memory_needs_session_if_idle_ends(client: httpx.Client, user: str) -> None:
    """With `sessionIdleHours`, a working memory without a session would never end."""

    body = {"user_id": user, "content": "d", "vector": VECTOR, "type": "working"}

    refused = client.post("/v1/agents/fleeting/memories", json=body)
    batch = client.post("/v1/agents/fleeting/memories/batch", json={"memories": [body, body | {"type": "semantic"}]})

    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["session_id"]
    assert "set session_id" in refused.json()["detail"]
    assert ["id" in result for result in batch.json()["results"]] == [False, True]
    assert client.post(f"{AGENT}/memories", json=body).status_code == 201


@pytest.mark.parametrize(("method", "path"), [("GET", "working"), ("PUT", "working"), ("POST", "end")])
def test_unknown_agent_is_404_and_user_is_required(client: httpx.Client, method: str, path: str) -> None:
    body = {"json": {"content": "c", "vector": VECTOR}} if method == "PUT" else {}

    unknown = client.request(method, f"/v1/agents/nobody/sessions/s/{path}", params={"user_id": "u"}, **body)  # type: ignore[arg-type]
    without_user = client.request(method, f"{AGENT}/sessions/s/{path}", **body)  # type: ignore[arg-type]

    assert (unknown.status_code, without_user.status_code) == (404, 422)
