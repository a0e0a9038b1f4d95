"""Storing, reading, listing, searching and deleting memories over HTTP."""

from typing import Any

import httpx
import pytest

from agentmemory_operator.spec.times import parse_time

MEMORIES, SEARCH, BATCH = "/v1/agents/probe/memories", "/v1/agents/probe/search", "/v1/agents/probe/memories/batch"
VECTOR = [0.5] * 8
OTHER = [0.5] * 4 + [-0.5] * 4


def store(client: httpx.Client, user: str, agent: str = "probe", **memory: Any) -> dict[str, Any]:
    body = {"user_id": user, "content": "c"} | ({"vector": VECTOR} if agent == "probe" else {}) | memory
    answer = client.post(f"/v1/agents/{agent}/memories", json=body)
    assert answer.status_code == 201, answer.text
    stored: dict[str, Any] = answer.json()
    return stored


def read(client: httpx.Client, user: str, memory_id: str) -> httpx.Response:
    return client.get(f"{MEMORIES}/{memory_id}", params={"user_id": user})


def search(client: httpx.Client, user: str, agent: str = "probe", **options: Any) -> dict[str, Any]:
    question = {} if "query" in options or "vector" in options else {"vector": VECTOR}
    answer = client.post(f"/v1/agents/{agent}/search", json={"user_id": user} | question | options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_memory_roundtrips(client: httpx.Client, user: str) -> None:
    sent = {
        "content": "Änderung 💡\n\u0007 ok",
        "type": "decision",
        "importance": "high",
        "confidence": 0.9,
        "decay_rate": 0.02,
        "session_id": "s-1",
        "tags": ["b", "a", "b"],
        "source": "conversation",
        "author": "support",
        "speaker": "Ada",
        "role": "user",
        "key": "billing.method",
        "subject": "billing",
        "status_value": "agreed",
        "category": "semantic",
        "knowledge_category": "relationship",
        "event_type": "agent_decision",
        "context": {"room": "4"},
        "domain": "billing",
        "source_ids": ["018f0000-0000-7000-8000-000000000000"],
        "metadata": {"ticket": 7, "nested": {"list": [1, None, True, "x"]}},
        "namespace": ["projects", "apollo"],
        "valid_to": "2998-01-01T00:00:00Z",
        "created_at": "2025-11-21T10:00:00.123456+02:00",
        "expires_at": "2999-01-01T00:00:00Z",
    }
    sent["parent_id"] = store(client, user)["id"]
    memory_id = store(client, user, **sent)["id"]

    memory = read(client, user, memory_id).json()

    assert parse_time(memory.pop("updated_at")) > parse_time(memory["created_at"])
    assert memory == sent | {
        "id": memory_id,
        "priority": None,
        "observed_by": ["support"],
        "observation_count": 1,
        "user_id": user,
        "importance": 0.75,
        "tags": ["b", "a"],
        "created_at": "2025-11-21T08:00:00.123Z",
        "valid_from": "2025-11-21T08:00:00.123Z",
        "valid_to": "2998-01-01T00:00:00.000Z",
        "expires_at": "2999-01-01T00:00:00.000Z",
        "version": None,
        "supersedes": None,
        "supersedes_ids": [],
        "superseded_by": None,
        "superseded_at": None,
        "connections": [],
        "consolidated": False,
        "entities": [],
        "last_accessed_at": None,
        "access_count": 0,
        "pinned": False,
        "zone": None,
        "locked": False,
    }


def test_context_may_be_a_text(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user, context="at the desk")["id"]

    assert read(client, user, memory_id).json()["context"] == "at the desk"


def test_user_and_content_are_sufficient(client: httpx.Client, user: str) -> None:
    stored = store(client, user)

    memory = read(client, user, stored["id"]).json()

    assert stored == {"id": stored["id"], "event": "ADD", "supersedes": None, "recorded": True, "warnings": []}
    assert (memory["type"], memory["importance"], memory["tags"], memory["metadata"]) == ("fact", 0.5, [], {})


@pytest.mark.parametrize(("level", "value"), [("low", 0.25), ("medium", 0.5), ("critical", 1), (0, 0), (0.3, 0.3)])
def test_importance_is_a_number_or_a_level(client: httpx.Client, user: str, level: Any, value: float) -> None:
    memory_id = store(client, user, importance=level)["id"]

    assert read(client, user, memory_id).json()["importance"] == value


def test_ids_are_case_insensitive(client: httpx.Client, user: str) -> None:
    memory_id = store(client, user)["id"]

    assert read(client, user, memory_id.upper()).json()["id"] == memory_id


def test_list_includes_superseded_on_request(client: httpx.Client, user: str) -> None:
    store(client, user, content="new", supersedes=store(client, user, content="old")["id"])

    found = client.get(MEMORIES, params={"user_id": user, "include_superseded": "true"}).json()["results"]

    assert sorted(memory["content"] for memory in found) == ["new", "old"]


def test_batch_has_a_result_per_item(client: httpx.Client, user: str) -> None:
    good = {"user_id": user, "content": "c", "vector": VECTOR}
    other = good | {"content": "d"}
    items: list[Any] = [good, good | {"type": "nope"}, good | {"importance": 2}, 7, other, good | {"vector": [1]}]
    answer = client.post(BATCH, json={"memories": items})

    results = answer.json()["results"]

    assert answer.status_code == 200
    assert [result.get("event") for result in results] == ["ADD", None, None, None, "ADD", None]
    errors = [result["error"] for result in results if "error" in result]
    assert [error["errors"][0]["field"] for error in errors] == ["type", "importance", "body", "vector"]
    assert {error["status"] for error in errors} == {422}
    assert {error["request_id"] for error in errors} == {answer.headers["x-request-id"]}
    assert len(client.get(MEMORIES, params={"user_id": user}).json()["results"]) == 2


def test_nan_fails_only_its_batch_item(client: httpx.Client, user: str) -> None:
    good = f'{{"user_id": "{user}", "content": "c", "vector": [1,1,1,1,1,1,1,1]}}'
    bad = good.replace("[1,", "[NaN,")

    results = client.post(BATCH, content=f'{{"memories": [{good}, {bad}]}}').json()["results"]

    assert results[0]["event"] == "ADD"
    assert results[1]["error"]["errors"] == [{"field": "vector[0]", "message": "must be a finite number"}]


def test_idempotency_keys_of_batch_and_store_differ(client: httpx.Client, user: str) -> None:
    body, headers = {"user_id": user, "content": "c", "vector": VECTOR}, {"Idempotency-Key": "k"}
    single = client.post(MEMORIES, json=body, headers=headers).json()

    (result,) = client.post(BATCH, json={"memories": [body]}, headers=headers).json()["results"]

    assert result["id"] != single["id"]


def test_search_ranks_and_names_the_generation(client: httpx.Client, user: str) -> None:
    store(client, user, content="far", vector=OTHER)
    store(client, user, content="near")
    answer = client.post(SEARCH, json={"user_id": user, "vector": VECTOR})

    found = answer.json()

    assert [memory["content"] for memory in found["results"]] == ["near", "far"]
    assert found["generation"] == int(answer.headers["x-agentmemory-generation"]) == 3
    assert found["total_candidates"] == 2
    assert found["took_ms"] > 0
    assert "explain" not in found["results"][0]


def test_search_reports_thresholds_and_removed_count(client: httpx.Client, user: str) -> None:
    store(client, user, content="a")
    body = {"user_id": user, "vector": VECTOR}

    everything = client.post(SEARCH, json=body).json()
    nothing = client.post(SEARCH, json=body | {"threshold": 0.99}).json()

    assert (everything["threshold"], everything["min_similarity"]) == (None, None)
    assert (nothing["results"], nothing["total_candidates"], nothing["removed_by_threshold"]) == ([], 1, 1)
    assert (nothing["threshold"], nothing["min_similarity"]) == (0.99, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"types": ["task"]}, ["t"]),
        ({"tags": ["y", "z"]}, ["xy"]),
        ({"tags": ["x", "y"], "tags_match": "all"}, ["xy"]),
        ({"session_id": "s"}, ["s"]),
        ({"top_k": 1, "types": ["task"]}, ["t"]),
        ({"threshold": 5}, []),
    ],
)
def test_search_filters(client: httpx.Client, user: str, options: dict[str, Any], expected: list[str]) -> None:
    store(client, user, content="t", type="task")
    store(client, user, content="x", tags=["x"])
    store(client, user, content="xy", tags=["x", "y"])
    store(client, user, content="s", session_id="s")

    assert [memory["content"] for memory in search(client, user, **options)["results"]] == expected


