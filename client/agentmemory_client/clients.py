"""The two clients. What both can ask is in `handles.py`; they differ in how a call is sent and waited for.

At most `in_flight` calls are sent at the same time; the others wait in the client, which costs none of their time-outs
and attempts. A call that pauses before another attempt makes room for others meanwhile. Not so a call that was refused
with 429, because the client asks too much at once: such calls are repeated one after the other, and no other call is
sent before they are done. So a client comes down to what the API grants it.

An export or import is not counted: the program works while it is under way, and may make calls for it to go on.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

import agentmemory_client.memory_calls as memory_calls
from agentmemory_client.exchange import DEFAULT_URL, Call, Connection, Listing, Outcome, Token, answer_in, is_refused
from agentmemory_client.handles import Agent, AsyncAgent
from agentmemory_client.methods import Awaited, Waiting, of_client

T = TypeVar("T")
Http = TypeVar("Http")
NO_TURN: nullcontext[None] = nullcontext()


class ApiClient(Generic[Http]):
    """The retrieval API of one address, but for how a client sends and waits.

    Attributes:
        api_version: of the API that answered last, for example "0.1.0"; None before, and where it does not say so.
    """

    _open_http: type[Http]

    agents = of_client(memory_calls.agents)

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: Token = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        wait_max_s: float = 30.0,
        in_flight: int = 64,
    ) -> None:
        """Open no connection yet.

        Args:
            url: where the API answers.
            token: what it demands of callers, if it does; a callable is asked for each attempt.
            timeout_s: between two bytes of an answer, and for a connection.
            retries: attempts after the first where the API is busy or away; writes are repeated under one key.
            wait_max_s: the longest wait between two attempts.
            in_flight: calls that are sent at the same time; further ones wait in the client, however many they are.

        Raises:
            ValueError: an argument is no such value. A token with a line break or non-ASCII characters is none.
        """
        self.connection = Connection(
            url=url, token=token, timeout_s=timeout_s, retries=retries, wait_max_s=wait_max_s, in_flight=in_flight
        )
        self.http = self._open_http(**self.connection.client_options)
        self.api_version: str | None = None
        self._open_gates()

    def _open_gates(self) -> None:
        """Make what calls wait for: their turn, and that none is left that was refused."""
        raise NotImplementedError

    def _noted(self, answer: httpx.Response) -> httpx.Response:
        self.api_version = answer.headers.get("X-AgentMemory-Version", self.api_version)
        return answer


class Client(ApiClient[httpx.Client], Waiting):
    """The client that waits; a context manager. Every call raises ApiError or ApiUnreachable."""

    _open_http = httpx.Client

    def _open_gates(self) -> None:
        self._turns = threading.Semaphore(self.connection.in_flight)
        # An import may read its lines from a call of the same client.
        self._refused = threading.RLock()

    @property
    def _client(self) -> "Client":  # type: ignore[override] # what is read alone
        return self

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def agent(self, name: str) -> Agent:
        """Return the calls about an agent; nothing is asked yet."""
        return Agent(self, name)

    def run(self, call: Call[T]) -> T:
        """Carry out a call, as often as its answers ask for it."""
        outcome, repeats = self.repeat(partial(self._send, call), is_counted=True)
        return call.settle(self.connection, outcome, is_repeated=repeats > 0)

    def repeat(
        self,
        send: Callable[[], httpx.Response],
        *,
        times: int | None = None,
        is_counted: bool = False,
    ) -> tuple[Outcome, int]:
        """Send as often as the answers ask for it; return the last outcome, and how many attempts came before it.

        Args:
            times: attempts after the first; None is as many as the connection has.
            is_counted: an attempt waits until fewer than `in_flight` others are under way.
        """
        attempt = 0
        while True:
            with self._turns if is_counted else NO_TURN:
                with self._refused:
                    pass  # Whoever was refused before goes first.
                if is_refused(outcome := self._try(send)):
                    outcome, attempt = self._repeat_refused(send, outcome, attempt, times=times)
            pause_s = self.connection.pause_s(attempt, outcome, times=times)
            if pause_s is None:
                return outcome, attempt
            if isinstance(outcome, httpx.Response):
                outcome.close()
            time.sleep(pause_s)
            attempt += 1

    def _repeat_refused(
        self, send: Callable[[], httpx.Response], outcome: Outcome, attempt: int, *, times: int | None
    ) -> tuple[Outcome, int]:
        since_s = time.monotonic()
        with self._refused:
            while (
                is_refused(outcome) and (wait_s := self.connection.pause_s(attempt, outcome, times=times)) is not None
            ):
                answer_in(outcome).close()
                time.sleep(max(since_s + wait_s - time.monotonic(), 0.0))
                outcome, attempt, since_s = self._try(send), attempt + 1, time.monotonic()
        return outcome, attempt

    def entries(self, listing: Listing[T]) -> Iterator[T]:
        """Read a listing, page after page, as its entries are asked for."""
        call: Call[Any] | None = listing.first
        while call:
            page = self.run(call)
            yield from page.results
            call = listing.after(page)

    def _send(self, call: Call[Any]) -> httpx.Response:
        return self.http.request(**call.request(self.connection))

    def _try(self, send: Callable[[], httpx.Response]) -> Outcome:
        try:
            return self._noted(send())
        except httpx.TransportError as error:
            return error


class AsyncClient(ApiClient[httpx.AsyncClient], Awaited):
    """The client for asyncio; an async context manager. Every call raises ApiError or ApiUnreachable."""

    _open_http = httpx.AsyncClient

    def _open_gates(self) -> None:
        self._turns = asyncio.Semaphore(self.connection.in_flight)
        self._refused = asyncio.Lock()

    @property
    def _client(self) -> "AsyncClient":  # type: ignore[override] # what is read alone
        return self

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    def agent(self, name: str) -> AsyncAgent:
        """Return the calls about an agent; nothing is asked yet."""
        return AsyncAgent(self, name)

    async def run(self, call: Call[T]) -> T:
        """Carry out a call, as often as its answers ask for it."""
        outcome, repeats = await self.repeat(partial(self._send, call), is_counted=True)
        return call.settle(self.connection, outcome, is_repeated=repeats > 0)

    async def repeat(
        self,
        send: Callable[[], Awaitable[httpx.Response]],
        *,
        times: int | None = None,
        is_counted: bool = False,
    ) -> tuple[Outcome, int]:
        """Send as often as the answers ask for it; return the last outcome, and how many attempts came before it.

        Args:
            times: attempts after the first; None is as many as the connection has.
            is_counted: an attempt waits until fewer than `in_flight` others are under way.
        """
        attempt = 0
        while True:
            async with self._turns if is_counted else NO_TURN:
                async with self._refused:
                    pass  # Whoever was refused before goes first.
                if is_refused(outcome := await self._try(send)):
                    outcome, attempt = await self._repeat_refused(send, outcome, attempt, times=times)
            pause_s = self.connection.pause_s(attempt, outcome, times=times)
            if pause_s is None:
                return outcome, attempt
            if isinstance(outcome, httpx.Response):
                await outcome.aclose()
            await asyncio.sleep(pause_s)
            attempt += 1

    async def _repeat_refused(
        self, send: Callable[[], Awaitable[httpx.Response]], outcome: Outcome, attempt: int, *, times: int | None
    ) -> tuple[Outcome, int]:
        since_s = time.monotonic()
        async with self._refused:
            while (
                is_refused(outcome) and (wait_s := self.connection.pause_s(attempt, outcome, times=times)) is not None
            ):
                await answer_in(outcome).aclose()
                await asyncio.sleep(max(since_s + wait_s - time.monotonic(), 0.0))
                outcome, attempt, since_s = await self._try(send), attempt + 1, time.monotonic()
        return outcome, attempt

    async def entries(self, listing: Listing[T]) -> AsyncIterator[T]:
        """Read a listing, page after page, as its entries are asked for."""
        call: Call[Any] | None = listing.first
        while call:
            page = await self.run(call)
            for entry in page.results:
                yield entry
            call = listing.after(page)

    async def _send(self, call: Call[Any]) -> httpx.Response:
        return await self.http.request(**call.request(self.connection))

    async def _try(self, send: Callable[[], Awaitable[httpx.Response]]) -> Outcome:
        try:
            return self._noted(await send())
        except httpx.TransportError as error:
            return error
