"""The way out for libraries that speak httpx: `HostSession` sends what they ask, and answers are read up to a bound."""

import aiohttp
import httpx
from yarl import URL

from agentmemory_operator.adapters.http.answers import WORDS_BYTES, read_capped, read_words
from agentmemory_operator.adapters.http.egress import HostSession
from agentmemory_operator.errors import AgentMemoryError

# A request's header that says how many bytes its answer may have; it is not sent.
MOST_HEADER = "x-agentmemory-most"
# A request's extension: the headers that are sent besides the session's.
HEADERS = "headers"
# Stands in a library's base URL: the transport alone knows where calls go.
BASE_URL = "http://service"

_FAILURES = (AgentMemoryError, aiohttp.ClientError, OSError, ValueError)


class NotAnswered(httpx.TransportError):
    """No answer, or none that may be read.

    Attributes:
        reason: what `HostSession` or the reader raised.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(type(reason).__name__)
        self.reason = reason


class HostTransport(httpx.AsyncBaseTransport):
    """Sends path and body of each request; address and headers are the session's, but for those of `HEADERS`.

    Libraries take headers from the environment, which must not go to whatever address a tenant writes.

    Args:
        url: what the path is put behind.
    """

    def __init__(self, host: HostSession, url: str) -> None:
        self._host = host
        self._url = url

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, read; a redirect too.

        Raises:
            NotAnswered: there is none.
        """
        try:
            return await self._send(request)
        except _FAILURES as exc:
            raise NotAnswered(exc) from exc

    async def _send(self, request: httpx.Request) -> httpx.Response:
        url = URL(self._url + request.url.raw_path.decode("ascii"), encoded=True)
        limits = request.extensions["timeout"]
        options = {
            "data": await request.aread(),
            "headers": request.extensions.get(HEADERS),
            "timeout": aiohttp.ClientTimeout(total=limits["read"], sock_connect=limits["connect"]),
        }
        async with await self._host.request(request.method, url, **options) as response:
            if 200 <= response.status < 300:
                content = await read_capped(response, int(request.headers.get(MOST_HEADER, WORDS_BYTES)))
            else:
                content = await read_words(response)
        # No others: a Content-Encoding or charset of the server's would be unpacked without bound.
        headers = {"Content-Type": "application/json"}
        if wait := response.headers.get("Retry-After"):
            headers["Retry-After"] = wait
        return httpx.Response(response.status, headers=headers, content=content)


def client_of(host: HostSession, url: str) -> httpx.AsyncClient:
    """What a library is given as its client; it holds nothing that has to be closed besides the session.

    Args:
        url: of the service; the library's own is `BASE_URL`.
    """
    return httpx.AsyncClient(transport=HostTransport(host, url), follow_redirects=False, trust_env=False)


def reason_behind(error: BaseException) -> Exception | None:
    """Why no answer came, where a library has wrapped it; None where it was something else."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, NotAnswered):
        found = found.__cause__
    return None if found is None else found.reason
