"""Memory service of Google ADK: the cases of ADK's own tests for its service in memory, and failures."""

import asyncio
import unicodedata
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.cli.service_registry import get_service_registry, load_services_module
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types
from pydantic import Field

from agentmemory_client import ApiError, ApiUnreachable, Client
from agentmemory_client.adapters.google_adk import AgentMemoryService, open_service, register

APP = "words"
START_S = 1_780_000_000.0


def event(id_: str, text: str | None, *, author: str = "user", at_s: float = START_S) -> Event:
    content = None if text is None else types.Content(parts=[types.Part(text=text)])
    return Event(id=id_, invocation_id="inv", author=author, timestamp=at_s, content=content)


def session(user_id: str, *events: Event, id_: str = "s1") -> Session:
    return Session(app_name=APP, user_id=user_id, id=id_, last_update_time=START_S, events=list(events))


@pytest.fixture
def user_id() -> str:
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture
def service(client: Client) -> AgentMemoryService:
    return AgentMemoryService(client)


@pytest.fixture
def away() -> Iterator[AgentMemoryService]:
    with Client("http://127.0.0.1:9", retries=0) as client:
        yield AgentMemoryService(client)


async def texts(service: AgentMemoryService, user_id: str, query: str) -> list[str]:
    answer = await service.search_memory(app_name=APP, user_id=user_id, query=query)
    return [entry.content.parts[0].text or "" for entry in answer.memories if entry.content.parts]


def stored(client: Client, user_id: str) -> list[str | None]:
    return [memory.content for memory in client.agent(APP).user(user_id).memories()][::-1]


