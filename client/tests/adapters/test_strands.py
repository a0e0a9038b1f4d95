"""Memory store of Strands Agents: alone, in a `MemoryManager`, and in agents with a scripted model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from strands import Agent
from strands.memory import (
    AddMessagesContext,
    AggregateMemoryError,
    ExtractionConfig,
    InvocationTrigger,
    MemoryManager,
)
from strands.models import Model
from strands.types.content import Message

from agentmemory_client import ApiError, ApiUnreachable, Client, User
from agentmemory_client.adapters.strands import AgentMemoryStore


class EchoModel(Model):
    """Answers with the same text, and records what it was sent."""

    def __init__(self, answer: str = "Noted") -> None:
        self.answer = answer
        self.prompts = list[str]()

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.prompts.append(str(messages))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self.answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


class LostResponses(httpx.HTTPTransport):
    """Carries out requests and loses the responses of the first ones that store a conversation."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if self.count and request.url.path.endswith("/messages"):
            self.count -= 1
            raise httpx.ReadTimeout("lost", request=request)
        return answer


def said(text: str, role: Any = "user") -> Message:
    return {"role": role, "content": [{"text": text}]}


def stored(user: User) -> list[tuple[str | None, str | None]]:
    return [(memory.role, memory.content) for memory in user.memories()][::-1]


@pytest.fixture
def losing(api_url: str, user: User) -> Iterator[Callable[[int], User]]:
    """Return a function that opens the user of the test with a client that loses responses."""
    clients = list[Client]()

    def open_user(count: int) -> User:
        client = Client(api_url, retries=0)
        client.http = httpx.Client(base_url=api_url, transport=LostResponses(count))
        clients.append(client)
        return client.agent("words").user(user._bound[1])

    yield open_user
    for client in clients:
        client.close()


class TestStore:
    async def test_added_memory_is_found(self, user: User) -> None:
        store = AgentMemoryStore(user)
        id_ = await store.add("Ada pays by invoice", {"topic": "billing"})

        [entry] = await store.search("how does she pay?")

        assert entry.content == "Ada pays by invoice"
        assert entry.metadata is not None
        assert (entry.metadata["id"], entry.metadata["topic"]) == (id_, "billing")

    @pytest.mark.parametrize(("options", "expected"), [(None, 3), ({"max_search_results": 2}, 2), ({}, 3)])
    async def test_number_of_results_is_limited(self, user: User, options: Any, expected: int) -> None:
        for number in range(5):
            user.add(f"Ada pays invoice {number}")

        assert len(await AgentMemoryStore(user).search("invoice", options)) == expected

    @pytest.mark.parametrize("query", ["", " \n", "\u200b", "\u2800", " " * 65_536 + "tea"])
    async def test_query_without_text_finds_nothing(self, user: User, query: str) -> None:
        user.add("Ada pays by invoice")

        assert await AgentMemoryStore(user).search(query) == []

    async def test_messages_keep_roles_and_session(self, user: User) -> None:
        tool: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "n", "input": {}}}]}

        await AgentMemoryStore(user, session_id="s1").add_messages(
            [said("I like tea"), tool, said("Noted", "assistant")]
        )

        assert stored(user) == [("user", "I like tea"), ("assistant", "Noted")]
        assert {memory.session_id for memory in user.memories()} == {"s1"}

    async def test_long_conversation_is_stored_in_order(self, user: User) -> None:
        """300 messages take two requests: the API accepts 256 in one."""
        await AgentMemoryStore(user).add_messages([said(f"note {number}") for number in range(300)])

        assert sorted(stored(user)) == sorted(("user", f"note {number}") for number in range(300))

    async def test_large_messages_are_split_and_truncated(self, user: User) -> None:
        await AgentMemoryStore(user).add_messages([said(f"{number} " + "ß" * 70_000) for number in range(4)])

        assert len(stored(user)) == 4


