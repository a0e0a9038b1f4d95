"""Hosts as settings and annotations list them: NAME, `*.NAME` for one level, or an address; a port may follow. Pure."""

from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

LEVEL = "*."
LAST_PORT = 65_535


def matches(pattern: str, host: str, port: int) -> bool:
    """Whether a pattern means a host.

    Args:
        pattern: of `parts_of`; one that is none means nothing.
        host: as a URL has it, in any spelling.
    """
    try:
        wanted, wanted_port = parts_of(pattern)
    except ValueError:
        return False
    if wanted_port not in (None, port):
        return False
    name = spelled(host)
    if wanted.startswith(LEVEL):
        level, _, rest = name.partition(".")
        return bool(level) and address_of(name) is None and rest == wanted.removeprefix(LEVEL)
    return name == wanted


def parts_of(pattern: str) -> tuple[str, int | None]:
    """Host, as `spelled` has it, and port of a pattern.

    Raises:
        ValueError: it is none; says what is wrong.
    """
    host, port = _split(pattern.strip())
    bare = spelled(host.removeprefix(LEVEL))
    if not bare or any(sign in bare for sign in "*/@?# ") or (":" in bare and address_of(bare) is None):
        raise ValueError(f"{pattern!r} is not a host: use NAME, *.NAME or an address, with :PORT for a single port")
    return (LEVEL + bare if host.startswith(LEVEL) else bare), port


def spelled(host: str) -> str:
    """A host in the one spelling: lower case, without the last dot, brackets and zone, IDNA encoded."""
    bare = host.strip().removeprefix("[").removesuffix("]").partition("%")[0].rstrip(".").lower()
    if (address := address_of(bare)) is not None:
        return str(address)
    try:
        return bare if bare.isascii() else bare.encode("idna").decode()
    except UnicodeError:
        # No name server knows it either.
        return bare


def address_of(host: str) -> Address | None:
    """The address that a host is, without brackets and zone; None of a name."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None


def _split(pattern: str) -> tuple[str, int | None]:
    host, colon, port = pattern.rpartition(":")
    is_address = ":" in host and not host.endswith("]")
    if not colon or is_address or pattern.endswith("]"):
        return pattern, None
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= LAST_PORT):
        raise ValueError(f"{pattern!r} needs a port from 1 to {LAST_PORT} after the colon")
    return host, int(port)
