"""The client for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

import httpx

from agentmemory_operator.client import exchange, forget_calls, item_calls, transfer_calls
from agentmemory_operator.client.exchange import (
    RETRIED,
    Call,
    ChangeOptions,
    Connection,
    KeepOptions,
    ListOptions,
    MemoryOptions,
    NewMemory,
    SearchOptions,
    Token,
    TreeOptions,
)
from agentmemory_operator.client.forget_calls import ForgetOptions, ReceiptOptions
from agentmemory_operator.client.item_calls import ItemOptions
from agentmemory_operator.client.problems import ApiError, problem_of
from agentmemory_operator.client.values import (
    AgentSummary,
    Imported,
    ItemStored,
    Kept,
    Memory,
    NamespaceSize,
    Page,
    Preview,
    Receipt,
    SearchResult,
    Stats,
    Stored,
    Tree,
)

T = TypeVar("T")


class AsyncMemoryClient:
    """The retrieval API of one address; an async context manager. Every call raises ApiError or ApiUnreachable.

    Args:
        url: where the API answers.
        token: what it demands of callers, if it does; a callable is asked anew for each attempt.
        retries: attempts after the first where the API is busy or away; writes are repeated under one idempotency key.
        wait_max_s: the longest wait between two attempts.
    """

    def __init__(
        self,
        url: str = exchange.DEFAULT_URL,
        *,
        token: Token = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        wait_max_s: float = 30.0,
    ) -> None:
        self._connection = Connection(url=url, token=token, timeout_s=timeout_s, retries=retries, wait_max_s=wait_max_s)
        self._http = httpx.AsyncClient(**self._connection.client_options)

    async def __aenter__(self) -> "AsyncMemoryClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def agents(self) -> tuple[AgentSummary, ...]:
        """Return the agents that the caller may see."""
        return await self.run(exchange.list_agents())

    async def agent(self, agent: str) -> dict[str, Any]:
        """Return an agent's settings in force."""
        return await self.run(exchange.get_agent(agent))

    async def remember(
        self,
        agent: str,
        user_id: str,
        content: str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[MemoryOptions],
    ) -> Stored:
        """Store a memory, durably."""
        return await self.run(exchange.remember(agent, user_id, content, key=idempotency_key, options=options))

    async def remember_many(
        self, agent: str, memories: Sequence[NewMemory], *, idempotency_key: str | None = None
    ) -> list[Stored | ApiError]:
        """Store up to 1,000 memories; one result an item, in order, and an ApiError for each that was refused."""
        return await self.run(exchange.remember_many(agent, memories, key=idempotency_key))

    async def search(
        self, agent: str, user_id: str, query: str | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the memories that rank best for a query, or for the option `vector`."""
        return await self.run(exchange.search(agent, user_id, query, options=options))

    async def memories(self, agent: str, user_id: str, **options: Unpack[ListOptions]) -> AsyncIterator[Memory]:
        """Return a user's memories, newest first; pages are read as they are needed."""
        async for memory in self._pages(exchange.list_memories(agent, user_id, options=options)):
            yield memory

    async def page(self, agent: str, user_id: str, **options: Unpack[ListOptions]) -> Page:
        """Return one page of a user's memories, newest first."""
        return await self.run(exchange.list_memories(agent, user_id, options=options))

    async def get(self, agent: str, user_id: str, memory_id: str) -> Memory:
        """Return a memory."""
        return await self.run(exchange.get_memory(agent, user_id, memory_id))

    async def change(self, agent: str, user_id: str, memory_id: str, **options: Unpack[ChangeOptions]) -> Memory:
        """Change a memory in place; return it as it is now."""
        return await self.run(exchange.change_memory(agent, user_id, memory_id, options=options))

    async def stats(self, agent: str, user_id: str | None = None) -> Stats:
        """Count the memories of a user, or of the whole agent."""
        return await self.run(exchange.read_stats(agent, user_id))

    async def history(self, agent: str, user_id: str, memory_id: str) -> tuple[Memory, ...]:
        """Return the versions of a memory, oldest first, whichever of them is named."""
        return await self.run(exchange.read_history(agent, user_id, memory_id))

    async def children(self, agent: str, user_id: str, memory_id: str) -> AsyncIterator[Memory]:
        """Return the memories right below one, newest first; pages are read as they are needed."""
        async for memory in self._pages(exchange.list_children(agent, user_id, memory_id)):
            yield memory

    async def tree(self, agent: str, user_id: str, memory_id: str, **options: Unpack[TreeOptions]) -> Tree:
        """Return a memory with all that is below it."""
        return await self.run(exchange.read_tree_of(agent, user_id, memory_id, options=options))

    async def working(self, agent: str, user_id: str, session_id: str) -> tuple[Memory, ...]:
        """Return what a session has in mind, most recently used first."""
        return await self.run(exchange.read_working(agent, user_id, session_id))

    async def keep(
        self, agent: str, user_id: str, session_id: str, content: str, **options: Unpack[KeepOptions]
    ) -> Kept:
        """Keep something in mind for a session; where there is no room, the least recently used goes."""
        return await self.run(exchange.keep_in_mind(agent, user_id, session_id, {"content": content, **options}))

    async def end(self, agent: str, user_id: str, session_id: str) -> dict[str, int]:
        """End a session; return how many memories were dropped, by type."""
        return await self.run(exchange.end_session(agent, user_id, session_id))

    async def delete(self, agent: str, user_id: str, memory_id: str) -> None:
        """Delete a memory; the one that it replaced answers again."""
        await self.run(exchange.delete_memory(agent, user_id, memory_id))

    async def put_item(
        self,
        agent: str,
        namespace: Sequence[str],
        content: str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ItemOptions],
    ) -> ItemStored:
        """Store an item, durably, in the place of what lies under its key."""
        call = item_calls.put_item(agent, namespace, content, idempotency_key=idempotency_key, options=options)
        return await self.run(call)

    async def get_item(self, agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> Memory:
        """Return an item."""
        return await self.run(item_calls.get_item(agent, namespace, key, user_id=user_id))

    async def delete_item(self, agent: str, namespace: Sequence[str], key: str, *, user_id: str | None = None) -> None:
        """Delete an item."""
        await self.run(item_calls.delete_item(agent, namespace, key, user_id=user_id))

    async def keys(self, agent: str, namespace: Sequence[str], *, user_id: str | None = None) -> AsyncIterator[str]:
        """Return the keys of a namespace; pages are read as they are needed."""
        call = item_calls.list_keys(agent, namespace, user_id=user_id)
        page = await self.run(call)
        for key in page.results:
            yield key
        while page.next_cursor is not None:
            page = await self.run(item_calls.next_keys(call, page.next_cursor))
            for key in page.results:
                yield key

    async def namespaces(
        self, agent: str, prefix: Sequence[str] = (), *, user_id: str | None = None
    ) -> tuple[NamespaceSize, ...]:
        """Return a user's namespaces that have items, by name."""
        return await self.run(item_calls.list_namespaces(agent, prefix, user_id=user_id))

    async def forget(
        self, agent: str, user_id: str, *, idempotency_key: str | None = None, **options: Unpack[ForgetOptions]
    ) -> Receipt:
        """Erase a user's memories that the options choose, and without any the user."""
        return await self.run(forget_calls.forget(agent, user_id, key=idempotency_key, options=options))

    async def would_forget(self, agent: str, user_id: str, **options: Unpack[ForgetOptions]) -> Preview:
        """Return what `forget` would erase now."""
        return await self.run(forget_calls.would_forget(agent, user_id, options=options))

    async def receipts(self, agent: str, **options: Unpack[ReceiptOptions]) -> AsyncIterator[Receipt]:
        """Return what was erased, newest first; pages are read as they are needed."""
        call = forget_calls.list_receipts(agent, options=options)
        page = await self.run(call)
        for receipt in page.results:
            yield receipt
        while page.next_before is not None:
            page = await self.run(forget_calls.next_receipts(call, page.next_before))
            for receipt in page.results:
                yield receipt

    async def export(self, agent: str, user_id: str, *, vectors: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Return every memory of a user as a line of an export has it, as they come; docs/transfer.md."""
        lines, connection = transfer_calls.Lines(), self._connection
        sent = transfer_calls.export_request(agent, user_id, vectors=vectors)
        try:
            async with self._http.stream(**sent, headers=connection.authorization) as answer:
                if not answer.is_success:
                    raise problem_of(answer.status_code, await answer.aread())
                async for chunk in answer.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield line
        except httpx.TransportError as error:
            raise exchange.unreachable(connection, error) from error
        lines.end()

    async def import_memories(
        self, agent: str, user_id: str, lines: Iterable[bytes], *, include_erased: bool = False
    ) -> Imported:
        """Take in lines of an export, sent as they come; where it breaks off, the same lines again are safe."""
        sent = transfer_calls.import_request(agent, user_id, include_erased=include_erased)
        sent["headers"] |= self._connection.authorization
        try:
            answer = await self._http.request(**sent, content=_streamed(lines))
        except httpx.TransportError as error:
            raise exchange.unreachable(self._connection, error) from error
        if not answer.is_success:
            raise problem_of(answer.status_code, answer.content)
        return transfer_calls.read_imported(answer.json())

    async def run(self, call: Call[T]) -> T:
        """Carry out a call of `exchange`, `item_calls` or `forget_calls`."""
        connection = self._connection
        for attempt in range(connection.retries + 1):
            is_last = attempt == connection.retries
            try:
                answer = await self._http.request(**call.request(connection))
            except httpx.TransportError as error:
                if is_last:
                    raise exchange.unreachable(connection, error) from error
                retry_after = None
            else:
                if is_last or answer.status_code not in RETRIED:
                    return call.settle(answer, is_repeated=attempt > 0)
                retry_after = answer.headers.get("Retry-After")
            await asyncio.sleep(connection.wait_s(attempt, retry_after))
        raise AssertionError("the last attempt returns or raises")

    async def _pages(self, call: Call[Page]) -> AsyncIterator[Memory]:
        page = await self.run(call)
        for memory in page.results:
            yield memory
        while page.next_cursor is not None:
            page = await self.run(exchange.next_page(call, page.next_cursor))
            for memory in page.results:
                yield memory


async def _streamed(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
