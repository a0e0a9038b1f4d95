"""The platform dialect of mem0, as its clients use it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from agentmemory_operator.entrypoints.api.mem0 import erasing
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.criteria import FIELDS, Equals
from agentmemory_operator.memories.stored_memories import change_head
from tests.support.web.api_stack import Stack
from tests.support.web.mem0_site import Mem0Site


def test_ping_confirms_the_key(site: Mem0Site) -> None:
    answer = site.call("GET", "/v1/ping/").json()

    # mem0's clients send the account to its telemetry, so it must not identify an installation.
    assert answer == {
        "status": "ok",
        "message": "agent mem0-open",
        "org_id": "agentmemory",
        "project_id": "agentmemory",
        "user_email": "agentmemory",
    }


def test_unknown_agent_is_not_found(site: Mem0Site) -> None:
    answer = Mem0Site(site.http, "nobody").call("GET", "/v1/ping/")

    assert answer.status_code == 404
    assert "nobody" in answer.json()["detail"]


def test_turns_are_stored_without_a_model(site: Mem0Site, user: str) -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "I'm a vegetarian and allergic to nuts."},
        {"role": "assistant", "content": "Got it!"},
    ]
    answer = site.call("POST", "/v3/memories/add/", json={"messages": messages, "user_id": user})

    assert answer.json()["status"] == "SUCCEEDED"
    assert [result["memory"] for result in answer.json()["results"]] == [
        "I'm a vegetarian and allergic to nuts.",
        "Got it!",
    ]
    assert "no language model" in answer.headers["X-AgentMemory-Infer"]
    assert site.texts({"user_id": user}) == ["Got it!", "I'm a vegetarian and allergic to nuts."]


def test_event_names_the_stored_memory(site: Mem0Site, user: str) -> None:
    added = site.call("POST", "/v3/memories/add/", json={"messages": "Ada drinks tea", "user_id": user}).json()
    event = site.call("GET", f"/v1/event/{added['event_id']}/").json()

    assert (event["status"], [result["memory"] for result in event["results"]]) == ("SUCCEEDED", ["Ada drinks tea"])


def test_event_hides_an_expired_memory(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user, expiration_date="2020-01-01")

    assert site.call("GET", f"/v1/event/{memory_id}/").json()["results"] == []


def test_memory_has_the_fields_of_mem0(site: Mem0Site, user: str) -> None:
    memory_id = site.add(
        "Ada drinks tea",
        user,
        agent_id="waiter",
        app_id="cafe",
        run_id="r1",
        metadata={"source": "form"},
        expiration_date="2999-01-31",
        timestamp=1_700_000_000,
    )
    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()

    assert memory | {"updated_at": ""} == {
        "id": memory_id,
        "memory": "Ada drinks tea",
        "user_id": user,
        "agent_id": "waiter",
        "app_id": "cafe",
        "run_id": "r1",
        "session_id": "r1",
        "hash": "49d368d6f972fa6ae4198bb07baa05ed",
        "metadata": {"source": "form"},
        "categories": [],
        "created_at": "2023-11-14T22:13:20.000Z",
        "updated_at": "",
        "expiration_date": "2999-01-31",
    }


def test_repeated_text_is_a_noop(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)
    body = {"messages": "Ada drinks tea", "user_id": user, "infer": False}
    answer = site.call("POST", "/v3/memories/add/", json=body).json()

    assert answer["results"][0]["event"] == "NOOP"


def test_search_ranks_the_memories_of_the_user(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea every morning", user)
    site.add("The printer is on the second floor", user)
    body = {"query": "what does she drink?", "filters": {"user_id": user}, "top_k": 1, "fields": ["memory", "score"]}
    [found] = site.call("POST", "/v3/memories/search/", json=body).json()["results"]

    assert set(found) == {"id", "memory", "score"}
    assert found["memory"] == "Ada drinks tea every morning"
    assert found["score"] > 0


def test_update_keeps_the_id(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user, metadata={"source": "form"}, agent_id="waiter")
    created = site.call("GET", f"/v1/memories/{memory_id}/").json()["created_at"]
    for text in ("Ada drinks coffee", "Ada drinks water"):
        answer = site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": text}).json()
        assert (answer["id"], answer["memory"], answer["event"]) == (memory_id, text, "UPDATE")

    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()
    [listed] = site.call("POST", "/v3/memories/", json={"filters": {"user_id": user}}).json()["results"]
    assert memory == listed
    assert (memory["metadata"], memory["agent_id"], memory["created_at"]) == ({"source": "form"}, "waiter", created)


def test_update_in_place(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user, metadata={"source": "form"}, agent_id="waiter")
    site.call("PUT", f"/v1/memories/{memory_id}/", json={"metadata": {"a": 1}, "expiration_date": "2999-01-01"})
    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()
    assert (memory["metadata"], memory["expiration_date"], memory["agent_id"]) == ({"a": 1}, "2999-01-01", "waiter")

    site.call("PUT", f"/v1/memories/{memory_id}/", json={"expiration_date": None})
    assert site.call("GET", f"/v1/memories/{memory_id}/").json()["expiration_date"] is None
    assert len(site.native("GET", f"/memories/{memory_id}/history", params={"user_id": user}).json()["results"]) == 1


@pytest.mark.parametrize("body", [{}, {"memory": "Ada drinks coffee"}, {"data": "Ada drinks coffee"}])
def test_update_without_a_known_field_is_rejected(body: Any, site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)

    assert site.call("PUT", f"/v1/memories/{memory_id}/", json=body).status_code == 400
    assert site.call("PUT", f"/memories/{memory_id}", json=body).status_code == 422


def test_native_supersede_is_followed(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)
    body = {"user_id": user, "content": "Ada drinks coffee", "supersedes": memory_id}
    assert site.native("POST", "/memories", json=body).status_code == 201

    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()
    assert (memory["id"], memory["memory"]) == (memory_id, "Ada drinks coffee")
    site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "Ada drinks water"})
    [listed] = site.call("POST", "/v3/memories/", json={"filters": {"user_id": user}}).json()["results"]
    assert (listed["id"], listed["memory"]) == (memory_id, "Ada drinks water")


def test_long_chain_is_not_read_version_by_version(site: Mem0Site, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_id = site.add("Ada drinks tea", user)
    for number in range(12):
        site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": f"Ada drinks {number} cups"})
    read, ids = chains.read_completed, []

    async def counted(agent: Any, id_: str) -> Any:
        ids.append(id_)
        return await read(agent, id_)

    monkeypatch.setattr(chains, "read_completed", counted)
    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()

    assert (memory["id"], memory["memory"]) == (memory_id, "Ada drinks 11 cups")
    assert len(ids) <= 6


def test_history_has_an_entry_for_each_version(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)
    site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "Ada drinks coffee"})
    entries = site.call("GET", f"/v1/memories/{memory_id}/history/").json()

    assert [(entry["event"], entry["old_memory"], entry["new_memory"]) for entry in entries] == [
        ("ADD", None, "Ada drinks tea"),
        ("UPDATE", "Ada drinks tea", "Ada drinks coffee"),
    ]
    assert {entry["memory_id"] for entry in entries} == {memory_id}


def test_delete_removes_all_versions(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)
    for text in ("Ada drinks coffee", "Ada drinks water"):
        site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": text})
    assert site.call("DELETE", f"/v1/memories/{memory_id}/").json() == {"message": "Memory deleted successfully!"}

    assert site.call("GET", f"/v1/memories/{memory_id}/").status_code == 404
    assert site.texts({"user_id": user}) == []
    native = {"user_id": user, "include_superseded": True}
    assert site.native("GET", "/memories", params=native).json()["results"] == []


def test_interrupted_deletion_can_be_repeated(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)
    for text in ("Ada drinks coffee", "Ada drinks water"):
        site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": text})
    versions = site.native("GET", f"/memories/{memory_id}/history", params={"user_id": user}).json()["results"]
    site.native("DELETE", f"/memories/{versions[-1]['id']}", params={"user_id": user})

    assert site.call("GET", f"/v1/memories/{memory_id}/").json()["memory"] == "Ada drinks coffee"
    assert site.call("DELETE", f"/v1/memories/{memory_id}/").status_code == 200
    assert site.call("GET", f"/v1/memories/{memory_id}/").status_code == 404


def test_concurrent_updates_leave_one_chain(site: Mem0Site, user: str) -> None:
    memory_id = site.add("Ada drinks tea", user)

    def change(number: int) -> int:
        answer = site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": f"Ada drinks {number} cups"})
        return answer.status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(change, range(6)))
    assert set(statuses) <= {200, 409}

    [listed] = site.call("POST", "/v3/memories/", json={"filters": {"user_id": user}}).json()["results"]
    entries = site.call("GET", f"/v1/memories/{memory_id}/history/").json()
    assert listed["id"] == memory_id
    assert len(entries) == 1 + statuses.count(200)


@pytest.mark.parametrize(("change", "cup"), [({}, "red"), ({"metadata": {"cup": "white"}}, "white")])
def test_update_keeps_a_concurrent_edit(
    change: Any, cup: str, site: Mem0Site, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_id, store = site.add("Ada drinks tea", user, metadata={"cup": "blue"}), Remember.store

    async def store_after_an_edit(remember: Remember, agent: Any, memories: Any) -> Any:
        await change_head(agent, memories[0].supersedes, {"tags": ["drinks"], "metadata": {"cup": "red"}}, user_id=user)
        return await store(remember, agent, memories)

    monkeypatch.setattr(Remember, "store", store_after_an_edit)
    memory = site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "Ada drinks coffee", **change}).json()

    assert (memory["id"], memory["memory"]) == (memory_id, "Ada drinks coffee")
    assert (memory["categories"], memory["metadata"]) == (["drinks"], {"cup": cup})


def test_memory_erased_during_its_update_is_unknown(
    site: Mem0Site, mem0_stack: Stack, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_id, store = site.add("Ada drinks tea", user), Remember.store

    async def erase_after_storing(remember: Remember, agent: Any, memories: Any) -> Any:
        outcomes = await store(remember, agent, memories)
        await mem0_stack.services.forget.forget(
            agent, ForgetRequest(scope=ErasureScope(user_id=user, criterion=Equals(FIELDS["type"], memories[0].type)))
        )
        return outcomes

    monkeypatch.setattr(Remember, "store", erase_after_storing)
    assert site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "Ada drinks coffee"}).status_code == 404


def test_unusual_metadata_is_rendered(site: Mem0Site, user: str) -> None:
    body = {"user_id": user, "content": "Ada drinks tea", "metadata": {"mem0": "unusual", "cup": "blue"}}
    memory_id = site.native("POST", "/memories", json=body).json()["id"]

    memory = site.call("GET", f"/v1/memories/{memory_id}/").json()
    assert (memory["metadata"], memory["agent_id"]) == ({"cup": "blue"}, None)


def test_delete_all_leaves_other_runs(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user, run_id="r1")
    site.add("Ada drinks coffee", user, run_id="r2")
    answer = site.call("DELETE", "/v1/memories/", params={"user_id": user, "run_id": "r1"})

    assert answer.json()["deleted"] == 1
    assert site.texts({"user_id": user}) == ["Ada drinks coffee"]
    receipts = site.native("GET", "/receipts", params={"user_id": user}).json()["results"]
    assert [receipt["id"] for receipt in receipts] == [answer.json()["receipt_id"]]


def test_any_run_leaves_memories_without_a_run(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user, run_id="r1")
    site.add("Ada drinks coffee", user)

    assert site.call("DELETE", "/v1/memories/", params={"user_id": user, "run_id": "*"}).json()["deleted"] == 1
    assert site.texts({"user_id": user}) == ["Ada drinks coffee"]


@pytest.mark.parametrize(
    ("names", "conditions"),
    [
        (("user_id",), {}),
        (("user_id", "agent_id", "app_id", "run_id"), {}),
        (("user_id", "run_id"), {"run_id": "*"}),
    ],
)
def test_everything_is_deleted_only_if_no_entity_is_left_out(
    names: tuple[str, ...], conditions: Any, site: Mem0Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletions = []

    async def recorded(*arguments: Any) -> erasing.Deleted:
        deletions.append(arguments[-1])
        return erasing.Deleted(0)

    monkeypatch.setattr(erasing, "delete_of_everyone", recorded)
    site.call("DELETE", "/v1/memories/", params=dict.fromkeys(names, "*"))
    assert deletions == [conditions]


@pytest.mark.parametrize("metadata", ["", "{}", '{"ne": {}}', '{"a": 1, "a": 2}', r'{"a": "\ud800"}'])
def test_invalid_metadata_deletes_nothing(metadata: str, site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)
    answer = site.call("DELETE", "/v1/memories/", params={"user_id": user, "metadata": metadata})

    assert answer.status_code == 400
    assert site.texts({"user_id": user}) == ["Ada drinks tea"]


def test_delete_all_of_an_unknown_user_succeeds(site: Mem0Site, user: str) -> None:
    assert site.call("DELETE", "/v1/memories/", params={"user_id": user}).status_code == 200


def test_pages(site: Mem0Site, user: str) -> None:
    ids = [site.add(f"memory number {number}", user, timestamp=1_700_000_000) for number in range(5)]
    body = {"filters": {"user_id": user}}
    pages = [
        site.call("POST", "/v3/memories/", params={"page": number, "page_size": 2}, json=body).json()
        for number in (1, 2, 3, 4)
    ]

    assert {page["count"] for page in pages} == {5}
    assert [len(page["results"]) for page in pages] == [2, 2, 1, 0]
    assert sorted(memory["id"] for page in pages for memory in page["results"]) == sorted(ids)
    assert [bool(page["previous"]) for page in pages] == [False, True, True, True]
    assert [bool(page["next"]) for page in pages] == [True, True, False, False]
    following = site.http.post(pages[0]["next"], json=body, headers={"Authorization": "Token any"})
    assert following.json()["results"] == pages[1]["results"]


@pytest.mark.parametrize("parameters", [{"page": 0}, {"page_size": 0}, {"page_size": 201}, {"page": "x"}])
def test_invalid_page_is_rejected(parameters: dict[str, object], site: Mem0Site, user: str) -> None:
    answer = site.call("POST", "/v3/memories/", params=parameters, json={"filters": {"user_id": user}})

    assert answer.status_code == 400


def test_page_too_far_from_the_start_is_rejected(site: Mem0Site, user: str) -> None:
    body = {"filters": {"user_id": user}, "page": 10**9}
    assert site.call("POST", "/v3/memories/", json=body).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v3/memories/add/", {"messages": "hello"}),
        ("POST", "/v3/memories/search/", {"query": "hello"}),
        ("POST", "/v3/memories/", {}),
        ("POST", "/v3/memories/", {"filters": {"run_id": "r1"}}),
        ("DELETE", "/v1/memories/", None),
        ("DELETE", "/v1/memories/?run_id=r1", None),
    ],
)
def test_user_is_required(method: str, path: str, body: object, site: Mem0Site) -> None:
    answer = site.call(method, path, json=body) if body is not None else site.call(method, path)

    assert answer.status_code == 422
    assert "user_id" in answer.json()["detail"]


def test_id_is_a_uuid(site: Mem0Site) -> None:
    answer = site.call("GET", "/v1/memories/nonexistent-memory-id/")
    assert (answer.status_code, answer.json()["error"]) == (400, "memory_id should be a valid UUID")

    answer = site.call("GET", f"/v1/memories/{uuid4()}/")
    assert (answer.status_code, answer.json()["error"]) == (404, "Memory not found!")


def test_batches(site: Mem0Site, user: str) -> None:
    ids = [site.add(f"memory number {number}", user) for number in range(3)]
    changes = [{"memory_id": id_, "text": f"changed {id_}"} for id_ in ids[:2]]
    answer = site.call("PUT", "/v1/batch/", json={"memories": changes}).json()
    assert answer == {"message": "Successfully updated 2 memories"}

    gone = str(uuid4())
    deleted = [{"memory_id": id_} for id_ in (ids[0], gone)]
    answer = site.call("DELETE", "/v1/batch/", json={"memories": deleted}).json()
    assert answer == {
        "message": "Successfully deleted 1 memories",
        "errors": [{"memory_id": gone, "error": "Memory not found!"}],
    }
    assert site.texts({"user_id": user}) == sorted([f"changed {ids[1]}", "memory number 2"])


def test_user_is_an_entity_until_deleted(site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)
    found = site.call("GET", "/v1/entities/", params={"page_size": 200}).json()
    [entity] = [entity for entity in found["results"] if entity["name"] == user]
    assert (entity["type"], entity["total_memories"]) == ("user", 1)
    assert found["count"] == len(found["results"])

    answer = site.call("DELETE", f"/v2/entities/user/{user}/").json()
    assert answer == {"message": "Entity deleted successfully!", "deleted": 1}
    assert site.texts({"user_id": user}) == []


def test_run_is_deleted_for_all_users(site: Mem0Site, user: str) -> None:
    run = f"run-{user}"
    site.add("Ada drinks tea", user, run_id=run)
    site.add("Bob drinks tea", f"{user}-2", run_id=run)
    site.add("Bob drinks coffee", f"{user}-2")

    assert site.call("DELETE", f"/v2/entities/run/{run}/").json()["deleted"] == 2
    assert site.texts({"user_id": {"in": [user, f"{user}-2"]}}) == ["Bob drinks coffee"]


@pytest.mark.parametrize(
    "path", ["/v2/entities/run/{}/", "/v1/memories/?user_id=*&run_id={}", "/memories?user_id=*&run_id={}"]
)
def test_deletion_says_that_users_remain(path: str, site: Mem0Site, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "MAX_USERS", 2)
    run, users = f"run-{user}", [f"{user}-{number}" for number in range(3)]
    for name in users:
        site.add("Ada drinks tea", name, run_id=run)

    messages = [site.call("DELETE", path.format(run)).json()["message"] for _ in range(2)]
    assert ["repeat the request" in message for message in messages] == [True, False]
    assert site.texts({"user_id": {"in": users}}) == []


@pytest.mark.parametrize("end", ["", "/"])
def test_slash_at_the_end_of_a_name_is_not_that_of_the_path(end: str, site: Mem0Site, user: str) -> None:
    site.add("Ada drinks tea", user)
    site.add("Bob drinks tea", f"{user}/")

    assert site.call("DELETE", f"/v2/entities/user/{user}%2F{end}").json()["deleted"] == 1
    assert site.texts({"user_id": {"in": [user, f"{user}/"]}}) == ["Ada drinks tea"]


@pytest.mark.parametrize("path", ["/v2/entities/user/*/", "/v2/entities/team/x/"])
def test_entity_to_delete_is_named(path: str, site: Mem0Site) -> None:
    assert site.call("DELETE", path).status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/feedback/"),
        ("POST", "/v1/exports/"),
        ("GET", "/api/v1/orgs/organizations/a/projects/b/"),
        ("GET", "/api/v1/webhooks/projects/b/"),
        ("GET", "/v1/events/"),
        ("GET", "/configure"),
    ],
)
def test_calls_without_a_counterpart_say_why(method: str, path: str, site: Mem0Site) -> None:
    answer = site.call(method, path)

    assert answer.status_code == 501
    assert len(answer.json()["detail"]) > 20


def test_unknown_path_is_not_found(site: Mem0Site) -> None:
    assert site.call("GET", "/v9/memories/").status_code == 404
    assert site.call("OPTIONS", "/v1/memories/").status_code == 405


def test_options_without_effect_are_named(site: Mem0Site, user: str) -> None:
    body = {"query": "tea", "filters": {"user_id": user}, "rerank": True, "keyword_search": True, "source": "CLI"}
    answer = site.call("POST", "/v3/memories/search/", json=body)

    assert answer.headers["X-AgentMemory-Without-Effect"] == "keyword_search, rerank"


@pytest.mark.parametrize(
    "content", [[{"type": "text", "text": "Ada drinks tea"}], {"type": "text", "text": "Ada drinks tea"}]
)
def test_text_parts_are_stored(content: object, site: Mem0Site, user: str) -> None:
    site.add([{"role": "user", "content": content}], user)  # type: ignore[arg-type]

    assert site.texts({"user_id": user}) == ["Ada drinks tea"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": {"type": "image_url", "image_url": {"url": "http://x"}}}]},
        {"messages": []},
        {"messages": [{"role": "narrator", "content": "x"}]},
        {"messages": "x", "metadata": {"mem0": {"id": "spoofed"}}},
        {"messages": "x", "user_id": "*"},
        {"messages": "x", "expiration_date": "tomorrow"},
        {"messages": [{"role": "user", "content": text} for text in "xy"], "timestamp": "9999-12-31T23:59:59.999Z"},
        {"messages": "x", "run_id": "a\x00b"},
        {"messages": "x", "filters": {"user_id": 5}},
        {"messages": "x", "filters": {"run_id": {"in": ["r1"]}}},
        {"messages": "x", "filters": {"agent_id": ["waiter"]}},
    ],
)
def test_invalid_message_is_rejected(body: dict[str, object], site: Mem0Site, user: str) -> None:
    answer = site.call("POST", "/v3/memories/add/", json={"user_id": user} | body)

    assert answer.status_code == 400
    assert answer.json()["errors"]


@pytest.mark.parametrize("path", ["/v1/memories/", "/v3/memories/add"])
def test_v1_and_paths_without_slash(path: str, site: Mem0Site, user: str) -> None:
    assert site.call("POST", path, json={"messages": "Ada drinks tea", "user_id": user}).status_code == 200
    body = {"query": "tea", "user_id": user, "output_format": "v1.1"}
    assert len(site.call("POST", "/v1/memories/search/", json=body).json()["results"]) == 1
    del body["output_format"]
    assert len(site.call("POST", "/v2/memories/search/", json=body).json()) == 1
    assert len(site.call("GET", "/v1/memories/", params={"user_id": user}).json()) == 1
    assert len(site.call("POST", "/v2/memories/", json={"filters": {"user_id": user}}).json()) == 1
