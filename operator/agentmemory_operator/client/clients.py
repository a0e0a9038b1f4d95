"""The two clients. What both can ask is said once, in `ApiClient`; they differ in how a call is sent and waited for."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import cache, wraps
from inspect import Parameter, signature
from types import MethodType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, get_args, get_origin, overload

import httpx

import agentmemory_operator.client.entity_calls as entity_calls
import agentmemory_operator.client.identity_calls as identity_calls
import agentmemory_operator.client.item_calls as item_calls
import agentmemory_operator.client.memory_calls as memory_calls
from agentmemory_operator.client.exchange import DEFAULT_URL, Call, Connection, Listing, Outcome, Token, json_in
from agentmemory_operator.client.problems import problem_of
from agentmemory_operator.client.transfer_calls import Lines, export_request, import_request, read_imported
from agentmemory_operator.client.values import Imported

T = TypeVar("T")
P = ParamSpec("P")
Asked = TypeVar("Asked", covariant=True)
Http = TypeVar("Http")


class Method(Generic[P, Asked]):
    """A function that makes a call or a listing, as a method of both clients: with its parameters and its docstring.

    A call's method returns the result, a listing's an iterator of the entries.
    """

    def __init__(self, ask: Callable[P, Asked]) -> None:
        self._ask = ask

    @overload
    def __get__(self: "Method[P, Call[T]]", client: "MemoryClient", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self: "Method[P, Listing[T]]", client: "MemoryClient", owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self: "Method[P, Call[T]]", client: "AsyncMemoryClient", owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(
        self: "Method[P, Listing[T]]", client: "AsyncMemoryClient", owner: type
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, client: "ApiClient[Any] | None", owner: "type[ApiClient[Any]]") -> Callable[..., Any]:
        method = _method_of(owner, self._ask)  # type: ignore[arg-type] # a class is hashable
        return method if client is None else MethodType(method, client)


@cache
def _method_of(owner: "type[ApiClient[Any]]", ask: Callable[..., Any]) -> Callable[..., Any]:
    asked = signature(ask)
    (answer,) = get_args(asked.return_annotation)
    if get_origin(asked.return_annotation) is Listing:
        method, answer = owner._listed(ask), owner._iterator[answer]
    else:
        method = owner._called(ask)
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *asked.parameters.values()]
    shown: Any = wraps(ask)(method)
    shown.__signature__ = asked.replace(parameters=parameters, return_annotation=answer)
    return shown  # type: ignore[no-any-return] # a function, with more attributes than its type has


class ApiClient(Generic[Http]):
    """The retrieval API of one address, but for how a client sends and waits."""

    _open_http: type[Http]
    _iterator: Any

    agents = Method(memory_calls.agents)
    agent = Method(memory_calls.agent)
    remember = Method(memory_calls.remember)
    remember_many = Method(memory_calls.remember_many)
    search = Method(memory_calls.search)
    search_fields = Method(memory_calls.search_fields)
    memories = Method(memory_calls.memories)
    page = Method(memory_calls.page)
    get = Method(memory_calls.get)
    change = Method(memory_calls.change)
    stats = Method(memory_calls.stats)
    history = Method(memory_calls.history)
    children = Method(memory_calls.children)
    tree = Method(memory_calls.tree)
    working = Method(memory_calls.working)
    keep = Method(memory_calls.keep)
    end = Method(memory_calls.end)
    delete = Method(memory_calls.delete)
    put_item = Method(item_calls.put_item)
    get_item = Method(item_calls.get_item)
    item_versions = Method(item_calls.item_versions)
    delete_item = Method(item_calls.delete_item)
    keys = Method(item_calls.keys)
    namespaces = Method(item_calls.namespaces)
    relate = Method(entity_calls.relate)
    entities = Method(entity_calls.entities)
    entity = Method(entity_calls.entity)
    rename_entity = Method(entity_calls.rename_entity)
    merge_entity = Method(entity_calls.merge_entity)
    forget = Method(memory_calls.forget)
    would_forget = Method(memory_calls.would_forget)
    receipts = Method(memory_calls.receipts)
    mint_token = Method(identity_calls.mint_token)
    users = Method(identity_calls.users)

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: Token = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        wait_max_s: float = 30.0,
    ) -> None:
        """Open no connection yet.

        Args:
            url: where the API answers.
            token: what it demands of callers, if it does; a callable is asked for each attempt.
            timeout_s: between two bytes of an answer, and for a connection.
            retries: attempts after the first where the API is busy or away; writes are repeated under one key.
            wait_max_s: the longest wait between two attempts.
        """
        self._connection = Connection(url=url, token=token, timeout_s=timeout_s, retries=retries, wait_max_s=wait_max_s)
        self._http = self._open_http(**self._connection.client_options)

    @classmethod
    def _called(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        raise NotImplementedError

    @classmethod
    def _listed(cls, ask: Callable[..., Listing[Any]]) -> Callable[..., Any]:
        return lambda client, *args, **options: client._entries(ask(*args, **options))


class MemoryClient(ApiClient[httpx.Client]):
    """The client that waits; a context manager. Every call raises ApiError or ApiUnreachable."""

    _open_http = httpx.Client
    _iterator = Iterator

    def __enter__(self) -> "MemoryClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def export(
        self, agent: str, user_id: str, *, vectors: bool = False, plain: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Every memory of a user as a line of an export has it, as they come; docs/transfer.md."""
        lines, sent = Lines(), export_request(self._connection, agent, user_id, vectors=vectors, plain=plain)
        with self._connection.reaching(), self._http.stream(**sent) as answer:
            if not answer.is_success:
                raise problem_of(answer.status_code, answer.read())
            for chunk in answer.iter_bytes():
                yield from lines.feed(chunk)
        lines.end()

    def import_memories(
        self, agent: str, user_id: str, lines: Iterable[bytes], *, include_erased: bool = False
    ) -> Imported:
        """Take in lines of an export, sent as they come; where it breaks off, the same lines again are safe."""
        sent = import_request(self._connection, agent, user_id, include_erased=include_erased)
        with self._connection.reaching():
            return read_imported(json_in(self._http.request(**sent, content=lines)))

    def run(self, call: Call[T]) -> T:
        """Carry out a call, as often as its answers ask for it."""
        attempt = 0
        while (pause_s := self._connection.pause_s(attempt, outcome := self._try(call))) is not None:
            time.sleep(pause_s)
            attempt += 1
        return call.settle(self._connection, outcome, is_repeated=attempt > 0)

    def _try(self, call: Call[Any]) -> Outcome:
        try:
            answer: Outcome = self._http.request(**call.request(self._connection))
        except httpx.TransportError as error:
            return error
        return answer

    @classmethod
    def _called(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        return lambda client, *args, **options: client.run(ask(*args, **options))

    def _entries(self, listing: Listing[T]) -> Iterator[T]:
        call: Call[Any] | None = listing.first
        while call:
            page = self.run(call)
            yield from page.results
            call = listing.after(page)


class AsyncMemoryClient(ApiClient[httpx.AsyncClient]):
    """The client for asyncio; an async context manager. Every call raises ApiError or ApiUnreachable."""

    _open_http = httpx.AsyncClient
    _iterator = AsyncIterator

    async def __aenter__(self) -> "AsyncMemoryClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def export(
        self, agent: str, user_id: str, *, vectors: bool = False, plain: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Every memory of a user as a line of an export has it, as they come; docs/transfer.md."""
        lines, sent = Lines(), export_request(self._connection, agent, user_id, vectors=vectors, plain=plain)
        with self._connection.reaching():
            async with self._http.stream(**sent) as answer:
                if not answer.is_success:
                    raise problem_of(answer.status_code, await answer.aread())
                async for chunk in answer.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield line
        lines.end()

    async def import_memories(
        self, agent: str, user_id: str, lines: Iterable[bytes], *, include_erased: bool = False
    ) -> Imported:
        """Take in lines of an export, sent as they come; where it breaks off, the same lines again are safe."""
        sent = import_request(self._connection, agent, user_id, include_erased=include_erased)
        with self._connection.reaching():
            return read_imported(json_in(await self._http.request(**sent, content=_streamed(lines))))

    async def run(self, call: Call[T]) -> T:
        """Carry out a call, as often as its answers ask for it."""
        attempt = 0
        while (pause_s := self._connection.pause_s(attempt, outcome := await self._try(call))) is not None:
            await asyncio.sleep(pause_s)
            attempt += 1
        return call.settle(self._connection, outcome, is_repeated=attempt > 0)

    async def _try(self, call: Call[Any]) -> Outcome:
        try:
            answer: Outcome = await self._http.request(**call.request(self._connection))
        except httpx.TransportError as error:
            return error
        return answer

    @classmethod
    def _called(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        async def method(client: AsyncMemoryClient, *args: Any, **options: Any) -> Any:
            return await client.run(ask(*args, **options))

        return method

    async def _entries(self, listing: Listing[T]) -> AsyncIterator[T]:
        call: Call[Any] | None = listing.first
        while call:
            page = await self.run(call)
            for entry in page.results:
                yield entry
            call = listing.after(page)


async def _streamed(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
