"""Conversations: turns are stored, and a scripted model distills memories from them."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentmemory_client import Client
from agentmemory_client.memory_calls import Message
from tests.support.patience import wait_until as wait_patiently
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.endpoints import VECTOR
from tests.support.web.http_server import serve
from tests.support.web.language_models import Row, ScriptedModel

EMBEDDING = {"provider": "wordllama", "dimensions": 64}
ADA = [
    {"role": "user", "content": "I moved to Lisbon in May", "speaker": "Ada", "at": "2026-05-03T10:00:00Z"},
    {"role": "assistant", "content": "Noted.", "at": "2026-05-03T10:00:05Z"},
    {"role": "user", "content": "and I am allergic to nuts", "speaker": "Ada", "at": "2026-05-03T10:00:09Z"},
]


def distilled(rows: list[Row]) -> Any:
    """Return a memory for each turn of a user, as a good model would."""
    return {
        "memories": [
            {
                "content": f"{row['speaker']} said: {row['content']}",
                "type": "fact",
                "importance": "critical" if "allergic" in row["content"] else "low",
                "sources": [row["id"]],
            }
            for row in rows
            if row["role"] == "user"
        ]
    }


@pytest.fixture(scope="module")
def running_model() -> Iterator[tuple[ScriptedModel, str]]:
    model = ScriptedModel(answers={"perfect": distilled})
    with serve(model.app()) as url:
        yield model, url


@pytest.fixture(scope="module")
def api(qdrant_url: str, running_model: tuple[ScriptedModel, str]) -> Iterator[httpx.Client]:
    model = {"model": {"model": "m", "baseURL": f"{running_model[1]}/v1", "timeoutSeconds": 5}}
    talks = agent_document("talks", embedding=EMBEDDING, consolidation=model)
    create_collection(qdrant_url, talks)
    with (
        running_api(qdrant_url, talks) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as client,
    ):
        yield client


@pytest.fixture
def model(running_model: tuple[ScriptedModel, str]) -> ScriptedModel:
    model, _ = running_model
    model.__init__(answers={"perfect": distilled})  # type: ignore[misc]
    return model


def wait_until(holds: Callable[[], bool]) -> None:
    wait_patiently(holds, seconds=30)


def converse(
    client: httpx.Client, user: str, messages: Any = ADA, *, agent: str = "talks", **more: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key} if (key := more.pop("key", None)) else {}
    body = {"user_id": user, "messages": messages, **more}
    return client.post(f"/v1/agents/{agent}/messages", json=body, headers=headers)


def memories(client: httpx.Client, user: str, *, agent: str = "talks", **parameters: Any) -> list[dict[str, Any]]:
    found = client.get(f"/v1/agents/{agent}/memories", params={"user_id": user, "limit": 1000, **parameters})
    results: list[dict[str, Any]] = found.json()["results"]
    return results


def distilled_memories(client: httpx.Client, user: str) -> list[dict[str, Any]]:
    return [memory for memory in memories(client, user) if memory["source"] == "distillation"]


class TestTurns:
    def test_turns_are_stored_unchanged(self, client: httpx.Client, user: str) -> None:
        answer = converse(client, user, agent="words", session_id="s1")

        assert answer.status_code == 201
        result = answer.json()
        stored = memories(client, user, agent="words", session_id="s1")
        assert [memory["id"] for memory in stored] == result["turns"][::-1]
        assert [(memory["role"], memory["speaker"], memory["content"]) for memory in stored[::-1]] == [
            ("user", "Ada", "I moved to Lisbon in May"),
            ("assistant", None, "Noted."),
            ("user", "Ada", "and I am allergic to nuts"),
        ]
        assert {(memory["type"], memory["source"]) for memory in stored} == {("episodic", "conversation")}
        assert stored[-1]["created_at"].startswith("2026-05-03T10:00:00")

    def test_missing_model_is_warned_about(self, client: httpx.Client, user: str) -> None:
        result = converse(client, user, agent="words").json()

        assert result["run"] is None
        assert result["warnings"] == [
            "turns stored but not distilled: the agent has no language model (spec.consolidation.model)"
        ]

    def test_idempotency_key_returns_the_same_result(self, client: httpx.Client, user: str) -> None:
        first, second = (converse(client, user, agent="words", key="k") for _ in range(2))

        assert first.json() == second.json()
        assert len(memories(client, user, agent="words")) == 3

    @pytest.mark.parametrize(
        "others",
        [[ADA[0] | {"content": "Rome"}, *ADA[1:]], [*ADA[:2], ADA[2] | {"content": "Rome"}], ADA[:2], [*ADA, ADA[1]]],
        ids=["first", "last", "fewer", "more"],
    )
    def test_idempotency_key_with_other_turns_is_409(self, others: Any, client: httpx.Client, user: str) -> None:
        converse(client, user, agent="words", key="k")

        assert converse(client, user, others, agent="words", key="k").status_code == 409
        assert len(memories(client, user, agent="words")) == 3

    def test_callers_may_send_vectors(self, client: httpx.Client, user: str) -> None:
        result = converse(client, user, [{"role": "user", "content": "hello", "vector": VECTOR}], agent="probe").json()

        assert result["run"] is None
        assert [memory["content"] for memory in memories(client, user, agent="probe")] == ["hello"]

    def test_memories_endpoint_accepts_a_conversation(self, client: httpx.Client, user: str) -> None:
        answer = client.post("/v1/agents/words/memories", json={"user_id": user, "messages": ADA})

        assert answer.status_code == 201
        assert len(answer.json()["turns"]) == 3

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "user", "content": "x"}] * 257}, "messages"),
            ({"messages": [{"role": "moderator", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x" * 65_537}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x", "at": "yesterday"}]}, "messages[0].at"),
            ({"messages": [{"role": "user", "content": "x", "more": 1}]}, "messages[0].more"),
            ({"messages": [{"role": "user", "content": "x", "speaker": "a\nb"}]}, "messages[0].speaker"),
            ({"messages": "x"}, "messages"),
            ({"messages": [{"role": "user", "content": "x"}], "zone": "SENSITIVE"}, "zone"),
        ],
    )
    @pytest.mark.parametrize("path", ["messages", "memories"])
    def test_invalid_field_is_named_and_nothing_stored(
        self, path: str, body: dict[str, Any], field: str, client: httpx.Client, user: str
    ) -> None:
        answer = client.post(f"/v1/agents/words/{path}", json={"user_id": user, **body})

        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert memories(client, user, agent="words") == []


class TestDistillation:
    def test_memories_have_their_turns_as_sources(self, api: httpx.Client, model: ScriptedModel, user: str) -> None:
        result = converse(api, user, session_id="s1").json()

        wait_until(lambda: len(distilled_memories(api, user)) == 2)
        distilled_by_content = {memory["content"]: memory for memory in distilled_memories(api, user)}
        allergic, moved = (
            distilled_by_content["Ada said: and I am allergic to nuts"],
            distilled_by_content["Ada said: I moved to Lisbon in May"],
        )
        assert result["run"]
        assert result["warnings"] == []
        assert (allergic["source_ids"], moved["source_ids"]) == ([result["turns"][2]], [result["turns"][0]])
        assert (allergic["importance"], moved["importance"]) == (1.0, 0.25)
        assert {(memory["type"], memory["session_id"]) for memory in distilled_by_content.values()} == {("fact", "s1")}
        assert len(model.bodies) == 1


def test_client_stores_a_conversation(stack: Stack, user: str) -> None:
    with Client(stack.api_url) as client:
        turns: list[Message] = [{"role": "user", "content": "hello", "speaker": "Ada"}]
        result = client.agent("words").user(user).converse(turns, session_id="s")
        [memory] = client.agent("words").user(user).memories()

    assert (result.turns, result.run, len(result.warnings)) == ((memory.id,), None, 1)
    assert (memory.role, memory.speaker, memory.session_id) == ("user", "Ada", "s")
