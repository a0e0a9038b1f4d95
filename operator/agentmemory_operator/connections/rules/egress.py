"""Where this product may connect, when a tenant has written the address: decided for host, port and address. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from agentmemory_operator.connections.rules.hosts import Address, address_of, matches, parts_of, spelled

Network = IPv4Network | IPv6Network

SETTING = "AGENTMEMORY_ALLOWED_HOSTS"
LOCALHOST = "localhost"

_NEVER = tuple(
    ip_network(network)
    for network in (
        *("0.0.0.0/8", "::/128"),
        *("169.254.0.0/16", "fe80::/10"),
        *("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"),
        # What clouds tell a machine of itself, keys included: Amazon, Google, Alibaba, Azure, Oracle.
        *("fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
# Behind a proxy nobody here sees an address.
_NEVER_NAMES = (
    *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
    *("metadata.azure.internal", "metadata.tencentyun.com"),
)
_LOOPBACK = IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")

_MAPPED, _TRANSLATED = IPv6Network("::ffff:0:0/96"), IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE, _NAT64, _LOCAL_NAT64 = IPv6Network("::/96"), IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48")
# The last 32 bits are an IPv4 address.
_LOW = (_MAPPED, _TRANSLATED, _NAT64)
_SIX_TO_FOUR, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
# The middle of an ISATAP address.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_WORD = 0xFFFF_FFFF


class EgressRefusal(StrEnum):
    """Why something is not connected to."""

    NEVER = "never"
    LOOPBACK = "loopback"
    NOT_LISTED = "not listed"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """What the setting lists.

    Attributes:
        patterns: names and addresses, as `hosts.matches` takes them.
        networks: with the port where one alone is meant; single addresses too.
    """

    patterns: tuple[str, ...]
    networks: tuple[tuple[Network, int | None], ...]

    def names(self, host: str, port: int) -> bool:
        """Whether a host is listed as it is written."""
        return any(matches(pattern, host, port) for pattern in self.patterns)

    def holds(self, address: Address, port: int) -> bool:
        """Whether an address is listed."""
        return any(_is_in(address, network) and only in (None, port) for network, only in self.networks)

    def names_loopback(self, host: str, address: Address, port: int) -> bool:
        """Whether a loopback address is listed as what it is: a network of everything does not mean it."""
        listed = any(
            _is_own_loopback(network) and _is_in(address, network) and only in (None, port)
            for network, only in self.networks
        )
        return listed or (spelled(host) == LOCALHOST and self.names(host, port))


def parse_allowed(text: str) -> AllowedHosts | None:
    """What AGENTMEMORY_ALLOWED_HOSTS lists, None where it lists nothing.

    Raises:
        ValueError: an entry is neither a host nor a network; names it.
    """
    patterns: list[str] = []
    networks: list[tuple[Network, int | None]] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if "/" in entry:
            networks.append((_network_of(entry), None))
            continue
        host, port = parts_of(entry)
        patterns.append(entry)
        if (address := address_of(host)) is not None:
            networks.append((ip_network(address), port))
    return AllowedHosts(tuple(patterns), tuple(networks)) if patterns or networks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """What may be connected to.

    Attributes:
        allowed: None allows everything that is not refused for good.
        is_in_cluster: in a pod loopback is the pod's own, and has to be listed.
    """

    allowed: AllowedHosts | None = None
    is_in_cluster: bool = False

    def refuses(
        self, host: str, port: int, address: Address, *, api_server: Collection[tuple[Address, int]] = ()
    ) -> EgressRefusal | None:
        """Why an address that a host has is not connected to, None where it is.

        Args:
            api_server: addresses and ports of the Kubernetes API server.
        """
        forms = tuple(forms_of(address))
        if any(_is_never(form) or (form, port) in api_server for form in forms):
            return EgressRefusal.NEVER
        if self.is_in_cluster and (loopback := next(filter(_is_loopback, forms), None)) is not None:
            is_named = self.allowed is not None and self.allowed.names_loopback(host, loopback, port)
            return None if is_named else EgressRefusal.LOOPBACK
        if self.allowed is None or self.allowed.names(host, port):
            return None
        return None if any(self.allowed.holds(form, port) for form in _same(address)) else EgressRefusal.NOT_LISTED

    def refuses_unresolved(self, host: str, port: int) -> EgressRefusal | None:
        """Why a name is not even looked up: no address that it may have would be connected to."""
        if spelled(host) in _NEVER_NAMES:
            return EgressRefusal.NEVER
        if self.allowed is None or self.allowed.networks or self.allowed.names(host, port):
            return None
        return EgressRefusal.NOT_LISTED

    def refuses_name(
        self, host: str, port: int, *, api_server: Collection[tuple[str, int]] = ()
    ) -> EgressRefusal | None:
        """Why a host is not asked for behind a proxy, where its name is all that can be checked.

        Args:
            api_server: hosts and ports of the Kubernetes API server.
        """
        name = spelled(host)
        if (address := address_of(name)) is not None:
            known = {(found, at) for told, at in api_server if (found := address_of(told)) is not None}
            return self.refuses(host, port, address, api_server=known)
        if name in _NEVER_NAMES or any((spelled(told), at) == (name, port) for told, at in api_server):
            return EgressRefusal.NEVER
        is_listed = self.allowed is not None and self.allowed.names(host, port)
        if self.is_in_cluster and (name == LOCALHOST or name.endswith(f".{LOCALHOST}")):
            return None if is_listed else EgressRefusal.LOOPBACK
        return None if self.allowed is None or is_listed else EgressRefusal.NOT_LISTED


def told(refusal: EgressRefusal, field: str, host: str, port: int) -> str:
    """What is said of a refusal: what was written, never the address that was found behind it."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match refusal:
        case EgressRefusal.NEVER:
            return (
                f"{field}: connections to {place} are blocked: it is, or resolves to, an address that is never allowed "
                f"(unspecified, link-local, multicast, cloud metadata, the Kubernetes API server): use another host"
            )
        case EgressRefusal.LOOPBACK:
            return (
                f"{field}: connections to {place} are blocked: it is, or resolves to, the pod's loopback address: use "
                f"another host, or ask the administrator to list localhost or its address in {SETTING}"
            )
        case EgressRefusal.NOT_LISTED:
            return (
                f"{field}: connections to {place} are blocked: {SETTING} does not list it: ask the administrator to "
                f"add it or use another host"
            )


