"""Connections to what a tenant has written: resolved once, checked, and made to the very addresses that were checked.

Every client of a Qdrant, an embedder, a storage or a file goes through `HostSession`: one host, no redirects. Whom
to trust over TLS, and what a failed handshake means, is the same for all of them.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agentmemory_operator.connections.rules.egress import EgressPolicy, EgressRefusal, told
from agentmemory_operator.connections.rules.hosts import Address, address_of
from agentmemory_operator.errors import SpecInvalid, StoreUntrusted
from agentmemory_operator.spec.kinds.conditions import Reason

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

PORTS = ("http", "https")
# What a name led to is asked again after so long by whoever only looks, and does not connect.
REMEMBERED_S = 60.0
LOOK_TIMEOUT_S = 5.0
_REMEMBERED_HOSTS = 1_000

# A server that went away in the middle says nothing about trust.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


async def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of a name, in the system's order.

    Raises:
        OSError: it has none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as exc:
        raise socket.gaierror(socket.EAI_NONAME, "DNS lookup failed") from exc
    # A zone is told for link-local addresses alone, which are not connected to.
    addresses = [address_of(str(sockaddr[0])) for _, _, _, _, sockaddr in found]
    return list(dict.fromkeys(address for address in addresses if address is not None))


class Egress:
    """The one policy for every URL that a tenant can write, and what its names lead to.

    Args:
        policy: None refuses nothing: the URL is of the process's own environment.
        api_servers: hosts and ports of the Kubernetes API server.
        resolve: finds the addresses of a name.
    """

    def __init__(
        self,
        policy: EgressPolicy | None,
        *,
        api_servers: Sequence[tuple[str, int]] = (),
        resolve: Resolve = resolve,
    ) -> None:
        self._policy = policy
        self._api_servers = tuple(api_servers)
        self._resolve = resolve
        self._remembered: dict[tuple[str, int], tuple[float, Sequence[Address]]] = {}

    async def addresses(self, field: str, host: str, port: int) -> list[Address]:
        """The addresses of a host that may be connected to.

        Args:
            field: that names the host.

        Raises:
            SpecInvalid: it has addresses, and none of them may be.
            OSError: it has none.
        """
        found = self._written(field, host, port)
        return await self._permitted(field, host, port, found or await self._resolve(host, port))

    async def check(self, field: str, url: str) -> None:
        """Pass unless it is known that a URL is not connected to; a name that leads nowhere for now is.

        Raises:
            SpecInvalid: it is not.
        """
        host, port = place_of(field, url)
        if self._policy is None:
            return
        if proxy_of(url, ("all",)) is not None:
            self.check_name(field, host, port)
            return
        if found := self._written(field, host, port) or await self._looked_up(host, port):
            await self._permitted(field, host, port, found)

    def check_name(self, field: str, host: str, port: int) -> None:
        """Pass where a host may be asked for behind a proxy, which finds its addresses by itself.

        Raises:
            SpecInvalid: it may not be.
        """
        refusal = self._policy.refuses_name(host, port, api_server=self._api_servers) if self._policy else None
        if refusal is not None:
            raise _refused(refusal, field, host, port)

    def is_permitted(self, host: str, port: int, address: Address) -> bool:
        """Whether an address of a host may be connected to, as far as it is known without asking."""
        return self._policy is None or not self._policy.refuses(host, port, address, api_server=self._api_known())

    def _written(self, field: str, host: str, port: int) -> Sequence[Address]:
        """The address that a host is; nothing of a name that may be looked up."""
        if (literal := address_of(host)) is not None:
            return [literal]
        refusal = self._policy.refuses_unresolved(host, port) if self._policy else None
        if refusal is not None:
            raise _refused(refusal, field, host, port)
        return []

    async def _permitted(self, field: str, host: str, port: int, found: Sequence[Address]) -> list[Address]:
        policy = self._policy
        if policy is None:
            return list(found)
        api_server = await self._api_server(port)
        refusals = {address: policy.refuses(host, port, address, api_server=api_server) for address in found}
        permitted = [address for address, refusal in refusals.items() if refusal is None]
        if not permitted:
            refusal = next((refusal for refusal in refusals.values() if refusal is not None), EgressRefusal.NOT_LISTED)
            raise _refused(refusal, field, host, port)
        return permitted

    async def _api_server(self, port: int) -> frozenset[tuple[Address, int]]:
        """The addresses of the API server; nobody is asked for them where the port is another one."""
        for host, at in self._api_servers:
            if at == port and address_of(host) is None:
                await self._looked_up(host, at)
        return self._api_known()

    def _api_known(self) -> frozenset[tuple[Address, int]]:
        known: set[tuple[Address, int]] = set()
        for host, port in self._api_servers:
            literal = address_of(host)
            _, found = (0.0, (literal,)) if literal else self._remembered.get((host, port), (0.0, ()))
            known |= {(address, port) for address in found}
        return frozenset(known)

    async def _looked_up(self, host: str, port: int) -> Sequence[Address]:
        """What a name leads to, or led to a minute ago; nothing where nobody answers."""
        asked_s, found = self._remembered.get((host, port), (float("-inf"), ()))
        if time.monotonic() - asked_s < REMEMBERED_S:
            return found
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                found = await self._resolve(host, port)
        except OSError:
            # What it led to last is the best that is known.
            pass
        if len(self._remembered) >= _REMEMBERED_HOSTS and (host, port) not in self._remembered:
            oldest = next(known for known in self._remembered if known not in self._api_servers)
            del self._remembered[oldest]
        self._remembered[host, port] = time.monotonic(), found
        return found


# Outside a pod, with nothing set.
USUAL = Egress(EgressPolicy())
# For URLs of the process's own environment.
UNCHECKED = Egress(None)


class HostSession:
    """Calls to the host of one URL; connections are kept, opened at the first call and anew after `close`.

    Args:
        field: that holds the URL, for people.
        proxies: kinds of proxy of the environment that are gone through, besides that of the URL's scheme; None is
            never through one.
        options: of aiohttp's connector: `ssl`, `limit`, `keepalive_timeout`.
    """

    def __init__(
        self,
        egress: Egress,
        url: str,
        *,
        field: str,
        proxies: tuple[str, ...] | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._egress = egress
        self._url = url
        self._field = field
        self._proxies = proxies
        self._headers = headers
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._through: dict[str, Any] = {}

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(self, method: str, url: URL, **options: Any) -> aiohttp.ClientResponse:
        """Send a call; return its answer, unread, a redirect too.

        Args:
            url: of the same host.
            options: as aiohttp's.

        Raises:
            SpecInvalid: the host may not be connected to.
            aiohttp.ClientError, OSError: no answer came.
        """
        session = self._session or await self._open()
        return await session.request(method, url, allow_redirects=False, **self._through, **options)

    async def _open(self) -> aiohttp.ClientSession:
        host, port = place_of(self._field, self._url)
        proxy = None if self._proxies is None else proxy_of(self._url, self._proxies)
        if proxy is not None:
            self._egress.check_name(self._field, host, port)
            through: dict[str, Any] = {"proxy": proxy}
            guards: dict[str, Any] = {}
        else:
            if _is_numeric(host):
                # The client asks no resolver for these.
                await self._check(host, port)
            through = {}
            guards = {
                "resolver": _Resolver(self._egress, self._field),
                "socket_factory": self._socket_factory(host, port),
            }
        if self._session is None:
            self._through = through
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(**guards, **self._options),
                headers=self._headers,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _check(self, host: str, port: int) -> None:
        try:
            await self._egress.addresses(self._field, host, port)
        except OSError as exc:
            raise aiohttp.ClientConnectionError(f"{host} is not an IP address") from exc

    def _socket_factory(self, host: str, port: int) -> Callable[[Any], socket.socket]:
        """What opens sockets to permitted addresses alone, whoever has found them."""

        def opened(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
            family, kind, proto, _, sockaddr = info
            address = address_of(str(sockaddr[0]))
            if address is None or not self._egress.is_permitted(host, port, address):
                raise PermissionError(f"{self._field}: {host} is not connected to")
            return socket.socket(family, kind, proto)

        return opened


class _Resolver(AbstractResolver):
    """Tells aiohttp the permitted addresses of a host; it connects to these and asks nobody else."""

    def __init__(self, egress: Egress, field: str) -> None:
        self._egress = egress
        self._field = field

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """What may be connected to."""
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._egress.addresses(self._field, host, port)
        ]

    async def close(self) -> None:
        """Do nothing."""


def place_of(field: str, url: str) -> tuple[str, int]:
    """Host and port of a URL.

    Raises:
        SpecInvalid: it has none.
    """
    try:
        # Read by whoever connects: two readers may find two hosts in one text.
        parsed = URL(url, encoded=True)
        host, port = parsed.raw_host, parsed.port if parsed.scheme in PORTS else None
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise SpecInvalid(Reason.INVALID_SPEC, f"{field}: {url!r} has no host: use http://HOST:PORT or https://HOST")
    return host, port


def proxy_of(url: str, others: tuple[str, ...] = ()) -> URL | None:
    """The proxy that the environment names for a URL, None where there is none.

    Args:
        others: kinds besides the URL's own scheme, as `all`.
    """
    parts, proxies = urlsplit(url), getproxies()
    named = next((proxies[kind] for kind in (parts.scheme, *others) if proxies.get(kind)), None)
    if named is None or not parts.hostname or proxy_bypass(parts.hostname):
        return None
    proxy = URL(named if "://" in named else f"http://{named}")
    return proxy if proxy.scheme in PORTS else None


def _is_numeric(host: str) -> bool:
    """Whether a host is an address in any spelling, `127.1` and `0x7f000001` among them."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    return (
        ":" in host
        or last.isdecimal()
        or (last.startswith("0x") and all(sign in "0123456789abcdef" for sign in last[2:]))
    )


