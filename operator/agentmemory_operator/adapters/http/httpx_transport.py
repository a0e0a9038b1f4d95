"""httpx transport over `HostSession`, for libraries that use httpx. Responses are read up to a size limit."""

import aiohttp
import httpx
from yarl import URL

from agentmemory_operator.adapters.http.capped_body import MAX_ERROR_BYTES, read_capped, read_error_body
from agentmemory_operator.adapters.http.egress import HostSession
from agentmemory_operator.errors import AgentMemoryError

# Request header with the size limit of a successful response in bytes. `HostTransport` reads it and does not send it.
# Without it, the limit is 64 KiB.
MAX_BYTES_HEADER = "x-agentmemory-most"
# Request extension with headers to send in addition to the session's.
HEADERS_EXTENSION = "headers"
# Placeholder base URL for libraries: only the transport has the real one.
BASE_URL = "http://service"

_FAILURES = (AgentMemoryError, aiohttp.ClientError, OSError, ValueError)


class NoResponse(httpx.TransportError):
    """The request failed or was refused before a response, or the response is larger than its limit.

    Attributes:
        reason: Exception of `HostSession` or `read_capped`.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(type(reason).__name__)
        self.reason = reason


class HostTransport(httpx.AsyncBaseTransport):
    """Sends method, path and body of each request to the service at `url`.

    Headers come from the session and from the request's extension `HEADERS_EXTENSION`. Those of the library itself are
    dropped, because they can come from the environment and must not be sent to a tenant's URL.

    Args:
        host: Session to send with.
        url: Base URL; the request's path is appended to it.
    """

    def __init__(self, host: HostSession, url: str) -> None:
        self._host = host
        self._url = url

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response with its body. Redirects are returned, not followed.

        The body of an error response over 64 KiB is returned as empty.

        Raises:
            NoResponse: If there is no response, or it is larger than `MAX_BYTES_HEADER` allows.
        """
        try:
            return await self._send(request)
        except _FAILURES as exc:
            raise NoResponse(exc) from exc

    async def _send(self, request: httpx.Request) -> httpx.Response:
        url = URL(self._url + request.url.raw_path.decode("ascii"), encoded=True)
        limits = request.extensions["timeout"]
        options = {
            "data": await request.aread(),
            "headers": request.extensions.get(HEADERS_EXTENSION),
            "timeout": aiohttp.ClientTimeout(total=limits["read"], sock_connect=limits["connect"]),
        }
        async with await self._host.request(request.method, url, **options) as response:
            if 200 <= response.status < 300:
                content = await read_capped(response, int(request.headers.get(MAX_BYTES_HEADER, MAX_ERROR_BYTES)))
            else:
                content = await read_error_body(response)
        # Pass no other headers: httpx would decode a Content-Encoding or charset of the server without a size limit.
        headers = {"Content-Type": "application/json"}
        if retry_after := response.headers.get("Retry-After"):
            headers["Retry-After"] = retry_after
        return httpx.Response(response.status, headers=headers, content=content)


def build_httpx_client(host: HostSession, url: str) -> httpx.AsyncClient:
    """Build the httpx client for a library. Only the session needs to be closed.

    Args:
        host: Session to send with.
        url: Base URL of the service; the library is configured with `BASE_URL` instead.
    """
    return httpx.AsyncClient(transport=HostTransport(host, url), follow_redirects=False, trust_env=False)


def find_reason(error: BaseException) -> Exception | None:
    """Return the reason of a `NoResponse` in the causes of a library's error; None if there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NoResponse):
        cause = cause.__cause__
    return None if cause is None else cause.reason
