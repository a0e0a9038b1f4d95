"""Memory store of Strands Agents. It needs the extra `strands`.

Errors of calls are raised: the `MemoryManager` of Strands logs those of searches and of background writes, repeats the
writes, and reports those of its tools to the model. Only the check at the start of an agent logs an outage itself.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from strands.memory import AddMessagesContext, ExtractionConfig, MemoryEntry, MemoryStore, SearchOptions
from strands.types.content import Message

from agentmemory_client.adapters.common import find_memories, outages_logged, split_turns, store_batch
from agentmemory_client.exchange import new_idempotency_key
from agentmemory_client.handles import User
from agentmemory_client.memory_calls import ConversationOptions, MemoryOptions
from agentmemory_client.memory_calls import Message as Turn

DEFAULT_LIMIT, MAX_UNCONFIRMED = 3, 16
Request: TypeAlias = tuple[list[Turn], str]
"""Turns of a request, and its idempotency key."""


class AgentMemoryStore(MemoryStore):
    """Memories of one user as a store of a `MemoryManager`.

    Args:
        user: User of a blocking `Client`.
        name, description: Shown to the model by the manager's tools.
        max_search_results: Number of results of a search that states none; None for the manager's default.
        writable: False for a store that agents only search.
        extraction: True to store the conversation every 5 turns, or Strands' configuration. If the agent has a model
            of its own, the API distils memories from what is stored.
        session_id: Session of the stored conversations and memories.
    """

    def __init__(  # noqa: PLR0913 # each is an option
        self,
        user: User,
        *,
        name: str = "agentmemory",
        description: str | None = "Long-term memory of the user.",
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: ExtractionConfig | bool = False,
        session_id: str | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.max_search_results = max_search_results
        self.writable = writable
        self.extraction = extraction
        self._user = user
        self._session: ConversationOptions = {"session_id": session_id} if session_id else {}
        self._lock = threading.Lock()
        # Requests of the latest failed calls: several agents may share a store.
        self._unconfirmed = deque[list[Request]](maxlen=MAX_UNCONFIRMED)

    async def initialize(self) -> None:
        """Check the address, the token and the agent before the first run. An outage is logged only."""
        with outages_logged(f"the memory store {self.name!r} was not checked"):
            await asyncio.to_thread(self._user.page, limit=1)

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """Return the memories that match best."""
        limit = DEFAULT_LIMIT if self.max_search_results is None else self.max_search_results
        if options is not None and "max_search_results" in options:
            limit = options["max_search_results"]
        found = await asyncio.to_thread(find_memories, self._user, query, limit=limit)
        return [
            MemoryEntry(
                content=memory.content or "",
                metadata={
                    "id": memory.id,
                    "score": memory.score,
                    "type": memory.type,
                    "created_at": memory.created_at.isoformat(),
                    **memory.metadata,
                },
            )
            for memory in found
        ]

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> str:
        """Store a memory and return its id."""
        options: MemoryOptions = {"metadata": metadata} if metadata else {}
        if "session_id" in self._session:
            options["session_id"] = self._session["session_id"]
        stored = await asyncio.to_thread(self._user.add, content, **options)
        return stored.id

    async def add_messages(self, messages: list[Message], context: AddMessagesContext | None = None) -> None:
        """Store the texts of a conversation. Messages that are sent again after a failure are stored once."""
        await asyncio.to_thread(self._store, list(_turns(messages)))

    def _store(self, turns: list[Turn]) -> None:
        with self._lock:
            requests = self._plan(turns)
            # Strands sends all messages of a failed call again, followed by newer ones. A request that took effect,
            # although its response was lost, is repeated with the same key and the same turns.
            self._unconfirmed.append(requests)
            for batch, key in requests:
                store_batch(self._user, batch, idempotency_key=key, **self._session)
            self._unconfirmed.remove(requests)

    def _plan(self, turns: list[Turn]) -> list[Request]:
        """Return the requests for the turns, each with its key: first those of a failed call that they begin with."""
        pending, repeated = [turn for batch in split_turns(turns) for turn in batch], list[Request]()
        for requests in self._unconfirmed:
            failed = [turn for batch, _ in requests for turn in batch]
            if pending[: len(failed)] == failed:
                self._unconfirmed.remove(requests)
                pending, repeated = pending[len(failed) :], requests
                break
        return [*repeated, *((batch, new_idempotency_key()) for batch in split_turns(pending))]


def _turns(messages: Iterable[Message]) -> Iterator[Turn]:
    for message in messages:
        text = "\n".join(block["text"] for block in message["content"] if "text" in block)
        yield {"role": message["role"], "content": text}