def _refused(refusal: EgressRefusal, field: str, host: str, port: int) -> SpecInvalid:
    return SpecInvalid(Reason.HOST_NOT_ALLOWED, told(refusal, field, host, port))


def trust_of(url: str, ca_pem: str | None) -> ssl.SSLContext | None:
    """How to check a server's certificate, None where nothing is encrypted.

    Args:
        url: of the server.
        ca_pem: certificates of the authorities to trust; None is the system's.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """
    if not url.startswith("https://"):
        return None
    if ca_pem is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError, TypeError) as exc:
        raise SpecInvalid(
            Reason.INVALID_CA,
            "spec.tls.caSecretRef: the Secret's value is not a certificate: use PEM (-----BEGIN CERTIFICATE-----)",
        ) from exc
    return context


def untrusted(error: BaseException | None) -> StoreUntrusted | None:
    """What to raise where a failed handshake is behind the error, else None."""
    found = None
    # The innermost is the interpreter's own; the clients' say less.
    while error is not None:
        found = error if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED) else found
        error = error.__cause__ or error.__context__
    if isinstance(found, ssl.SSLCertVerificationError):
        return StoreUntrusted(
            f"the server's certificate was rejected ({found.verify_message}): correct the CA in"
            " spec.tls.caSecretRef, spec.url, or the server's certificate"
        )
    if found is not None:
        return StoreUntrusted(
            f"TLS handshake with the server failed ({found.reason}): correct spec.url or the server's TLS"
        )
    return None
