"""Memory service of Google's Agent Development Kit (ADK). It needs the extra `google-adk`.

Each event of a session becomes a memory of the type of conversations. Its idempotency key is derived from app, user,
session and event, so an event is stored once, however often its session is added and by whichever process.

If the memory is unavailable, a search finds nothing, and a session is not stored before it is added again; both log a
warning, and the agent continues. Other writes raise ApiError or ApiUnreachable. An event that the API refuses (422) is
logged and left out.
"""

import asyncio
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.adk.cli.service_registry import get_service_registry
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from agentmemory_client.adapters.common import MAX_TURN_CHARS, clean_text, find_memories, logger, outages_logged
from agentmemory_client.clients import Client
from agentmemory_client.exchange import Token
from agentmemory_client.handles import Agent, User
from agentmemory_client.memory_calls import MemoryOptions
from agentmemory_client.problems import ApiError
from agentmemory_client.texts import is_visible
from agentmemory_client.values import Found

SCHEMES = {"agentmemory": "http", "agentmemory+https": "https"}
NAMESPACE = ("google-adk", "memories")
MAX_CONCURRENT_WRITES, MAX_RECENT_EVENTS = 8, 50_000
CONVERSATION_TYPES = ("episodic", "event")


class AgentMemoryService(BaseMemoryService):
    """Memories of an app's users.

    Args:
        client: Blocking client of the API.
        agent: Slug of the agent for all apps, which then share what they know of a user. None to use for each app the
            agent of the app's name.
        top_k: Maximum number of memories that a search returns.
    """

    def __init__(self, client: Client, *, agent: str | None = None, top_k: int = 10) -> None:
        self._client = client
        self._agent = agent
        self._top_k = top_k
        # Events that this process has stored: a session that grows is not sent again as a whole.
        self._stored = OrderedDict[str, None]()

    async def add_session_to_memory(self, session: Session) -> None:
        """Store the events of a session that have text and are not stored yet. An outage is logged only."""
        with outages_logged(f"session {session.id} is not stored before it is added again"):
            await self.add_events_to_memory(
                app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
            )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store events that have text and are not stored yet. `custom_metadata` becomes metadata of the memories."""
        user, options = self._user(app_name, user_id), self._options(custom_metadata)
        if session_id:
            options["session_id"] = session_id
        keys = [_key(app_name, user_id, session_id, event) for event in events]
        new = {key: event for key, event in zip(keys, events, strict=True) if key not in self._stored}

        def store() -> None:
            options["type"] = _conversation_type(self._agent_of(app_name))
            with ThreadPoolExecutor(MAX_CONCURRENT_WRITES) as pool:
                for key in pool.map(partial(_store_event, user, options), new.items()):
                    self._stored[key] = None
            while len(self._stored) > MAX_RECENT_EVENTS:
                self._stored.popitem(last=False)

        if new:
            await asyncio.to_thread(store)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store memories. One with an id replaces the memory that was added with the same id."""
        agent, user = self._agent_of(app_name), self._user(app_name, user_id)

        def store() -> None:
            for entry in memories:
                metadata = {**(custom_metadata or {}), **entry.custom_metadata}
                if entry.id and is_visible(text := _text(entry.content)):
                    agent.put_item(NAMESPACE, text, key=entry.id, user_id=user_id, metadata=metadata)
                else:
                    _store_entry(user, entry, self._options(metadata))

        await asyncio.to_thread(store)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories of the user that match best."""
        found: Sequence[Found] = ()
        with outages_logged("no memories for this search"):
            found = await asyncio.to_thread(find_memories, self._user(app_name, user_id), query, limit=self._top_k)
        return SearchMemoryResponse(memories=[_entry(memory) for memory in found])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a memory by the id of a search or of `add_memory`. An unknown id is no error.

        Raises:
            ValueError: If there is no id. Nothing was deleted.
        """
        if not memory_id:
            raise ValueError("memory_id is required: it names the memory to delete")
        agent, user = self._agent_of(app_name), self._user(app_name, user_id)

        def delete() -> None:
            # Both: a deletion that was repeated may have found nothing, and returns the same.
            with _unknown_ids_ignored():
                agent.delete_item(NAMESPACE, memory_id, user_id=user_id)
            with _unknown_ids_ignored():
                user.delete(memory_id)

        await asyncio.to_thread(delete)

    def _agent_of(self, app_name: str) -> Agent:
        return self._client.agent(self._agent or app_name)

    def _user(self, app_name: str, user_id: str) -> User:
        return self._agent_of(app_name).user(user_id)

    @staticmethod
    def _options(metadata: Mapping[str, object] | None) -> MemoryOptions:
        return {"metadata": dict(metadata)} if metadata else {}


