"""What carries the official Qdrant client's calls: one aiohttp session.

The client's own transport costs three times as much for a call, and opens a connection for each one to a local address.
A thousand objects made are 16,000 calls.
"""

import ssl

import aiohttp
import httpx
from yarl import URL

from agentmemory_operator.adapters.qdrant_sdk import AsyncQdrantClient, ResponseHandlingException, SendAsync

# Below the 5 s after which the server closes an idle connection.
KEEP_ALIVE_S = 4.0


class QdrantTransport:
    """Sends what the client has built.

    Args:
        trust: for https; None is the system's authorities.
        timeout_s: of each call, connecting included.
    """

    def __init__(self, *, trust: ssl.SSLContext | None, timeout_s: float) -> None:
        self._trust = trust
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    def carry(self, client: AsyncQdrantClient) -> None:
        """Carry the client's calls from now on."""
        client.http.client.add_middleware(self._send)

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, request: httpx.Request, _: SendAsync) -> httpx.Response:
        try:
            async with self._opened().request(
                request.method,
                URL(str(request.url), encoded=True),
                data=request.content or None,
                headers=request.headers,
            ) as answer:
                return httpx.Response(answer.status, content=await answer.read(), headers=answer.headers)
        except (aiohttp.ClientError, OSError) as exc:
            raise ResponseHandlingException(exc) from exc

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._trust or True, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session