def test_agent_shows_its_settings(client: httpx.Client) -> None:
    agent = client.get("/v1/agents/words").json()

    assert agent["embedding"] == {"provider": "wordllama", "model": "l2_supercat", "dimensions": 64}
    assert agent["weights"] == {"similarity": 0.5, "recency": 0.3, "utility": 0.2}
    task = next(type_ for type_ in agent["types"] if type_["name"] == "task")
    assert {"half_life_days": 30, "boost": 1, "confidence": None}.items() <= task.items()
    assert task["meaning"]
    assert (agent["preset"], agent["generation"], agent["ready"], agent["limit"]) == ("cortex", 3, True, 10)


def test_agents_are_listed_with_readiness(client: httpx.Client) -> None:
    agents = {agent["agent"]: agent for agent in client.get("/v1/agents").json()["results"]}

    assert list(agents) == ["fleeting", "keywords", "mind", "missing", "probe", "words"]
    assert (agents["missing"]["ready"], agents["missing"]["memories"]) == (False, None)
    assert agents["probe"]["ready"]
    assert agents["probe"]["memories"] >= 0


def test_costly_filter_is_warned_about(client: httpx.Client, user: str) -> None:
    for ticket in (6, 7):
        store(client, user, content=str(ticket), metadata={"ticket": ticket}, namespace=["memories", user, "work"])
    options = {"filters": {"metadata.ticket": {"gte": 7}}, "namespace": ["memories", user]}

    found = search(client, user, **options)

    assert [memory["content"] for memory in found["results"]] == ["7"]
    assert "metadata.ticket" in found["warnings"][0]
    assert "payloadIndexes" in found["warnings"][0]
    assert search(client, user, filters={"NOT": [{"type": "fact"}]})["results"] == []
    assert "namespacePaths" in search(client, user, namespace=[user])["warnings"][0]
    assert search(client, user)["warnings"] == []


