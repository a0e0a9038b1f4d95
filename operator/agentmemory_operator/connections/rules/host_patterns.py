"""Host patterns in AGENTMEMORY_ALLOWED_HOSTS: NAME, `*.NAME` for one label, or an address, with an optional port.

Pure.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

WILDCARD_PREFIX = "*."
MAX_PORT = 65_535


def matches(pattern: str, host: str, port: int) -> bool:
    """Return whether a pattern matches a host.

    Args:
        pattern: See `parse_pattern`. An invalid one matches nothing.
        host: Host of a URL, in any spelling.
    """
    try:
        pattern_host, pattern_port = parse_pattern(pattern)
    except ValueError:
        return False
    if pattern_port not in (None, port):
        return False
    name = normalise_host(host)
    if pattern_host.startswith(WILDCARD_PREFIX):
        level, _, parent = name.partition(".")
        return bool(level) and parse_address(name) is None and parent == pattern_host.removeprefix(WILDCARD_PREFIX)
    return name == pattern_host


def parse_pattern(pattern: str) -> tuple[str, int | None]:
    """Return the host of a pattern, normalised by `normalise_host` after a leading `*.`, and its port or None.

    Raises:
        ValueError: If the pattern is invalid.
    """
    host, port = _split(pattern.strip())
    bare = normalise_host(host.removeprefix(WILDCARD_PREFIX))
    if not bare or any(char in bare for char in "*/@?# ") or (":" in bare and parse_address(bare) is None):
        raise ValueError(f"{pattern!r} is not a host: use NAME, *.NAME or an address, with :PORT for a single port")
    return (WILDCARD_PREFIX + bare if host.startswith(WILDCARD_PREFIX) else bare), port


def normalise_host(host: str) -> str:
    """Normalise a host: lower case, without trailing dot, brackets and zone, IDNA-encoded."""
    bare = host.strip().removeprefix("[").removesuffix("]").partition("%")[0].rstrip(".").lower()
    if (address := parse_address(bare)) is not None:
        return str(address)
    try:
        return bare if bare.isascii() else bare.encode("idna").decode()
    except UnicodeError:
        # Return the name unchanged if IDNA cannot encode it: it cannot be resolved either.
        return bare


def parse_address(host: str) -> Address | None:
    """Parse a host that is an address, without brackets and zone; None for a name."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None


def _split(pattern: str) -> tuple[str, int | None]:
    host, colon, port = pattern.rpartition(":")
    is_address = ":" in host and not host.endswith("]")
    if not colon or is_address or pattern.endswith("]"):
        return pattern, None
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= MAX_PORT):
        raise ValueError(f"{pattern!r} needs a port from 1 to {MAX_PORT} after the colon")
    return host, int(port)
