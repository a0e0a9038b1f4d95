"""Files of web servers, without redirects. URLs are https only: the validation of MemoryRestore admits no other."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress, HostSession, build_tls_context
from agentmemory_operator.errors import StorageRejected, StorageUnavailable

CHUNK_BYTES = 256 << 10
CONNECT_TIMEOUT_S = 10.0
# Maximum seconds between two chunks of the stream. There is no limit for the whole file.
READ_TIMEOUT_S = 60.0
TOO_MANY_REQUESTS = 429
FIELD = "source.url"
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,259}")


class HttpsFiles:
    """Implements ports.objects.WebFiles; servers must have a certificate of a CA that the system trusts.

    Args:
        egress: Policy for outgoing connections; `open` raises SpecInvalid for a forbidden host.
    """

    def __init__(self, egress: Egress = DEFAULT_EGRESS) -> None:
        self._egress = egress

    @asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content at a URL.

        Raises:
            StorageUnavailable: If the server is unreachable or untrusted, or responds with 5xx or 429. Also while the
                content is read, if the connection breaks or 60 s pass without data.
            StorageRejected: If the server redirects, or responds with another status that is not 200.
            SpecInvalid: If the egress policy forbids the host.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        host = HostSession(self._egress, url, field=FIELD, proxies=(), ssl=build_tls_context(url, None) or True)
        try:
            with _reachable(url):
                # Do not follow redirects, because only the host in `url` has been validated.
                response = await host.request(
                    "GET", URL(url, encoded=True), headers={"accept-encoding": "identity"}, timeout=timeout
                )
            try:
                _check(url, response)
                yield _chunks(url, response)
            finally:
                response.close()
        finally:
            await host.close()


async def _chunks(url: str, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _reachable(url):
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk


def _check(url: str, response: aiohttp.ClientResponse) -> None:
    """Raise unless the status is 200: StorageUnavailable for 429 and from 500, else StorageRejected."""
    status, shown_url = response.status, _redacted(url)
    if status == 200:
        return
    if status == TOO_MANY_REQUESTS or status >= 500:
        raise StorageUnavailable(f"{shown_url} answers HTTP {status}")
    if 300 <= status < 400:
        target = _target_of(response.headers.get("location", "")) or "another address"
        raise StorageRejected(
            status, "", f"{shown_url} redirects to {target}, which is not followed: use the URL of the file itself"
        )
    raise StorageRejected(
        status, "", f"{shown_url} answers HTTP {status}: correct source.url, or let the operator fetch it"
    )


def _target_of(location: str) -> str:
    """Return the host that a redirect points to; '' if it names none."""
    try:
        host = urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return host if _HOST.fullmatch(host) else ""


@contextmanager
def _reachable(url: str) -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientSSLError as exc:
        raise StorageUnavailable(
            f"{_redacted(url)}: TLS verification failed ({type(exc).__name__}): the certificate must be signed by a CA "
            f"of the system or of SSL_CERT_FILE in the operator's environment"
        ) from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise StorageUnavailable(
            f"{_redacted(url)} cannot be reached, or the connection broke: {type(exc).__name__}"
        ) from exc


def _redacted(url: str) -> str:
    """Return the URL without its query, which may contain a signature."""
    return url.partition("?")[0]