def test_search_at_a_time_and_with_superseded(client: httpx.Client, user: str) -> None:
    old = store(client, user, content="old", created_at="2025-01-01T00:00:00Z")["id"]
    store(client, user, content="new", supersedes=old, created_at="2025-06-01T00:00:00Z")

    def contents(**options: Any) -> list[str]:
        return sorted(memory["content"] for memory in search(client, user, **options)["results"])

    assert contents() == ["new"]
    assert contents(include_superseded=True) == ["new", "old"]
    assert contents(at_time="2025-05-31T23:59:59Z") == ["old"]
    assert contents(at_time="2025-06-01T00:00:00Z") == ["new"]


@pytest.mark.parametrize(
    ("zone", "header", "since"),
    [
        (None, None, "2026-01-01T00:00:00.000Z"),
        ("America/New_York", None, "2025-12-31T05:00:00.000Z"),
        (None, "America/New_York", "2025-12-31T05:00:00.000Z"),
        ("Asia/Tokyo", "America/New_York", "2025-12-31T15:00:00.000Z"),
    ],
)
def test_explain_shows_the_times_of_the_query(
    client: httpx.Client, user: str, zone: str | None, header: str | None, since: str
) -> None:
    body = {"user_id": user, "query": "What was there TODAY?", "reference_time": "2026-01-01T03:00:00Z"}
    body |= {"explain": True} | ({"time_zone": zone} if zone else {})
    headers = {"X-AgentMemory-Timezone": header} if header else {}

    answer = client.post("/v1/agents/keywords/search", json=body, headers=headers).json()
    plain = client.post("/v1/agents/keywords/search", json=body | {"explain": False}, headers=headers).json()

    [span] = answer["time_spans"]
    assert (span["since"], span["words"]) == (since, "TODAY")
    assert parse_time(span["until"]) - parse_time(since) == 86_400_000
    assert plain["time_spans"] is None


@pytest.mark.parametrize("zone", ["Mars/Base", "", "UTC\u00e4"])
def test_wrong_time_zone_header_is_refused(client: httpx.Client, user: str, zone: str) -> None:
    headers = {"X-AgentMemory-Timezone": zone.encode()}

    answer = client.post(SEARCH, json={"user_id": user, "vector": VECTOR, "time_zone": "UTC"}, headers=headers)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["X-AgentMemory-Timezone"]


def test_times_are_listed_also_where_they_do_not_count(client: httpx.Client, user: str) -> None:
    body = {"user_id": user, "query": "What was there today?", "explain": True, "hybrid": False}

    answer = client.post("/v1/agents/keywords/search", json=body).json()

    assert [span["words"] for span in answer["time_spans"]] == ["today"]


def test_agent_without_keywords_reads_no_times(client: httpx.Client, user: str) -> None:
    assert search(client, user, explain=True)["time_spans"] == []


