"""Handles that bind an agent, and optionally one of its users, to the calls about them.

Client(url).agent("support-bot").user("ada").search("how does she pay?")
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import httpx

import agentmemory_client.agent_calls as agent_calls
import agentmemory_client.context_calls as context_calls
import agentmemory_client.entity_calls as entity_calls
import agentmemory_client.identity_calls as identity_calls
import agentmemory_client.item_calls as item_calls
import agentmemory_client.memory_calls as memory_calls
import agentmemory_client.state_calls as state_calls
from agentmemory_client.exchange import read_json, response_of
from agentmemory_client.memory_calls import SearchOptions
from agentmemory_client.methods import AsyncMethods, SyncMethods, agent_method, user_method
from agentmemory_client.problems import read_problem
from agentmemory_client.transfer_calls import ExportParser, export_request, import_request, read_imported
from agentmemory_client.values import Imported, SearchResult

if TYPE_CHECKING:
    from agentmemory_client.clients import AsyncClient, Client

MAX_CONCURRENT_SEARCHES = 8
"""Maximum number of concurrent searches of one `search_many`; low enough to leave API capacity for other callers."""


class AgentCalls:
    """Calls about an agent."""

    info = agent_method(agent_calls.info)
    state = agent_method(state_calls.state)
    changes = agent_method(agent_calls.changes)
    tools = agent_method(agent_calls.tools)
    add_many = agent_method(memory_calls.remember_many)
    stats = agent_method(memory_calls.stats)
    users = agent_method(identity_calls.users)
    mint_token = agent_method(identity_calls.mint_token)
    forget = agent_method(memory_calls.forget)
    forget_everything = agent_method(memory_calls.forget_everything)
    would_forget = agent_method(memory_calls.would_forget)
    would_forget_everything = agent_method(memory_calls.would_forget_everything)
    receipts = agent_method(memory_calls.receipts)
    put_item = agent_method(item_calls.put_item)
    put_items = agent_method(item_calls.put_items)
    get_item = agent_method(item_calls.get_item)
    item_versions = agent_method(item_calls.item_versions)
    delete_item = agent_method(item_calls.delete_item)
    keys = agent_method(item_calls.keys)
    namespaces = agent_method(item_calls.namespaces)


class UserCalls:
    """Calls about one user's memories. The user may also be a shared scope, for example `global`."""

    add = user_method(memory_calls.remember)
    converse = user_method(memory_calls.converse)
    search = user_method(memory_calls.search)
    search_fields = user_method(memory_calls.search_fields)
    context = user_method(context_calls.context)
    memories = user_method(memory_calls.memories)
    page = user_method(memory_calls.page)
    get = user_method(memory_calls.get)
    change = user_method(memory_calls.change)
    delete = user_method(memory_calls.delete)
    history = user_method(memory_calls.history)
    children = user_method(memory_calls.children)
    tree = user_method(memory_calls.tree)
    stats = user_method(memory_calls.stats)
    working = user_method(memory_calls.working)
    keep = user_method(memory_calls.keep)
    end = user_method(memory_calls.end)
    relate = user_method(entity_calls.relate)
    entities = user_method(entity_calls.entities)
    entity = user_method(entity_calls.entity)
    rename_entity = user_method(entity_calls.rename_entity)
    merge_entity = user_method(entity_calls.merge_entity)
    details = user_method(identity_calls.user_details)
    set_name = user_method(identity_calls.name_user)
    forget = user_method(memory_calls.forget)
    forget_everything = user_method(memory_calls.forget_everything)
    would_forget = user_method(memory_calls.would_forget)
    would_forget_everything = user_method(memory_calls.would_forget_everything)


