"""Outgoing connections to addresses that tenants can write: checked against the egress policy, safe from DNS rebinding.

Every client of a Qdrant server, a model service, an object storage, a webhook or a web server uses `HostSession`, which
1. resolves the host name for new connections, and keeps the result for 10 s (aiohttp's default),
2. checks each address against the policy,
3. connects only to addresses that passed this check, and follows no redirects.

If a proxy makes the connection, only the name is checked. This module also handles CA certificates and failed TLS
handshakes.
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

from agentmemory_operator.connections.rules.egress_policy import EgressPolicy, EgressRefusal, refusal_message
from agentmemory_operator.connections.rules.host_patterns import Address, parse_address
from agentmemory_operator.errors import SpecInvalid, TlsVerificationFailed
from agentmemory_operator.spec.kinds.conditions import Reason

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

PORTS = ("http", "https")
# Seconds for which a resolved name is valid, for checks without a connection and for the API server's name.
RESOLVE_CACHE_S = 60.0
RESOLVE_TIMEOUT_S = 5.0
_MAX_RESOLVED_HOSTS = 1_000

# Errors of a connection that was closed during the handshake, which is no TLS failure.
_CLOSED_ERRORS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the IP addresses of a host name, in the system's order, without duplicates.

    Raises:
        OSError: If the lookup fails, or the name has no address.
    """
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as exc:
        raise socket.gaierror(socket.EAI_NONAME, "DNS lookup failed") from exc
    # Drop zone ids, as `parse_address` does. Only link-local addresses have one, and the policy forbids them.
    addresses = [parse_address(str(sockaddr[0])) for _, _, _, _, sockaddr in infos]
    return list(dict.fromkeys(address for address in addresses if address is not None))


