"""Control calls to one Qdrant server: one aiohttp session, answers as plain JSON, failures as our errors.

A thousand objects made are 16,000 calls; the official client takes three times as long for each, and 60 MiB of memory
(docs/adr/0004).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    async def result(self, method: str, path: str, body: Any = None) -> Any:
        """Return `result` of the answer; raises as `call`."""
        document = await self.call(method, path, body)
        with understood():
            return document["result"]

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the decoded answer.

        Args:
            path: encoded, with its query.

        Raises:
            NotFound: 404.
            StoreRejected: another attempt would be refused too.
            StoreUnavailable: it may not be.
        """
        data = None if body is None else orjson.dumps(body)
        send = partial(self._send, method, path, data)
        answer = await (self.watch.around(method, path, send) if self.watch else send({}))
        if answer.status >= 400:
            raise _refusal(answer)
        with understood():
            return orjson.loads(answer.body)

    async def _send(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        url = URL(self._url + path, encoded=True)
        try:
            async with self._opened().request(method, url, data=data, headers=headers) as answer:
                return Answer(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, OSError) as exc:
            told = "no answer in time" if isinstance(exc, TimeoutError) else exc
            raise untrusted(exc) or StoreUnavailable(f"Qdrant cannot be reached: {told}") from exc

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


def _refusal(answer: Answer) -> AgentMemoryError:
    message = f"Qdrant answered {answer.status}: {answer.body.decode(errors='replace')[:WORDS_LIMIT]}"
    if answer.status == 404:
        return NotFound(message)
    if answer.status < 500 and answer.status not in FOR_NOW:
        return StoreRejected(answer.status, message)
    asked = answer.headers.get("Retry-After", "")
    return StoreUnavailable(message, retry_after_s=float(asked) if asked.isdigit() else 0.0)
