"""Control calls to one Qdrant server: one aiohttp session, answers as plain JSON, failures as our errors.

A thousand objects made are 16,000 calls; the official client takes three times as long for each, and 60 MiB of memory
(docs/adr/0004).
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import aiohttp
import orjson
from yarl import URL

from agentmemory_operator.adapters.qdrant_calls import Answer, CallWatch
from agentmemory_operator.adapters.tls import trust_of, untrusted
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected, StoreUnavailable

# Below the 5 s after which the server closes an idle connection.
KEEP_ALIVE_S = 4.0
# What a server, or a proxy before it, answers where a later attempt may succeed.
FOR_NOW = (408, 429)
WORDS_LIMIT = 300
# What the engine says, its own watch over the disk as the system's error; the status is 500 as of any other trouble.
NO_SPACE = "No space left on device"
# What it answers where it has no such call.
NOT_BUILT = 501
# How long a stream may stand still.
STREAM_READ_S = 60.0
CHUNK_BYTES = 256 * 1024


@contextmanager
def understood() -> Iterator[None]:
    """Turn the failure to read an answer into ours: a proxy's page in its place, or half of one."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreUnavailable("what answers is not Qdrant: its answer cannot be read") from exc


class QdrantTransport:
    """Sends calls and decodes answers.

    Args:
        timeout_s: of each call, connecting included.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float, ca_pem: str | None) -> None:
        self._url = url.rstrip("/")
        self._trust = trust_of(url, ca_pem)
        # The default Accept-Encoding makes the server compress, which costs 40 ms a call.
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["api-key"] = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self.watch: CallWatch | None = None

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def result(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """Return `result` of the answer; raises as `call`."""
        document = await self.call(method, path, body, timeout_s=timeout_s)
        with understood():
            return document["result"]

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """Return the decoded answer.

        Args:
            path: encoded, with its query.
            timeout_s: of this call, None is the usual one.

        Raises:
            NotFound: 404.
            StoreRejected: another attempt would be refused too.
            StoreUnavailable: it may not be.
        """
        data = None if body is None else orjson.dumps(body)
        return await self._exchange(method, path, data, timeout_s=timeout_s)

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
            return await self._exchange("POST", path, form, timeout_s=timeout_s)
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
            answer = await self._opened().get(URL(self._url + path, encoded=True), timeout=timeout)
        try:
            if answer.status >= 400:
                with _reachable():
                    raise _refusal(Answer(answer.status, answer.headers, await answer.read()))
            yield _chunks(answer)
        finally:
            # What was not read to its end must not be read by the next call.
            answer.close()

    async def _exchange(self, method: str, path: str, data: Any, *, timeout_s: float | None) -> Any:
        timeout = self._timeout if timeout_s is None else self._lasting(timeout_s)
        send = partial(self._send, method, path, data, timeout)
        answer = await (self.watch.around(method, path, send) if self.watch else send({}))
        if answer.status >= 400:
            raise _refusal(answer)
        if answer.status == 202:
            raise StoreUnavailable("Qdrant took the call and has not finished it (202)")
        with understood():
            return orjson.loads(answer.body)

    def _lasting(self, timeout_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._timeout.total)

    async def _send(
        self, method: str, path: str, data: Any, timeout: aiohttp.ClientTimeout, headers: Mapping[str, str]
    ) -> Answer:
        url = URL(self._url + path, encoded=True)
        form = {"Content-Type": data.content_type} if isinstance(data, aiohttp.MultipartWriter) else {}
        with _reachable():
            async with self._opened().request(
                method, url, data=data, headers={**headers, **form}, timeout=timeout
            ) as answer:
                return Answer(answer.status, answer.headers, await answer.read())

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._trust or True, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


@contextmanager
def _reachable() -> Iterator[None]:
    """Turn the failures of the client into ours."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as exc:
        told = "no answer in time" if isinstance(exc, TimeoutError) else exc
        raise untrusted(exc) or StoreUnavailable(f"Qdrant cannot be reached: {told}") from exc


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


def _refusal(answer: Answer) -> AgentMemoryError:
    message = f"Qdrant answered {answer.status}: {answer.body.decode(errors='replace')[:WORDS_LIMIT]}"
    if answer.status == 404:
        return NotFound(message)
    if answer.status == NOT_BUILT or (answer.status < 500 and answer.status not in FOR_NOW):
        return StoreRejected(answer.status, message)
    asked = answer.headers.get("Retry-After", "")
    retry_after_s = float(asked) if asked.isdigit() else 0.0
    return StoreUnavailable(message, retry_after_s=retry_after_s, is_disk_full=NO_SPACE in message)