def open_service(uri: str, **_: Any) -> AgentMemoryService:
    """Open the service of a URI: `agentmemory://HOST:PORT/AGENT`, or `agentmemory+https://` for TLS.

    Without AGENT each app has the agent of its name. `?top_k=5` limits searches. The environment variable
    AGENTMEMORY_TOKEN has the token, or AGENTMEMORY_TOKEN_FILE names a file with it, which is read before each request.

    Raises:
        ValueError: If the URI is of another form, or contains a password.
    """
    parts, options = urlsplit(uri), parse_qs(urlsplit(uri).query)
    if parts.scheme not in SCHEMES or not parts.hostname or "@" in parts.netloc or set(options) - {"top_k"}:
        raise ValueError(
            f"not of the form agentmemory://HOST:PORT/AGENT?top_k=10, without a password: scheme {parts.scheme!r}"
        )
    client = Client(f"{SCHEMES[parts.scheme]}://{parts.netloc}", token=_token())
    top_k = int(options["top_k"][0]) if options else 10
    return AgentMemoryService(client, agent=parts.path.strip("/") or None, top_k=top_k)


def _token() -> Token:
    if path := os.environ.get("AGENTMEMORY_TOKEN_FILE"):
        return lambda: Path(path).read_text().strip()
    return os.environ.get("AGENTMEMORY_TOKEN")


def register() -> None:
    """Make `--memory_service_uri agentmemory://…` known to ADK. Call it in `services.py` of the agents' folder."""
    for scheme in SCHEMES:
        get_service_registry().register_memory_service(scheme, open_service)


@contextmanager
def _unknown_ids_ignored() -> Iterator[None]:
    """Ignore that there is no such memory (404), or that there can be none of such an id (422)."""
    try:
        yield
    except ApiError as error:
        if error.status not in (404, 422):
            raise


def _conversation_type(agent: Agent) -> str:
    """Return the type that the agent uses for turns of conversations."""
    names = [type_.name for type_ in agent.info().types]
    return next((name for name in CONVERSATION_TYPES if name in names), names[0])


def _key(app_name: str, user_id: str, session_id: str | None, event: Event) -> str:
    """Return the idempotency key of an event."""
    parts = json.dumps([app_name, user_id, session_id or "", event.id])
    return f"google-adk-{hashlib.sha256(parts.encode()).hexdigest()}"


def _store_event(user: User, options: MemoryOptions, keyed: tuple[str, Event]) -> str:
    """Store an event, unless it has no text; return its key."""
    key, event = keyed
    text = clean_text(_text(event.content), MAX_TURN_CHARS)
    if not text:
        return key
    role = "user" if event.author == "user" else "assistant"
    created_at = datetime.fromtimestamp(event.timestamp, UTC)
    given: MemoryOptions = {"role": role, "source": "conversation", "created_at": created_at, **options}
    if event.author:
        given["speaker"] = event.author
    try:
        user.add(text, idempotency_key=key, **given)
    except ApiError as error:
        if error.status == 422:
            logger.error("event %s is not stored: %s", event.id, error)
        # 409: the event is stored already, with another text.
        elif error.status != 409:
            raise
    return key


def _store_entry(user: User, entry: MemoryEntry, options: MemoryOptions) -> None:
    text = _text(entry.content)
    if not is_visible(text):
        return
    if entry.author:
        options["speaker"] = entry.author
    if entry.timestamp:
        options["created_at"] = entry.timestamp
    user.add(text, **options)


def _entry(memory: Found) -> MemoryEntry:
    role = "user" if memory.role == "user" else "model"
    return MemoryEntry(
        id=memory.key if memory.key and memory.namespace == NAMESPACE else memory.id,
        content=types.Content(role=role, parts=[types.Part(text=memory.content)]),
        author=memory.speaker or memory.role,
        timestamp=memory.created_at.isoformat(),
        custom_metadata={**memory.metadata, "score": memory.score, "type": memory.type},
    )


def _text(content: types.Content | None) -> str:
    return "\n".join(part.text for part in (content.parts if content else None) or () if part.text and not part.thought)
