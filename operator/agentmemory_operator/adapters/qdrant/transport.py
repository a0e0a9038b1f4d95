"""Control calls to one Qdrant server: one aiohttp session, answers as plain JSON, failures as our errors.

A thousand objects made are 17,000 calls; the official client takes three times as long for each, and 60 MiB of memory
(docs/adr/0004).
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import aiohttp
import orjson
from yarl import URL

from agentmemory_operator.adapters.http.answers import AnswerTooLarge, read_capped, read_words, retry_after_s
from agentmemory_operator.adapters.http.egress import USUAL, Egress, HostSession, trust_of, untrusted
from agentmemory_operator.adapters.qdrant.answers import OBJECT_BYTES, is_without_collection, most_bytes, said, words_of
from agentmemory_operator.adapters.qdrant.calls import CallAnswer, CallWatch
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionNotFound,
    NoAnswer,
    NotFound,
    StoreRejected,
    StoreUnavailable,
)

# Below the 5 s after which the server closes an idle connection.
KEEP_ALIVE_S = 4.0
# What a server, or a proxy before it, answers where a later attempt may succeed.
FOR_NOW = (408, 429)
# What the engine says, its own watch over the disk as the system's error; the status is 500 as of any other trouble.
NO_SPACE = "No space left on device"
# What it answers where it has no such call.
NOT_BUILT = 501
# Of a connection.
URL_FIELD, NODES_FIELD = "spec.url", "spec.nodes"
# How long a stream may stand still.
STREAM_READ_S = 60.0
CHUNK_BYTES = 256 * 1024


@contextmanager
def understood() -> Iterator[None]:
    """Turn the failure to read an answer into ours: a proxy's page in its place, or half of one."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreUnavailable("the server is not Qdrant: its answer cannot be read") from exc