def forms_of(address: Address) -> Iterator[Address]:
    """Yield an address, and every IPv4 address that a gateway or a tunnel would make of it."""
    yield address
    if isinstance(address, IPv4Address):
        return
    value = int(address)
    if any(address in network for network in _LOW) or (address in _COMPATIBLE and value > 1):
        yield IPv4Address(value & _WORD)
    elif address in _LOCAL_NAT64:
        yield from _behind_gateway(address.packed)
    elif address in _SIX_TO_FOUR:
        yield IPv4Address(value >> 80 & _WORD)
    elif address in _TEREDO:
        yield from (IPv4Address(value & _WORD ^ _WORD), IPv4Address(value >> 64 & _WORD))
    if value >> 32 & _WORD in _ISATAP:
        yield IPv4Address(value & _WORD)


def _behind_gateway(packed: bytes) -> Iterator[IPv4Address]:
    """Yield what a gateway of one's own makes of an address: the length of its prefix is its own (RFC 6052)."""
    for begins in (6, 7, 8, 12):
        # An octet of zeros stands in the middle.
        octets = [packed[place] for place in range(begins, 16) if place != 8 or begins == 12][:4]
        # Of the other lengths it would be an address of nothing.
        if octets[0]:
            yield IPv4Address(bytes(octets))


def _same(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 address that it is another spelling of."""
    yield address
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        yield IPv4Address(int(address) & _WORD)


def _is_never(address: Address) -> bool:
    return any(_is_in(address, network) for network in _NEVER)


def _is_loopback(address: Address) -> bool:
    return any(_is_in(address, network) for network in _LOOPBACK)


def _is_own_loopback(network: Network) -> bool:
    return network == _LOOPBACK[1] or (isinstance(network, IPv4Network) and network.subnet_of(_LOOPBACK[0]))


def _is_in(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _network_of(entry: str) -> Network:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        raise ValueError(f"{entry!r} is not a network: use CIDR notation, for example 10.0.0.0/8 or fd00::/8") from None
