"""In-place changes of a memory, its history and its children, over HTTP."""

from typing import Any

import httpx
import pytest

from agentmemory_operator.spec.times import parse_time
from tests.api.test_memories import MEMORIES, read, store

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


def change(client: httpx.Client, user: str, memory_id: str, **body: Any) -> httpx.Response:
    return client.patch(f"{MEMORIES}/{memory_id}", params={"user_id": user}, json=body)


def history(client: httpx.Client, user: str, memory_id: str) -> httpx.Response:
    return client.get(f"{MEMORIES}/{memory_id}/history", params={"user_id": user})


def errors_of(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


def test_patch_changes_only_sent_fields(client: httpx.Client, user: str) -> None:
    """The response equals a later read."""

    memory_id = store(client, user, importance="low", tags=["a"], metadata={"k": 1})["id"]
    before = read(client, user, memory_id).json()

    answer = change(client, user, memory_id, importance="critical", pinned=True, expires_at="2999-01-01T02:00:00+02:00")

    assert answer.status_code == 200, answer.text
    assert answer.json() == read(client, user, memory_id).json()
    changed = answer.json()
    assert parse_time(changed.pop("updated_at")) > parse_time(before.pop("updated_at"))
    assert changed == before | {"importance": 1.0, "pinned": True, "expires_at": "2999-01-01T00:00:00.000Z"}


def test_patch_empties_lists_and_removes_expiry(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user, tags=["a"], metadata={"k": 1}, expires_at="2999-01-01T00:00:00Z")["id"]

    changed = change(client, user, memory_id, tags=[], metadata={}, expires_at=None).json()

    assert (changed["tags"], changed["metadata"], changed["expires_at"]) == ([], {}, None)


def test_patch_refuses_content(client: httpx.Client, user: str) -> None:
    """The error suggests `supersedes`."""

    memory_id = store(client, user)["id"]

    wrong = errors_of(change(client, user, memory_id, content="other", importance=1))

    assert list(wrong) == ["content"]
    assert "supersedes" in wrong["content"]
    assert read(client, user, memory_id).json()["content"] == "c"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"user_id": "v"}, "user_id"),
        ({"type": "task"}, "type"),
        ({"vector": [1.0] * 8}, "vector"),
        ({"parent_id": UNKNOWN}, "parent_id"),
        ({"importance": None}, "importance"),
        ({"importance": 1.5}, "importance"),
        ({"tags": None}, "tags"),
        ({"tags": [""]}, "tags[0]"),
        ({"metadata": None}, "metadata"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"pinned": "yes"}, "pinned"),
        ({"pinned": None}, "pinned"),
    ],
)
def test_invalid_change_names_its_field(client: httpx.Client, user: str, body: dict[str, Any], field: str) -> None:
    memory_id = store(client, user)["id"]
    before = read(client, user, memory_id).json()

    assert list(errors_of(change(client, user, memory_id, **body))) == [field]
    assert read(client, user, memory_id).json() == before


def test_foreign_or_unknown_memory_is_404(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user)["id"]

    for answer in (
        change(client, "somebody-else", memory_id, importance=1),
        change(client, user, UNKNOWN, importance=1),
        change(client, user, "no-id", importance=1),
        history(client, "somebody-else", memory_id),
        history(client, user, UNKNOWN),
        history(client, user, "no-id"),
        client.patch(f"/v1/agents/nobody/memories/{memory_id}", params={"user_id": user}, json={"importance": 1}),
    ):
        assert answer.status_code == 404, answer.text


def test_user_id_is_a_required_parameter(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user)["id"]

    assert list(errors_of(client.patch(f"{MEMORIES}/{memory_id}", json={"importance": 1}))) == ["user_id"]
    assert list(errors_of(client.get(f"{MEMORIES}/{memory_id}/history"))) == ["user_id"]


def test_patch_of_superseded_version_is_409(client: httpx.Client, user: str) -> None:
    """The error names the successor."""

    old = store(client, user)["id"]
    new = store(client, user, content="new", supersedes=old)["id"]

    answer = change(client, user, old, importance=1)

    assert (answer.status_code, new in answer.json()["detail"]) == (409, True)


def get_below(client: httpx.Client, user: str, memory_id: str, what: str, **parameters: Any) -> httpx.Response:
    return client.get(f"{MEMORIES}/{memory_id}/{what}", params={"user_id": user} | parameters)


def test_children_come_in_pages_and_as_tree(client: httpx.Client, user: str) -> None:
    root = store(client, user, content="root")["id"]
    first = store(client, user, content="1", parent_id=root, created_at="2026-01-01T00:00:00Z")["id"]
    store(client, user, content="2", parent_id=root, created_at="2026-01-02T00:00:00Z")
    store(client, user, content="1.1", parent_id=first)

    page = get_below(client, user, root, "children", limit=1).json()
    rest = get_below(client, user, root, "children", cursor=page["next_cursor"]).json()
    tree = get_below(client, user, root, "tree").json()

    assert [memory["content"] for memory in (*page["results"], *rest["results"])] == ["2", "1"]
    assert rest["next_cursor"] is None
    assert (tree["root"]["content"], tree["truncated"]) == ("root", False)
    assert [child["content"] for child in tree["root"]["children"]] == ["1", "2"]
    assert [each["content"] for child in tree["root"]["children"] for each in child["children"]] == ["1.1"]
    assert get_below(client, user, root, "tree", depth=1).json()["truncated"] is True


@pytest.mark.parametrize(
    ("what", "parameters", "field"),
    [
        ("tree", {"depth": 0}, "depth"),
        ("tree", {"depth": 33}, "depth"),
        ("tree", {"limit": 1001}, "limit"),
        ("children", {"limit": 0}, "limit"),
        ("children", {"cursor": "x"}, "cursor"),
        ("children", {"depth": 1}, "depth"),
    ],
)
def test_children_and_tree_bounds_are_named(
    client: httpx.Client, user: str, what: str, parameters: dict[str, Any], field: str
) -> None:
    memory_id = store(client, user)["id"]

    assert list(errors_of(get_below(client, user, memory_id, what, **parameters))) == [field]