class QdrantTransport:
    """Sends calls and decodes answers.

    Args:
        timeout_s: of each call, connecting included.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
        egress: says whether the server may be connected to.
        field: of the connection, that has the URL.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        ca_pem: str | None,
        egress: Egress = USUAL,
        field: str = URL_FIELD,
    ) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        # The default Accept-Encoding makes the server compress, which costs 40 ms a call.
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            headers["api-key"] = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._host = HostSession(
            *(egress, url),
            field=field,
            headers=headers,
            ssl=trust_of(url, ca_pem) or True,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self.watch: CallWatch | None = None

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._host.close()

    async def result(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """`result` of the answer; raises as `call`."""
        document = await self.call(method, path, body, timeout_s=timeout_s)
        with understood():
            return document["result"]

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """The decoded answer.

        Args:
            path: encoded, with its query.
            timeout_s: of this call, None is the usual one.

        Raises:
            NotFound: 404; CollectionNotFound where it says so of a collection.
            SpecInvalid: the server may not be connected to.
            StoreRejected: another attempt would be refused too.
            StoreUnavailable: it may not be, or the answer is larger than any of Qdrant's.
        """
        data = None if body is None else orjson.dumps(body)
        return await self._exchange(method, path, data, timeout_s=timeout_s, most=most_bytes(method, path, body))

    async def words(self, path: str) -> str:
        """An answer that is no JSON; raises as `call`."""
        answer = await self._answered("GET", path, None, timeout_s=None, most=most_bytes("GET", path, None))
        return answer.body.decode(errors="replace")

    async def send_file(
        self, path: str, field: str, content: AsyncIterator[bytes], *, name: str, timeout_s: float
    ) -> Any:
        """Post a stream as a file of a form, in constant memory; return and raise as `call`, and what `content` raises.

        Args:
            name: the file's.
            timeout_s: until the answer.
        """
        source = _Source(content)
        form = aiohttp.MultipartWriter("form-data")
        form.append(source.read()).set_content_disposition("form-data", name=field, filename=name)
        try:
            return await self._exchange("POST", path, form, timeout_s=timeout_s, most=OBJECT_BYTES)
        except StoreUnavailable:
            # The client tells only that it could not send.
            if source.fault is not None:
                raise source.fault from None
            raise

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the bytes of an answer; opening and reading raise as `call`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout.total, sock_read=STREAM_READ_S)
        with _reachable():
            answer = await self._host.request("GET", URL(self._url + path, encoded=True), timeout=timeout)
        try:
            if answer.status >= 300:
                with _reachable():
                    raise self._refusal(CallAnswer(answer.status, answer.headers, await read_words(answer)))
            yield _chunks(answer)
        finally:
            # What was not read to its end must not be read by the next call.
            answer.close()

    async def _exchange(self, method: str, path: str, data: Any, *, timeout_s: float | None, most: int) -> Any:
        answer = await self._answered(method, path, data, timeout_s=timeout_s, most=most)
        if answer.status == 202:
            raise NoAnswer("Qdrant accepted the call but has not finished it (202)")
        with understood():
            return orjson.loads(answer.body)

    async def _answered(self, method: str, path: str, data: Any, *, timeout_s: float | None, most: int) -> CallAnswer:
        timeout = self._timeout if timeout_s is None else self._lasting(timeout_s)
        send = partial(self._send, method, path, data, _Bounds(timeout, most))
        answer = await (self.watch.around(method, path, send) if self.watch else send({}))
        if answer.status >= 300:
            raise self._refusal(answer)
        return answer

    def _lasting(self, timeout_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._timeout.total)

    async def _send(
        self, method: str, path: str, data: Any, bounds: "_Bounds", headers: Mapping[str, str]
    ) -> CallAnswer:
        url = URL(self._url + path, encoded=True)
        form = {"Content-Type": data.content_type} if isinstance(data, aiohttp.MultipartWriter) else {}
        with _reachable():
            async with await self._host.request(
                method, url, data=data, headers={**headers, **form}, timeout=bounds.timeout
            ) as answer:
                is_error = answer.status >= 300
                body = await (read_words(answer) if is_error else read_capped(answer, bounds.most))
                return CallAnswer(answer.status, answer.headers, body)

    def _refusal(self, answer: CallAnswer) -> AgentMemoryError:
        words = words_of(answer.body, self._api_key)
        message = said(answer.status, words)
        if answer.status == 404:
            return CollectionNotFound(message) if is_without_collection(404, words) else NotFound(message)
        if answer.status == NOT_BUILT or (answer.status < 500 and answer.status not in FOR_NOW):
            return StoreRejected(answer.status, message)
        return StoreUnavailable(message, retry_after_s=retry_after_s(answer.headers), is_disk_full=NO_SPACE in words)


class _Bounds(NamedTuple):
    """What a call may take, and the bytes of its answer."""

    timeout: aiohttp.ClientTimeout
    most: int


@contextmanager
def _reachable() -> Iterator[None]:
    """Turn the failures of the client into ours."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as exc:
        raise untrusted(exc) or unreachable(exc) from exc


def unreachable(exc: BaseException) -> StoreUnavailable:
    """What to raise where no answer came, or none that can be read: nothing that a server has sent is told."""
    if isinstance(exc, AnswerTooLarge):
        return StoreUnavailable(f"the server is not Qdrant: {exc}")
    kind = NoAnswer if isinstance(exc, TimeoutError) else StoreUnavailable
    return kind(f"Qdrant cannot be reached: {_fault_of(exc)}")


def _fault_of(exc: BaseException) -> str:
    match exc:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return "its host name does not resolve"
        case aiohttp.ClientConnectorError() if exc.os_error.errno:
            return os.strerror(exc.os_error.errno)
        case aiohttp.ServerDisconnectedError():
            return "Server disconnected"
        case _:
            return type(exc).__name__


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _reachable():
        async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
            yield chunk


class _Source:
    """A stream to send, and what reading it raised.

    Attributes:
        fault: of ours; the client wraps it.
    """

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self.fault: AgentMemoryError | None = None

    async def read(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._content:
                yield chunk
        except AgentMemoryError as exc:
            self.fault = exc
            raise