class TestRepetition:
    async def test_lost_response_stores_once(self, user: User, losing: Callable[[int], User]) -> None:
        """The manager repeats the messages of a failed call, with newer ones after them."""
        store = AgentMemoryStore(losing(1))
        first = [said("ok"), said("ok", "assistant")]
        with pytest.raises(ApiUnreachable):
            await store.add_messages(first, AddMessagesContext(sequence_numbers=[0, 1]))

        await store.add_messages([*first, said("ok")], AddMessagesContext(sequence_numbers=[0, 1, 2]))

        assert stored(user) == [("user", "ok"), ("assistant", "ok"), ("user", "ok")]

    async def test_twice_lost_response_stores_once(self, user: User, losing: Callable[[int], User]) -> None:
        store = AgentMemoryStore(losing(2))
        for _ in range(2):
            with pytest.raises(ApiUnreachable):
                await store.add_messages([said("tea")])

        await store.add_messages([said("tea"), said("cake")])

        assert stored(user) == [("user", "tea"), ("user", "cake")]

    async def test_equal_conversations_are_stored_again(self, user: User) -> None:
        store = AgentMemoryStore(user)
        for _ in range(2):
            await store.add_messages([said("ok")], AddMessagesContext(sequence_numbers=[0]))

        assert stored(user) == [("user", "ok"), ("user", "ok")]

    async def test_refused_turns_do_not_block_later_ones(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The agent `numbers` requires a vector, so it refuses turns with text alone."""
        store = AgentMemoryStore(client.agent("numbers").user(f"user-{uuid4().hex[:8]}"))

        await store.add_messages([said("tea")])

        assert "1 messages are not stored: 422" in caplog.text


class TestAgent:
    def test_memories_reach_the_model(self, user: User) -> None:
        user.add("Ada pays by invoice")
        model = EchoModel()

        Agent(model=model, memory_manager=MemoryManager([AgentMemoryStore(user)]), callback_handler=None)(
            "How do I pay?"
        )

        assert "Ada pays by invoice" in model.prompts[0]

    def test_conversation_is_stored(self, user: User) -> None:
        """Each call of a synchronous agent runs in an event loop of its own."""
        store = AgentMemoryStore(user, extraction=ExtractionConfig(trigger=InvocationTrigger()))
        agent = Agent(model=EchoModel(), memory_manager=MemoryManager([store]), callback_handler=None)

        for text in ("I like tea", "I like cake"):
            agent(text)

        assert stored(user) == [
            ("user", "I like tea"),
            ("assistant", "Noted"),
            ("user", "I like cake"),
            ("assistant", "Noted"),
        ]

    def test_unknown_agent_is_found_at_the_start(self, client: Client) -> None:
        store = AgentMemoryStore(client.agent("unknown").user("ada"))

        with pytest.raises(ApiError, match="404"):
            Agent(model=EchoModel(), memory_manager=MemoryManager([store]), callback_handler=None)

    def test_example_of_the_page_runs(self, run_example: Callable[..., str]) -> None:
        assert "Noted" in run_example("strands", model=EchoModel())


class TestOutage:
    def test_agent_runs_without_memory(self, unreachable: User, caplog: pytest.LogCaptureFixture) -> None:
        store = AgentMemoryStore(unreachable, extraction=ExtractionConfig(trigger=InvocationTrigger()))

        agent = Agent(model=EchoModel(), memory_manager=MemoryManager([store]), callback_handler=None)

        assert "Noted" in str(agent("How do I pay?"))
        assert "'agentmemory' was not checked" in caplog.text

    async def test_tool_reports_the_failure(self, unreachable: User) -> None:
        manager = MemoryManager([AgentMemoryStore(unreachable)], add_tool_config=True)

        with pytest.raises(AggregateMemoryError):
            await manager.add("Ada pays by invoice")

    async def test_concurrent_searches_share_the_client(self, user: User) -> None:
        user.add("Ada pays by invoice")
        manager = MemoryManager([AgentMemoryStore(user)])

        found = await asyncio.gather(*(manager.search("invoice") for _ in range(20)))

        assert [len(entries) for entries in found] == [1] * 20
