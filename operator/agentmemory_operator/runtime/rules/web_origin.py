"""Detect requests of foreign web pages to a server without authentication.

Threat: any web page can send requests to loopback. By DNS rebinding, its own host name resolves to loopback, and it can
read the responses too. A page cannot set the headers `Host`, `Origin` and `Sec-Fetch-*`: the browser writes them. Other
clients send no `Origin`, and their `Host` is the address that they were configured with.

The port in `Host` is not compared with the server's own port. A browser sends the port that it connects to, and a
tunnel or proxy on this machine has another port.

Source: https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

MAX_QUOTED_CHARS = 100
# Values of `Sec-Fetch-Site` for a request of the same origin, and for one that no page caused, such as a typed URL.
_OWN_SITES = (b"same-origin", b"none")


def foreign_reason(headers: Mapping[bytes, bytes], *, scheme: str, is_local: bool, is_page: bool = False) -> str | None:
    """Return the reason why a request is foreign, or None if it may pass.

    Args:
        headers: Request headers, names in lower case.
        scheme: Scheme of the request as received: http or https.
        is_local: True if the server listens on loopback. `Host` must then name this machine; see `is_local_host`.
        is_page: True if the request only reads a page to display; a link to it from another site is harmless.
    """
    host = headers.get(b"host", b"").lower()
    if is_local and not is_local_host(host):
        return f"Host is {_quoted(host)}: this server only serves its own machine; use localhost, 127.0.0.1 or [::1]"
    origin = headers.get(b"origin")
    # Accept https too if the server is not on loopback: a proxy may terminate TLS in front of it.
    schemes = {scheme} if is_local else {scheme, "https"}
    if origin is not None and origin.lower() not in [own_scheme.encode() + b"://" + host for own_scheme in schemes]:
        return (
            f"Origin is {_quoted(origin)}, not that of {_quoted(host)}: requests from pages of other sites are rejected"
        )
    site = headers.get(b"sec-fetch-site")
    # Accept a navigation by a link, form or script: the response fills a window, and the other site cannot read it.
    is_link = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    if site is None or site in _OWN_SITES or (is_page and is_link):
        return None
    return f"Sec-Fetch-Site is {_quoted(site)}: requests from pages of other sites are rejected"


@lru_cache(maxsize=256)
def is_local_host(host: bytes) -> bool:
    """Return whether a `Host` header names this machine: a loopback address, `localhost`, or a name below it.

    Resolvers return loopback for `localhost` and names below it, and should not query a DNS server (RFC 6761, 6.3).
    """
    name = host.decode("latin-1")
    bracketed, is_closed, port = name.removeprefix("[").partition("]")
    if name.startswith("["):
        address, port = bracketed if is_closed else "", port.removeprefix(":")
    else:
        address, _, port = name.partition(":")
    if port and not port.isdecimal():
        return False
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        hostname = address.removesuffix(".").lower()
        return not name.startswith("[") and (hostname == "localhost" or hostname.endswith(".localhost"))


def _quoted(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:MAX_QUOTED_CHARS])