def test_list_filters_by_types_tags_and_namespace(client: httpx.Client, user: str) -> None:
    store(client, user, content="a", type="task", tags=["x", "y"], namespace=["p", "q"])
    store(client, user, content="b", type="fact", tags=["x"], namespace=["p"])

    def contents(*query: tuple[str, str]) -> list[str]:
        answer = client.get(MEMORIES, params=[("user_id", user), *query])
        return sorted(memory["content"] for memory in answer.json()["results"])

    assert contents(("type", "task"), ("type", "fact")) == ["a", "b"]
    assert contents(("tag", "x"), ("tag", "y")) == ["a", "b"]
    assert contents(("tag", "x"), ("tag", "y"), ("tags_match", "all")) == ["a"]
    assert contents(("namespace", "p")) == ["a", "b"]
    assert contents(("namespace", "p"), ("namespace", "q")) == ["a"]
    assert contents(("namespace", "q")) == []


def test_redaction_is_reported_by_kind(client: httpx.Client, user: str) -> None:
    stored = store(client, user, content="the password: hunter2")

    [warning] = stored["warnings"]
    assert "password" in warning
    assert "hunter2" not in warning
    assert read(client, user, stored["id"]).json()["content"] == "the password: [REDACTED:password]"


def test_stats_count_a_users_memories(client: httpx.Client, user: str) -> None:
    old = store(client, user, created_at="2026-01-02T03:04:05Z")["id"]
    store(client, user, supersedes=old, created_at="2026-02-03T04:05:06Z")

    stats = client.get("/v1/agents/probe/stats", params={"user_id": user}).json()

    counted = {"active": 1, "superseded": 1, "hidden": 0, "expired": 0, "pending": 0}
    assert stats == {
        "user_id": user,
        "total": 2,
        "states": counted,
        "types": {"fact": counted},
        "decayed_below_50pct": None,
        "oldest": "2026-02-03T04:05:06.000Z",
        "newest": "2026-02-03T04:05:06.000Z",
    }
    assert client.get("/v1/agents/probe/stats").json()["total"] >= 2


def test_a_list_shows_what_was_valid_or_known_at_a_time(client: httpx.Client, user: str) -> None:
    old = store(client, user, content="Berlin", created_at="2026-02-01T00:00:00Z")["id"]
    store(client, user, content="Lisbon", created_at="2026-04-01T00:00:00Z", supersedes=old)
    store(client, user, content="Paris", created_at="2026-05-01T00:00:00Z", valid_from="2026-01-01T00:00:00Z")

    def listed(**query: str) -> list[str]:
        answer = client.get("/v1/agents/probe/memories", params={"user_id": user, **query})
        return [memory["content"] for memory in answer.json()["results"]]

    march = "2026-03-03T00:00:00Z"
    assert listed(at_time=march) == ["Paris", "Berlin"]
    assert listed(at_time=march, created_before=march) == ["Berlin"]
    assert listed(created_before="2026-04-01T00:00:00Z") == []


def test_a_list_is_limited_to_a_state(client: httpx.Client, user: str) -> None:
    old = store(client, user, content="Berlin", created_at="2026-02-01T00:00:00Z")["id"]
    store(client, user, content="Lisbon", created_at="2026-04-01T00:00:00Z", supersedes=old)
    store(client, user, content="Paris", created_at="2026-05-01T00:00:00Z", pinned=True)

    def listed(**query: str) -> list[str]:
        answer = client.get("/v1/agents/probe/memories", params={"user_id": user, **query})
        return [memory["content"] for memory in answer.json()["results"]]

    march = "2026-03-03T00:00:00Z"
    assert listed(state="active") == ["Paris", "Lisbon"]
    assert listed(state="superseded") == ["Berlin"]
    assert listed(state="pinned") == ["Paris"]
    assert listed(state="superseded", at_time=march, created_before=march) == ["Berlin"]
    assert listed(state="active", at_time=march, created_before=march) == []
    refused = client.get("/v1/agents/probe/memories", params={"user_id": user, "state": "expired"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "state")


def test_stats_count_by_day_of_creation(client: httpx.Client, user: str) -> None:
    for day in ("01T00:00:00Z", "01T23:59:59.999Z", "03T12:00:00Z"):
        store(client, user, content=day, created_at=f"2026-03-{day}")

    def periods(number: int, of: str = user) -> list[tuple[str, int, int]]:
        stats = client.get("/v1/agents/probe/stats", params={"user_id": of, "periods": number}).json()
        return [(period["start"][:10], period["days"], period["memories"]) for period in stats["periods"]]

    assert periods(60) == [("2026-03-01", 1, 2), ("2026-03-02", 1, 0), ("2026-03-03", 1, 1)]
    assert periods(2) == [("2026-03-01", 2, 2), ("2026-03-03", 2, 1)]
    assert periods(1) == [("2026-03-01", 3, 3)]
    assert periods(60, of=f"no-{user}") == []