class TestAdd:
    async def test_session_keeps_events_with_text(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        events = event("a", "ADK is a toolkit"), event("b", None), event("c", "I agree", author="bot", at_s=START_S + 1)

        await service.add_session_to_memory(session(user_id, *events))

        assert stored(client, user_id) == ["ADK is a toolkit", "I agree"]

    async def test_session_without_events_is_no_error(self, service: AgentMemoryService, user_id: str) -> None:
        await service.add_session_to_memory(session(user_id))

        assert await texts(service, user_id, "ADK") == []

    async def test_growing_session_is_stored_once(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        """The second service stands for another process."""
        events = [event(f"e{number}", f"note {number}", at_s=START_S + number) for number in range(12)]
        await service.add_session_to_memory(session(user_id, *events[:5]))
        await AgentMemoryService(client).add_session_to_memory(session(user_id, *events))

        assert stored(client, user_id) == [f"note {number}" for number in range(12)]

    async def test_concurrent_adds_store_once(self, service: AgentMemoryService, client: Client, user_id: str) -> None:
        whole = session(user_id, *(event(f"e{number}", f"note {number}", at_s=START_S + number) for number in range(4)))

        await asyncio.gather(*(service.add_session_to_memory(whole) for _ in range(4)))

        assert stored(client, user_id) == [f"note {number}" for number in range(4)]

    async def test_events_extend_the_session(self, service: AgentMemoryService, client: Client, user_id: str) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "one")))

        new = [event("a", "one, changed"), event("b", "two", at_s=START_S + 1)]
        await service.add_events_to_memory(app_name=APP, user_id=user_id, session_id="s1", events=new)

        assert stored(client, user_id) == ["one", "two"]

    async def test_events_need_no_session(self, service: AgentMemoryService, client: Client, user_id: str) -> None:
        await service.add_events_to_memory(
            app_name=APP, user_id=user_id, events=[event("a", "one")], custom_metadata={"topic": "x"}
        )

        [memory] = client.agent(APP).user(user_id).memories()
        assert (memory.content, memory.session_id, memory.metadata) == ("one", None, {"topic": "x"})

    async def test_equal_ids_of_two_sessions_are_two_events(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        for id_ in ("s1", "s2"):
            await service.add_session_to_memory(session(user_id, event("a", f"from {id_}"), id_=id_))

        assert sorted(map(str, stored(client, user_id))) == ["from s1", "from s2"]

    async def test_event_keeps_author_and_time(self, service: AgentMemoryService, user_id: str) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "I code in Python", author="coder")))

        [entry] = (await service.search_memory(app_name=APP, user_id=user_id, query="Python")).memories

        assert (entry.author, entry.timestamp) == ("coder", "2026-05-28T20:26:40+00:00")

    async def test_thoughts_and_calls_of_tools_are_left_out(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        parts = [types.Part(text="hidden", thought=True), types.Part(text="shown")]
        parts.append(types.Part(function_call=types.FunctionCall(name="f", args={})))
        mixed = Event(id="a", invocation_id="i", author="bot", timestamp=START_S, content=types.Content(parts=parts))

        await service.add_session_to_memory(session(user_id, mixed))

        assert stored(client, user_id) == ["shown"]

    async def test_very_long_event_is_truncated(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "word " * 20_000)))

        [text] = stored(client, user_id)
        assert len(str(text)) > 60_000

    async def test_refused_event_does_not_block_others(
        self, client: Client, user_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The agent `numbers` requires a vector, so it refuses events with text alone."""
        service = AgentMemoryService(client, agent="numbers")

        await service.add_session_to_memory(session(user_id, event("a", "tea"), event("b", "cake")))

        assert "event a is not stored: 422" in caplog.text
        assert "event b is not stored: 422" in caplog.text


class TestSearch:
    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("I like to code in Python", "Python"),
            ("I like to code in Python", "PYTHON"),
            ("私はPythonでADKを使っています", "Python"),
            ("Меня зовут Алексей", "Алексей"),
            (unicodedata.normalize("NFD", "Meet at the Café"), "Café"),
        ],
    )
    async def test_finds_text_in_any_script(
        self, service: AgentMemoryService, user_id: str, text: str, query: str
    ) -> None:
        await service.add_session_to_memory(session(user_id, event("a", text)))

        assert await texts(service, user_id, query) == [text]

    async def test_best_match_is_first(self, service: AgentMemoryService, user_id: str) -> None:
        contents = ["The weather is nice", "The deploy status is ready", "Tea is hot"]
        events = [event(f"e{number}", text, at_s=START_S + number) for number, text in enumerate(contents)]
        await service.add_session_to_memory(session(user_id, *events))

        assert (await texts(service, user_id, "deploy status"))[0] == "The deploy status is ready"

    async def test_returns_at_most_top_k(self, client: Client, user_id: str) -> None:
        service = AgentMemoryService(client, top_k=3)
        events = [event(f"e{number}", f"note {number} about work", at_s=START_S + number) for number in range(8)]
        await service.add_session_to_memory(session(user_id, *events))

        assert len(await texts(service, user_id, "work")) == 3

    async def test_is_scoped_by_user(self, service: AgentMemoryService, user_id: str) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "This is a secret")))

        assert await texts(service, f"{user_id}-other", "secret") == []

    async def test_slash_does_not_lead_to_another_user(self, service: AgentMemoryService, user_id: str) -> None:
        await service.add_session_to_memory(session(f"x/{user_id}", event("a", "This is a secret")))

        assert await texts(service, user_id, "secret") == []
        with pytest.raises(ApiError, match="404"):
            await service.search_memory(app_name=f"{APP}/x", user_id=user_id, query="secret")

    async def test_app_uses_agent_of_its_name(self, client: Client, user_id: str) -> None:
        with pytest.raises(ApiError, match="404"):
            await AgentMemoryService(client).search_memory(app_name="unknown", user_id=user_id, query="x")

        shared = AgentMemoryService(client, agent=APP)
        assert (await shared.search_memory(app_name="unknown", user_id=user_id, query="x")).memories == []

    @pytest.mark.parametrize("query", ["", " ", "\u200b"])
    async def test_query_without_text_finds_nothing(
        self, service: AgentMemoryService, user_id: str, query: str
    ) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "note")))

        assert await texts(service, user_id, query) == []


class TestMemories:
    async def test_added_memory_is_found(self, service: AgentMemoryService, user_id: str) -> None:
        entry = MemoryEntry(content=types.Content(parts=[types.Part(text="Ada likes tea")]), author="crm")

        await service.add_memory(app_name=APP, user_id=user_id, memories=[entry], custom_metadata={"topic": "drinks"})

        [found] = (await service.search_memory(app_name=APP, user_id=user_id, query="tea")).memories
        assert (found.author, found.custom_metadata["topic"]) == ("crm", "drinks")

    async def test_memory_with_an_id_replaces_it(self, service: AgentMemoryService, user_id: str) -> None:
        for text in ("Ada likes tea", "Ada likes coffee"):
            entry = MemoryEntry(id="drink", content=types.Content(parts=[types.Part(text=text)]))
            await service.add_memory(app_name=APP, user_id=user_id, memories=[entry])

        [found] = (await service.search_memory(app_name=APP, user_id=user_id, query="likes")).memories
        assert (found.id, await texts(service, user_id, "likes")) == ("drink", ["Ada likes coffee"])

    async def test_memories_are_deleted_by_either_id(self, service: AgentMemoryService, user_id: str) -> None:
        entry = MemoryEntry(id="drink", content=types.Content(parts=[types.Part(text="Ada likes tea")]))
        await service.add_memory(app_name=APP, user_id=user_id, memories=[entry])
        await service.add_session_to_memory(session(user_id, event("a", "Ada likes cake")))
        answer = await service.search_memory(app_name=APP, user_id=user_id, query="likes")

        for found in answer.memories:
            await service.delete_memory(app_name=APP, user_id=user_id, memory_id=found.id or "")

        assert len(answer.memories) == 2
        assert await texts(service, user_id, "likes") == []

    @pytest.mark.parametrize("memory_id", ["unknown", "a/b", "x" * 300, "00000000-0000-5000-8000-000000000000"])
    async def test_deleting_an_unknown_id_is_no_error(
        self, service: AgentMemoryService, user_id: str, memory_id: str
    ) -> None:
        await service.delete_memory(app_name=APP, user_id=user_id, memory_id=memory_id)

    async def test_repeated_deletion_deletes_the_memory(
        self, service: AgentMemoryService, client: Client, user_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The API is unavailable at first. A deletion that was repeated takes a 404 for its own success."""
        memory = client.agent(APP).user(user_id).add("Ada likes tea")
        request, refused = client.http.request, list[str]()

        def refuse_first(method: str, url: str, **options: Any) -> httpx.Response:
            if refused:
                return request(method, url, **options)
            refused.append(url)
            return httpx.Response(503, headers={"Retry-After": "0"})

        monkeypatch.setattr(client.http, "request", refuse_first)
        await service.delete_memory(app_name=APP, user_id=user_id, memory_id=memory.id)

        assert len(refused) == 1
        assert stored(client, user_id) == []

    @pytest.mark.parametrize("memory_id", [None, ""])
    async def test_deletion_without_an_id_is_rejected(
        self, service: AgentMemoryService, client: Client, user_id: str, memory_id: str | None
    ) -> None:
        await service.add_session_to_memory(session(user_id, event("a", "note")))

        with pytest.raises(ValueError, match="memory_id is required"):
            await service.delete_memory(app_name=APP, user_id=user_id, memory_id=memory_id)

        assert stored(client, user_id) == ["note"]


class TestOutage:
    async def test_search_finds_nothing(self, away: AgentMemoryService, caplog: pytest.LogCaptureFixture) -> None:
        assert await texts(away, "ada", "tea") == []
        assert "no memories for this search" in caplog.text

    async def test_session_is_not_stored(self, away: AgentMemoryService, caplog: pytest.LogCaptureFixture) -> None:
        await away.add_session_to_memory(session("ada", event("a", "note")))

        assert "session s1 is not stored before it is added again" in caplog.text

    async def test_explicit_write_is_raised(self, away: AgentMemoryService) -> None:
        with pytest.raises(ApiUnreachable):
            await away.add_events_to_memory(app_name=APP, user_id="ada", events=[event("a", "note")])

    async def test_session_is_stored_after_it(
        self, service: AgentMemoryService, client: Client, user_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch, Client("http://127.0.0.1:9", retries=0) as nobody:
            patch.setattr(service, "_client", nobody)
            await service.add_session_to_memory(session(user_id, event("a", "one")))

        await service.add_session_to_memory(session(user_id, event("a", "one"), event("b", "two", at_s=START_S + 1)))

        assert stored(client, user_id) == ["one", "two"]


class EchoModel(BaseLlm):
    """Answers with the same text, and records what it was sent."""

    prompts: list[str] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        # Versions of ADK differ in where they put loaded memories.
        self.prompts.append(f"{llm_request.config.system_instruction} {llm_request.contents}")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Noted")]))


async def keep_session(callback_context: CallbackContext) -> None:
    await callback_context.add_session_to_memory()


class TestAgent:
    """An agent that loads memories before each call of the model, and stores its session after each run."""

    def runner(self, service: AgentMemoryService, model: EchoModel) -> Runner:
        agent = LlmAgent(name="bot", model=model, tools=[PreloadMemoryTool()], after_agent_callback=keep_session)
        return Runner(app_name=APP, agent=agent, session_service=InMemorySessionService(), memory_service=service)

    async def test_memories_of_another_session_reach_the_model(
        self, service: AgentMemoryService, client: Client, user_id: str
    ) -> None:
        model = EchoModel(model="echo")
        runner = self.runner(service, model)

        for session_id, text in (("s1", "I pay by invoice"), ("s1", "I like tea"), ("s2", "How do I pay?")):
            await runner.run_debug(text, user_id=user_id, session_id=session_id, quiet=True)

        assert "I pay by invoice" in model.prompts[-1]
        assert stored(client, user_id) == ["I pay by invoice", "Noted", "I like tea", "Noted", "How do I pay?", "Noted"]

    async def test_run_continues_in_an_outage(self, away: AgentMemoryService, user_id: str) -> None:
        events = await self.runner(away, EchoModel(model="echo")).run_debug("Hello", user_id=user_id, quiet=True)

        assert events[-1].content is not None
        assert str(events[-1].content.parts).count("Noted") == 1


class TestUri:
    def test_registry_opens_the_service(self, api_url: str) -> None:
        register()

        uri = f"agentmemory://{httpx.URL(api_url).netloc.decode()}/words?top_k=3"
        assert isinstance(get_service_registry().create_memory_service(uri, agents_dir="."), AgentMemoryService)

    def test_yaml_file_names_the_service(self, tmp_path: Path) -> None:
        opener = "agentmemory_client.adapters.google_adk.open_service"
        (tmp_path / "services.yaml").write_text(f"services: [{{scheme: agentmemory, type: memory, class: {opener}}}]")
        registry = get_service_registry()
        registry.register_memory_service("agentmemory", lambda uri, **_: None)

        load_services_module(str(tmp_path))

        service = registry.create_memory_service("agentmemory://host/words", agents_dir=str(tmp_path))
        assert isinstance(service, AgentMemoryService)

    async def test_opened_service_works(self, api_url: str, user_id: str) -> None:
        service = open_service(f"agentmemory://{httpx.URL(api_url).netloc.decode()}/words")
        await service.add_session_to_memory(session(user_id, event("a", "Ada likes tea")))

        assert await texts(service, user_id, "tea") == ["Ada likes tea"]

    async def test_token_file_is_read_before_each_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The token of a pod is renewed in its file."""
        file = tmp_path / "token"
        monkeypatch.setenv("AGENTMEMORY_TOKEN_FILE", str(file))
        sent = list[str]()
        service = open_service("agentmemory://host/words")
        transport = httpx.MockTransport(
            lambda request: sent.append(request.headers["Authorization"]) or httpx.Response(503)
        )
        service._client.http = httpx.Client(base_url="http://host", transport=transport)
        monkeypatch.setattr(service._client, "connection", replace(service._client.connection, retries=0))

        for token in ("one", "two"):
            file.write_text(f"{token}\n")
            await texts(service, "ada", "tea")

        assert sent == ["Bearer one", "Bearer two"]

    @pytest.mark.parametrize(
        "uri",
        [
            "agentmemory://",
            "agentmemory:///bot",
            "agentmemory://:secret@host/bot",
            "http://host/bot",
            "agentmemory://host/bot?k=3",
        ],
    )
    def test_other_uris_are_rejected_without_their_password(self, uri: str) -> None:
        with pytest.raises(ValueError, match="agentmemory://HOST") as raised:
            open_service(uri)

        assert "secret" not in str(raised.value)


def test_example_of_the_page_runs(run_example: Callable[..., str]) -> None:
    """The page's app has an agent of the ADK, which needs no model to be built."""
    assert "Ada pays by invoice" in run_example("google_adk", root_agent=LlmAgent(name="bot"))
