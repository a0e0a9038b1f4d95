"""Whether a request to a server without authentication comes from a web page of somebody else.

A page may send requests to loopback, and by a name of its own that leads there (DNS rebinding) read the answers too.
What it cannot do is choose the headers `Host`, `Origin` and `Sec-Fetch-*`: the browser writes them. Other clients send
no `Origin`, and as `Host` the address that they were given. Its port need not be ours: a browser writes the one that it
connects to, and a tunnel or a proxy on this machine has another.

Source: https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

SHOWN_CHARS = 100
# What a browser says of the page that sends: of this origin, or nobody's, as a typed address.
_OWN_SITES = (b"same-origin", b"none")


def why_foreign(headers: Mapping[bytes, bytes], *, scheme: str, is_local: bool, is_page: bool = False) -> str | None:
    """What shows that a request is not for this server, or is another site's; None of one that may pass.

    Args:
        headers: of the request, names in lower case.
        scheme: http or https, as the request came.
        is_local: the server listens on loopback, so that nobody has to call it by another name.
        is_page: what is asked for is a page to look at; following a link to it is no harm.
    """
    host = headers.get(b"host", b"").lower()
    if is_local and not is_local_host(host):
        return f"Host is {_shown(host)}: this server only serves its own machine; use localhost, 127.0.0.1 or [::1]"
    origin = headers.get(b"origin")
    # In front of a server that is not on loopback, somebody else may have ended the encryption.
    schemes = {scheme} if is_local else {scheme, "https"}
    if origin is not None and origin.lower() not in [own.encode() + b"://" + host for own in schemes]:
        return (
            f"Origin is {_shown(origin)}, not that of {_shown(host)}: requests from pages of other sites are rejected"
        )
    site = headers.get(b"sec-fetch-site")
    # Somebody follows a link, and what comes fills a window: not a frame of the other site.
    is_link = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    if site is None or site in _OWN_SITES or (is_page and is_link):
        return None
    return f"Sec-Fetch-Site is {_shown(site)}: requests from pages of other sites are rejected"


@lru_cache(maxsize=256)
def is_local_host(host: bytes) -> bool:
    """Whether a `Host` header names this machine: an address of loopback, `localhost`, or a name under it.

    The last two never come from a name server of somebody else (RFC 6761, 6.3).
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
        plain = address.removesuffix(".").lower()
        return not name.startswith("[") and (plain == "localhost" or plain.endswith(".localhost"))


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:SHOWN_CHARS])
