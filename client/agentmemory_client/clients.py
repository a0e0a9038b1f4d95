"""The two clients: `Client` blocks, `AsyncClient` is awaited. They have the same methods, defined in `handles.py`.

At most `in_flight` calls are sent at the same time. Further calls wait in the client; the wait uses up neither their
timeout nor their attempts. A call that pauses before another attempt gives its slot to other calls.

A call that was refused with 429 is different, because the client sends too much at once. Such calls keep their slot and
are repeated one at a time, and no other call is sent in the meantime. So the client slows down to the rate that the API
accepts.

An export or import takes no slot. It lasts as long as the program reads or writes lines, and the program may need other
calls to produce them.
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
from agentmemory_client.exchange import (
    DEFAULT_URL,
    Call,
    Connection,
    Listing,
    Outcome,
    Token,
    is_rate_limited,
    response_of,
)
from agentmemory_client.handles import Agent, AsyncAgent
from agentmemory_client.methods import AsyncMethods, SyncMethods, client_method

T = TypeVar("T")
Http = TypeVar("Http")
NO_SLOT: nullcontext[None] = nullcontext()


class ApiClient(Generic[Http]):
    """State that both clients share: the connection, the HTTP client and the API's version.

    Attributes:
        api_version: Version in the latest response that contains one, for example "0.1.0"; None before that.
    """

    _open_http: type[Http]

    agents = client_method(memory_calls.agents)

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
        """Prepare the client without opening a connection.

        Args:
            url: Base URL of the API.
            token: Bearer token, or a callable that is called before each attempt and returns one. None sends none.
            timeout_s: Timeout in seconds to connect, to write, and between two received bytes.
            retries: Attempts after the first if the API responds with 429, 503 or 504, or not at all. A repeated write
                keeps its idempotency key.
            wait_max_s: Longest wait between two attempts, in seconds.
            in_flight: Maximum number of calls sent at the same time, at least 1. Any number of further calls wait in
                the client.

        Raises:
            ValueError: If an argument is invalid, for example a token with a line break or non-ASCII characters.
        """
        self.connection = Connection(
            url=url, token=token, timeout_s=timeout_s, retries=retries, wait_max_s=wait_max_s, in_flight=in_flight
        )
        self.http = self._open_http(**self.connection.client_options)
        self.api_version: str | None = None
        self._open_gates()

    def _open_gates(self) -> None:
        """Create the semaphore for slots and the lock that refused calls hold while they are repeated."""
        raise NotImplementedError

    def _record_version(self, answer: httpx.Response) -> httpx.Response:
        self.api_version = answer.headers.get("X-AgentMemory-Version", self.api_version)
        return answer


class Client(ApiClient[httpx.Client], SyncMethods):
    """Blocking client, a context manager. Every call may raise ApiError or ApiUnreachable."""

    _open_http = httpx.Client

    def _open_gates(self) -> None:
        self._slots = threading.Semaphore(self.connection.in_flight)
        # Reentrant: an import may read its lines from another call of the same client.
        self._refused_lock = threading.RLock()

    @property
    def _client(self) -> "Client":  # type: ignore[override] # only read
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
        """Return a handle for the calls about an agent, without sending a request."""
        return Agent(self, name)

    def run(self, call: Call[T]) -> T:
        """Send a call, with retries, and return its result."""
        outcome, repeats = self.repeat(partial(self._send, call), is_counted=True)
        return call.read_outcome(self.connection, outcome, is_repeated=repeats > 0)

    def repeat(
        self,
        send: Callable[[], httpx.Response],
        *,
        times: int | None = None,
        is_counted: bool = False,
    ) -> tuple[Outcome, int]:
        """Send a request until its outcome needs no retry, or no attempts are left.

        Args:
            send: Sends the request once.
            times: Attempts after the first; None for the connection's `retries`.
            is_counted: True if each attempt takes one of the `in_flight` slots.

        Returns:
            The last outcome, and the number of attempts before it.
        """
        attempt = 0
        while True:
            with self._slots if is_counted else NO_SLOT:
                with self._refused_lock:
                    pass  # Wait until refused calls have been repeated.
                if is_rate_limited(outcome := self._try(send)):
                    outcome, attempt = self._repeat_refused(send, outcome, attempt, times=times)
            pause_s = self.connection.retry_pause_s(attempt, outcome, times=times)
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
        with self._refused_lock:
            while (
                is_rate_limited(outcome)
                and (wait_s := self.connection.retry_pause_s(attempt, outcome, times=times)) is not None
            ):
                response_of(outcome).close()
                time.sleep(max(since_s + wait_s - time.monotonic(), 0.0))
                outcome, attempt, since_s = self._try(send), attempt + 1, time.monotonic()
        return outcome, attempt

    def entries(self, listing: Listing[T]) -> Iterator[T]:
        """Yield the entries of a listing. Each page is read when its first entry is needed."""
        call: Call[Any] | None = listing.first
        while call:
            page = self.run(call)
            yield from page.results
            call = listing.next_page(page)

    def _send(self, call: Call[Any]) -> httpx.Response:
        return self.http.request(**call.request(self.connection))

    def _try(self, send: Callable[[], httpx.Response]) -> Outcome:
        try:
            return self._record_version(send())
        except httpx.TransportError as error:
            return error


class AsyncClient(ApiClient[httpx.AsyncClient], AsyncMethods):
    """Client for asyncio, an async context manager. Every call may raise ApiError or ApiUnreachable."""

    _open_http = httpx.AsyncClient

    def _open_gates(self) -> None:
        self._slots = asyncio.Semaphore(self.connection.in_flight)
        self._refused_lock = asyncio.Lock()

    @property
    def _client(self) -> "AsyncClient":  # type: ignore[override] # only read
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
        """Return a handle for the calls about an agent, without sending a request."""
        return AsyncAgent(self, name)

    async def run(self, call: Call[T]) -> T:
        """Send a call, with retries, and return its result."""
        outcome, repeats = await self.repeat(partial(self._send, call), is_counted=True)
        return call.read_outcome(self.connection, outcome, is_repeated=repeats > 0)

    async def repeat(
        self,
        send: Callable[[], Awaitable[httpx.Response]],
        *,
        times: int | None = None,
        is_counted: bool = False,
    ) -> tuple[Outcome, int]:
        """Send a request until its outcome needs no retry, or no attempts are left.

        Args:
            send: Sends the request once.
            times: Attempts after the first; None for the connection's `retries`.
            is_counted: True if each attempt takes one of the `in_flight` slots.

        Returns:
            The last outcome, and the number of attempts before it.
        """
        attempt = 0
        while True:
            async with self._slots if is_counted else NO_SLOT:
                async with self._refused_lock:
                    pass  # Wait until refused calls have been repeated.
                if is_rate_limited(outcome := await self._try(send)):
                    outcome, attempt = await self._repeat_refused(send, outcome, attempt, times=times)
            pause_s = self.connection.retry_pause_s(attempt, outcome, times=times)
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
        async with self._refused_lock:
            while (
                is_rate_limited(outcome)
                and (wait_s := self.connection.retry_pause_s(attempt, outcome, times=times)) is not None
            ):
                await response_of(outcome).aclose()
                await asyncio.sleep(max(since_s + wait_s - time.monotonic(), 0.0))
                outcome, attempt, since_s = await self._try(send), attempt + 1, time.monotonic()
        return outcome, attempt

    async def entries(self, listing: Listing[T]) -> AsyncIterator[T]:
        """Yield the entries of a listing. Each page is read when its first entry is needed."""
        call: Call[Any] | None = listing.first
        while call:
            page = await self.run(call)
            for entry in page.results:
                yield entry
            call = listing.next_page(page)

    async def _send(self, call: Call[Any]) -> httpx.Response:
        return await self.http.request(**call.request(self.connection))

    async def _try(self, send: Callable[[], Awaitable[httpx.Response]]) -> Outcome:
        try:
            return self._record_version(await send())
        except httpx.TransportError as error:
            return error