class Agent(AgentCalls, SyncMethods):
    """Blocking calls about an agent."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self._name = client, name
        self._bound = (name,)

    def user(self, user_id: str) -> "User":
        """Return a handle for the calls about a user of the agent, without sending a request."""
        return User(self._client, self._name, user_id)


class User(UserCalls, SyncMethods):
    """Blocking calls about a user."""

    def __init__(self, client: "Client", agent: str, user_id: str) -> None:
        self._client = client
        self._bound = (agent, user_id)

    def search_many(self, queries: Sequence[str], **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """Search for each query, 8 at a time; return the results in the order of the queries.

        If searches fail, the error of one of them is raised; the others may be sent or not.
        """
        with ThreadPoolExecutor(MAX_CONCURRENT_SEARCHES) as threads:
            return list(threads.map(partial(self.search, **options), queries))

    def export(self, *, vectors: bool = False, plain: bool = False) -> Iterator[dict[str, Any]]:
        """Yield every memory of the user as one document of an export, as it arrives. See docs/transfer.md.

        Args:
            vectors: True to include vectors.
            plain: True to export encrypted memories as plain text, which requires the verb `admin`.

        Raises:
            ApiError: If the API refuses the export, or breaks it off with an error.
            ApiUnreachable: If the export ends before its last line. Export again.
        """
        client, lines = self._client, ExportParser()

        def send() -> httpx.Response:
            request = export_request(client.connection, *self._bound, vectors=vectors, plain=plain)
            return client.http.send(client.http.build_request(**request), stream=True)

        outcome, _ = client.repeat(send)
        with client.connection.transport_errors(), closing(response_of(outcome)) as answer:
            if not answer.is_success:
                raise read_problem(answer.status_code, answer.read())
            for chunk in answer.iter_bytes():
                yield from lines.feed(chunk)
        lines.check_complete()

    def import_memories(self, lines: Iterable[bytes], *, include_erased: bool = False) -> Imported:
        """Import the lines of an export; they are streamed. After a failure, importing the same lines again is safe.

        Args:
            lines: Lines of an export. A list, or anything else that can be iterated twice, is retried; an iterator is
                not.
            include_erased: True to import memories that `forget` erased here; otherwise the API refuses them (409).
        """
        client = self._client

        def send() -> httpx.Response:
            request = import_request(client.connection, *self._bound, include_erased=include_erased)
            return client.http.request(**request, content=iter(lines))

        outcome, _ = client.repeat(send, times=0 if isinstance(lines, Iterator) else None)
        with client.connection.transport_errors():
            return read_imported(read_json(response_of(outcome)))


class AsyncAgent(AgentCalls, AsyncMethods):
    """Calls about an agent, for asyncio."""

    def __init__(self, client: "AsyncClient", name: str) -> None:
        self._client, self._name = client, name
        self._bound = (name,)

    def user(self, user_id: str) -> "AsyncUser":
        """Return a handle for the calls about a user of the agent, without sending a request."""
        return AsyncUser(self._client, self._name, user_id)


class AsyncUser(UserCalls, AsyncMethods):
    """Calls about a user, for asyncio."""

    def __init__(self, client: "AsyncClient", agent: str, user_id: str) -> None:
        self._client = client
        self._bound = (agent, user_id)

    async def search_many(self, queries: Sequence[str], **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """Search for each query, 8 at a time; return the results in the order of the queries.

        If searches fail, the error of one of them is raised; the others may be sent or not.
        """
        slots = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)

        async def search_one(query: str) -> SearchResult:
            async with slots:
                return await self.search(query, **options)

        return await asyncio.gather(*map(search_one, queries))

    async def export(self, *, vectors: bool = False, plain: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Yield every memory of the user as one document of an export, as it arrives. See docs/transfer.md.

        Args:
            vectors: True to include vectors.
            plain: True to export encrypted memories as plain text, which requires the verb `admin`.

        Raises:
            ApiError: If the API refuses the export, or breaks it off with an error.
            ApiUnreachable: If the export ends before its last line. Export again.
        """
        client, lines = self._client, ExportParser()

        async def send() -> httpx.Response:
            request = export_request(client.connection, *self._bound, vectors=vectors, plain=plain)
            return await client.http.send(client.http.build_request(**request), stream=True)

        outcome, _ = await client.repeat(send)
        with client.connection.transport_errors():
            async with aclosing(response_of(outcome)) as answer:
                if not answer.is_success:
                    raise read_problem(answer.status_code, await answer.aread())
                async for chunk in answer.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield line
        lines.check_complete()

    async def import_memories(self, lines: Iterable[bytes], *, include_erased: bool = False) -> Imported:
        """Import the lines of an export; they are streamed. After a failure, importing the same lines again is safe.

        Args:
            lines: Lines of an export. A list, or anything else that can be iterated twice, is retried; an iterator is
                not.
            include_erased: True to import memories that `forget` erased here; otherwise the API refuses them (409).
        """
        client = self._client

        async def send() -> httpx.Response:
            request = import_request(client.connection, *self._bound, include_erased=include_erased)
            return await client.http.request(**request, content=_streamed(lines))

        outcome, _ = await client.repeat(send, times=0 if isinstance(lines, Iterator) else None)
        with client.connection.transport_errors():
            return read_imported(read_json(response_of(outcome)))


async def _streamed(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