class Egress:
    """Egress policy of this process, with a cache of resolved names.

    Args:
        policy: None allows everything, for URLs from the process's own environment.
        api_servers: Hosts and ports of the Kubernetes API server.
        resolve: Resolves a host name.
    """

    def __init__(
        self, policy: EgressPolicy | None, *, api_servers: Sequence[tuple[str, int]] = (), resolve: Resolve = resolve
    ) -> None:
        self._policy = policy
        self._api_servers = tuple(api_servers)
        self._resolve = resolve
        self._resolved: dict[tuple[str, int], tuple[float, Sequence[Address]]] = {}

    async def addresses(self, field: str, host: str, port: int) -> list[Address]:
        """Return the addresses of a host to which a connection is allowed.

        Args:
            field: Field with the host, for error messages.

        Raises:
            SpecInvalid: If the policy forbids the host or all of its addresses.
            OSError: If the name cannot be resolved.
        """
        literal = self._literal_addresses(field, host, port)
        return await self._filter_permitted(field, host, port, literal or await self._resolve(host, port))

    async def check(self, field: str, url: str) -> None:
        """Raise if the policy forbids the host of a URL. A name that cannot be resolved now passes.

        No connection is opened. Resolved addresses are cached for a minute. With a proxy, only the name is checked.

        Args:
            field: Field with the URL, for error messages.

        Raises:
            SpecInvalid: If the host or all its addresses are forbidden, or it is no http(s) URL with a host.
        """
        host, port = host_and_port(field, url)
        if self._policy is None:
            return
        if find_proxy(url, ("all",)) is not None:
            self.check_name(field, host, port)
            return
        if addresses := self._literal_addresses(field, host, port) or await self._resolve_cached(host, port):
            await self._filter_permitted(field, host, port, addresses)

    def check_name(self, field: str, host: str, port: int) -> None:
        """Raise if the policy forbids a host name. A proxy resolves the name, so its addresses cannot be checked here.

        Raises:
            SpecInvalid: If the name is forbidden. The message names `field`.
        """
        refusal = self._policy.find_name_refusal(host, port, api_server=self._api_servers) if self._policy else None
        if refusal is not None:
            raise _refusal_error(refusal, field, host, port)

    def is_permitted(self, host: str, port: int, address: Address) -> bool:
        """Return whether a connection to an address of a host is allowed.

        Uses only cached addresses of the API server.
        """
        return self._policy is None or not self._policy.find_refusal(
            host, port, address, api_server=self._known_api_addresses()
        )

    def _literal_addresses(self, field: str, host: str, port: int) -> Sequence[Address]:
        """Return the host if it is an IP address; empty for a name that may be resolved. Raise for any other name."""
        if (literal := parse_address(host)) is not None:
            return [literal]
        refusal = self._policy.find_unresolved_refusal(host, port) if self._policy else None
        if refusal is not None:
            raise _refusal_error(refusal, field, host, port)
        return []

    async def _filter_permitted(self, field: str, host: str, port: int, addresses: Sequence[Address]) -> list[Address]:
        policy = self._policy
        if policy is None:
            return list(addresses)
        api_server = await self._resolve_api_server(port)
        refusals = {address: policy.find_refusal(host, port, address, api_server=api_server) for address in addresses}
        permitted = [address for address, refusal in refusals.items() if refusal is None]
        if not permitted:
            refusal = next((refusal for refusal in refusals.values() if refusal is not None), EgressRefusal.NOT_LISTED)
            raise _refusal_error(refusal, field, host, port)
        return permitted

    async def _resolve_api_server(self, port: int) -> frozenset[tuple[Address, int]]:
        """Return the addresses of the API server. Its name is resolved only if it uses this port."""
        for host, server_port in self._api_servers:
            if server_port == port and parse_address(host) is None:
                await self._resolve_cached(host, server_port)
        return self._known_api_addresses()

    def _known_api_addresses(self) -> frozenset[tuple[Address, int]]:
        addresses: set[tuple[Address, int]] = set()
        for host, port in self._api_servers:
            literal = parse_address(host)
            _, cached = (0.0, (literal,)) if literal else self._resolved.get((host, port), (0.0, ()))
            addresses |= {(address, port) for address in cached}
        return frozenset(addresses)

    async def _resolve_cached(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, cached for 60 s; empty if no lookup has succeeded yet."""
        resolved_s, addresses = self._resolved.get((host, port), (float("-inf"), ()))
        if time.monotonic() - resolved_s < RESOLVE_CACHE_S:
            return addresses
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                addresses = await self._resolve(host, port)
        except OSError:
            # Keep the addresses of the last successful lookup, after a timeout too.
            pass
        if len(self._resolved) >= _MAX_RESOLVED_HOSTS and (host, port) not in self._resolved:
            oldest = next(key for key in self._resolved if key not in self._api_servers)
            del self._resolved[oldest]
        self._resolved[host, port] = time.monotonic(), addresses
        return addresses


# Policy of a process outside a pod, without settings.
DEFAULT_EGRESS = Egress(EgressPolicy())
# Policy for URLs from the process's own environment.
UNCHECKED_EGRESS = Egress(None)


class HostSession:
    """HTTP session for the host of one URL, with pooled connections. A closed session reopens at the next call.

    Args:
        egress: Policy for outgoing connections.
        url: URL of the host.
        field: Field with the URL, for error messages.
        proxies: Kinds of environment proxy to use if there is none for the URL's scheme, such as `all`. None never uses
            a proxy.
        headers: Sent with each request.
        options: Options of aiohttp's connector, such as `ssl`, `limit` or `keepalive_timeout`.
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
        self._proxy_options: dict[str, Any] = {}

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(self, method: str, url: URL, **options: Any) -> aiohttp.ClientResponse:
        """Send a request; return its response with an unread body. Redirects are returned, not followed.

        Args:
            url: URL on the same host.
            options: Options of aiohttp's `request`.

        Raises:
            SpecInvalid: If the policy forbids the host, or the session's URL has none.
            aiohttp.ClientError, OSError: If there was no response.
            ValueError: If a header contains a line break.
        """
        session = self._session or await self._open()
        return await session.request(method, url, allow_redirects=False, **self._proxy_options, **options)

    async def _open(self) -> aiohttp.ClientSession:
        host, port = host_and_port(self._field, self._url)
        proxy = None if self._proxies is None else find_proxy(self._url, self._proxies)
        if proxy is not None:
            self._egress.check_name(self._field, host, port)
            proxy_options: dict[str, Any] = {"proxy": proxy}
            connector_options: dict[str, Any] = {}
        else:
            if _is_numeric(host):
                # Check a numeric host here, because aiohttp calls no resolver for it.
                await self._check(host, port)
            proxy_options = {}
            connector_options = {
                "resolver": _Resolver(self._egress, self._field),
                "socket_factory": self._socket_factory(host, port),
            }
        if self._session is None:
            self._proxy_options = proxy_options
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(**connector_options, **self._options),
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
        """Return a factory that refuses sockets to forbidden addresses, whichever code resolved them."""

        def open_socket(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
            family, kind, proto, _, sockaddr = info
            address = parse_address(str(sockaddr[0]))
            if address is None or not self._egress.is_permitted(host, port, address):
                raise PermissionError(f"{self._field}: {host} is not connected to")
            return socket.socket(family, kind, proto)

        return open_socket


class _Resolver(AbstractResolver):
    """Resolver for aiohttp that returns only permitted addresses."""

    def __init__(self, egress: Egress, field: str) -> None:
        self._egress = egress
        self._field = field

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the permitted addresses of a host."""
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


def host_and_port(field: str, url: str) -> tuple[str, int]:
    """Return host and port of an http or https URL.

    Raises:
        SpecInvalid: If it is another kind of URL, or has no host. The message names `field`.
    """
    try:
        # Use the parser of the HTTP client, because another parser may find a different host in the same text.
        parsed = URL(url, encoded=True)
        host, port = parsed.raw_host, parsed.port if parsed.scheme in PORTS else None
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise SpecInvalid(Reason.INVALID_SPEC, f"{field}: {url!r} has no host: use http://HOST:PORT or https://HOST")
    return host, port


def find_proxy(url: str, fallbacks: tuple[str, ...] = ()) -> URL | None:
    """Return the HTTP proxy that the environment configures for a URL.

    None if there is none, if the environment excludes the host, or if the proxy is of another kind, such as SOCKS.

    Args:
        fallbacks: Kinds of proxy to use if there is none for the URL's own scheme, such as `all`.
    """
    parts, proxies = urlsplit(url), getproxies()
    configured = next((proxies[kind] for kind in (parts.scheme, *fallbacks) if proxies.get(kind)), None)
    if configured is None or not parts.hostname or proxy_bypass(parts.hostname):
        return None
    proxy = URL(configured if "://" in configured else f"http://{configured}")
    return proxy if proxy.scheme in PORTS else None


def _is_numeric(host: str) -> bool:
    """Return whether a host is an IP address in any spelling, including `127.1` and `0x7f000001`."""
    last = host.rstrip(".").rpartition(".")[2].lower()
    return (
        ":" in host
        or last.isdecimal()
        or (last.startswith("0x") and all(char in "0123456789abcdef" for char in last[2:]))
    )


def _refusal_error(refusal: EgressRefusal, field: str, host: str, port: int) -> SpecInvalid:
    return SpecInvalid(Reason.HOST_NOT_ALLOWED, refusal_message(refusal, field, host, port))


def build_tls_context(url: str, ca_pem: str | None) -> ssl.SSLContext | None:
    """Build the TLS context for a server; None for a URL without TLS.

    Args:
        ca_pem: Trusted CA certificates in PEM. None trusts the system's.

    Raises:
        SpecInvalid: If the URL is https, and `ca_pem` contains no certificate.
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


def find_tls_failure(error: BaseException | None) -> TlsVerificationFailed | None:
    """Return the exception for a failed TLS handshake in the causes of an error; None if there is none."""
    tls_error = None
    # Take the innermost error, which is the interpreter's own and has the most detail.
    while error is not None:
        tls_error = error if isinstance(error, ssl.SSLError) and not isinstance(error, _CLOSED_ERRORS) else tls_error
        error = error.__cause__ or error.__context__
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        return TlsVerificationFailed(
            f"the server's certificate was rejected ({tls_error.verify_message}): correct the CA in"
            " spec.tls.caSecretRef, spec.url, or the server's certificate"
        )
    if tls_error is not None:
        return TlsVerificationFailed(
            f"TLS handshake with the server failed ({tls_error.reason}): correct spec.url or the server's TLS"
        )
    return None
