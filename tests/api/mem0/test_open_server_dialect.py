"""The dialect of mem0's open server."""

from typing import Any

import pytest

from tests.support.web.mem0_site import Mem0Site


def send(site: Mem0Site, method: str, path: str, **arguments: Any) -> Any:
    """Send a request with `X-API-Key` only, as clients of the open server do."""
    answer = site.http.request(method, f"/mem0/{site.agent}{path}", headers={"X-API-Key": "any"}, **arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_life_of_a_memory(site: Mem0Site, user: str) -> None:
    body = {"messages": [{"role": "user", "content": "Ada drinks tea"}], "user_id": user, "metadata": {"cup": "blue"}}
    [stored] = send(site, "POST", "/memories", json=body)["results"]
    assert (stored["memory"], stored["event"]) == ("Ada drinks tea", "ADD")

    found = send(site, "POST", "/search", json={"query": "tea", "user_id": user, "filters": {"cup": "blue"}})["results"]
    assert [memory["id"] for memory in found] == [stored["id"]]
    assert send(site, "POST", "/search", json={"query": "tea", "filters": {"user_id": user, "cup": "red"}}) == {
        "results": []
    }

    path = f"/memories/{stored['id']}"
    assert send(site, "PUT", path, json={"text": "Ada drinks coffee"}) == {"message": "Memory updated successfully!"}
    assert send(site, "GET", path)["memory"] == "Ada drinks coffee"
    assert [entry["event"] for entry in send(site, "GET", f"{path}/history")] == ["ADD", "UPDATE"]
    assert len(send(site, "GET", "/memories", params={"user_id": user, "top_k": 5})["results"]) == 1
    assert "deleted" in send(site, "DELETE", path)["message"]
    assert send(site, "GET", "/memories", params={"user_id": user}) == {"results": []}


def test_delete_all(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)

    assert send(site, "DELETE", "/memories", params={"user_id": user}) == {"message": "All relevant memories deleted"}
    assert site.texts({"user_id": user}) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/search", {"query": "food", "top_k": "not_a_number"}),
        ("/search", {"query": "food", "top_k": 5.7}),
        ("/search", {"query": "food", "threshold": "high"}),
        ("/memories", {"messages": [{"role": "user", "content": "test"}], "infer": [1, 2, 3]}),
        ("/memories", {"messages": [{"role": "user"}]}),
        ("/memories", {}),
    ],
)
def test_invalid_value_is_rejected(path: str, body: dict[str, Any], site: Mem0Site, user: str) -> None:
    answer = site.call("POST", path, json={"user_id": user} | body)

    assert answer.status_code == 422
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/memories", {"messages": [{"role": "user", "content": "test"}], "infer": "yes"}),
        ("/memories", {"messages": [{"role": "user", "content": "test"}], "infer": None, "unknown_param": 42}),
        ("/search", {"query": "food", "threshold": 0.0, "top_k": None, "bogus_field": "xyz"}),
    ],
)
def test_value_is_converted_or_ignored(path: str, body: dict[str, Any], site: Mem0Site, user: str) -> None:
    assert site.call("POST", path, json={"user_id": user} | body).status_code == 200


def test_threshold_excludes_results(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)
    body = {"query": "tea", "user_id": user}

    assert len(send(site, "POST", "/search", json=body)["results"]) == 1
    assert send(site, "POST", "/search", json=body | {"threshold": 100.0})["results"] == []


def test_user_is_required(site: Mem0Site) -> None:
    assert site.call("GET", "/memories").status_code == 422
