"""Egress rules: which hosts, ports and addresses this product may connect to if a tenant has chosen them. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from agentmemory_operator.connections.rules.host_patterns import (
    Address,
    matches,
    normalise_host,
    parse_address,
    parse_pattern,
)

Network = IPv4Network | IPv6Network

SETTING = "AGENTMEMORY_ALLOWED_HOSTS"
LOCALHOST = "localhost"

_NEVER = tuple(
    ip_network(network)
    for network in (
        *("0.0.0.0/8", "::/128"),
        *("169.254.0.0/16", "fe80::/10"),
        *("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"),
        # Metadata services of clouds, which return credentials: Amazon, Google, Alibaba, Azure, Oracle.
        *("fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
# Names of metadata services. They are refused by name, because a proxy resolves names outside this process.
_NEVER_NAMES = (
    *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
    *("metadata.azure.internal", "metadata.tencentyun.com"),
)
_LOOPBACK = IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")

_MAPPED, _TRANSLATED = IPv6Network("::ffff:0:0/96"), IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE, _NAT64, _LOCAL_NAT64 = IPv6Network("::/96"), IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48")
# Networks whose last 32 bits are an IPv4 address.
_LOW = (_MAPPED, _TRANSLATED, _NAT64)
_SIX_TO_FOUR, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
# Bits 32 to 63 of an ISATAP address, counted from its end.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_WORD = 0xFFFF_FFFF


class EgressRefusal(StrEnum):
    """Reason for refusing a connection: the address is never allowed, the pod's loopback, or not listed."""

    NEVER = "never"
    LOOPBACK = "loopback"
    NOT_LISTED = "not listed"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Entries of AGENTMEMORY_ALLOWED_HOSTS.

    Attributes:
        patterns: Names and addresses, in the syntax of `host_patterns.matches`.
        networks: Networks and single addresses, each with a port or None for all ports.
    """

    patterns: tuple[str, ...]
    networks: tuple[tuple[Network, int | None], ...]

    def lists_name(self, host: str, port: int) -> bool:
        """Return whether a pattern matches a host as it is written, without resolving it."""
        return any(matches(pattern, host, port) for pattern in self.patterns)

    def lists_address(self, address: Address, port: int) -> bool:
        """Return whether a listed network contains an address, for this port or all ports."""
        return any(_is_in(address, network) and network_port in (None, port) for network, network_port in self.networks)

    def lists_loopback(self, host: str, address: Address, port: int) -> bool:
        """Return whether a loopback address is listed explicitly, or is that of a listed `localhost`.

        A network that contains more than loopback does not count.
        """
        is_listed = any(
            _is_own_loopback(network) and _is_in(address, network) and network_port in (None, port)
            for network, network_port in self.networks
        )
        return is_listed or (normalise_host(host) == LOCALHOST and self.lists_name(host, port))


def parse_allowed(text: str) -> AllowedHosts | None:
    """Parse AGENTMEMORY_ALLOWED_HOSTS, comma-separated hosts and networks; None if it has no entry.

    Raises:
        ValueError: If an entry is neither a host nor a network, or has an invalid port. The message quotes it.
    """
    patterns: list[str] = []
    networks: list[tuple[Network, int | None]] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if "/" in entry:
            networks.append((_network_of(entry), None))
            continue
        host, port = parse_pattern(entry)
        patterns.append(entry)
        if (address := parse_address(host)) is not None:
            networks.append((ip_network(address), port))
    return AllowedHosts(tuple(patterns), tuple(networks)) if patterns or networks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """Hosts and addresses that may be connected to.

    Attributes:
        allowed: Listed hosts. None permits everything that is not always refused.
        is_in_cluster: True in a pod. Loopback is then the pod's own and must be listed.
    """

    allowed: AllowedHosts | None = None
    is_in_cluster: bool = False

    def find_refusal(
        self, host: str, port: int, address: Address, *, api_server: Collection[tuple[Address, int]] = ()
    ) -> EgressRefusal | None:
        """Return why a resolved address of a host is refused, or None.

        Args:
            api_server: Addresses and ports of the Kubernetes API server.
        """
        forms = tuple(equivalent_addresses(address))
        if any(_is_never(form) or (form, port) in api_server for form in forms):
            return EgressRefusal.NEVER
        if self.is_in_cluster and (loopback := next(filter(_is_loopback, forms), None)) is not None:
            is_listed = self.allowed is not None and self.allowed.lists_loopback(host, loopback, port)
            return None if is_listed else EgressRefusal.LOOPBACK
        if self.allowed is None or self.allowed.lists_name(host, port):
            return None
        return (
            None if any(self.allowed.lists_address(form, port) for form in _same(address)) else EgressRefusal.NOT_LISTED
        )

    def find_unresolved_refusal(self, host: str, port: int) -> EgressRefusal | None:
        """Return why a name is refused without resolving it, or None if it must be resolved to decide.

        A name is refused if it is forbidden, or if the list names neither it nor any address.
        """
        if normalise_host(host) in _NEVER_NAMES:
            return EgressRefusal.NEVER
        if self.allowed is None or self.allowed.networks or self.allowed.lists_name(host, port):
            return None
        return EgressRefusal.NOT_LISTED

    def find_name_refusal(
        self, host: str, port: int, *, api_server: Collection[tuple[str, int]] = ()
    ) -> EgressRefusal | None:
        """Return why a host is refused if a proxy resolves it, so that only its name can be checked. None if allowed.

        Args:
            api_server: Hosts and ports of the Kubernetes API server.
        """
        name = normalise_host(host)
        if (address := parse_address(name)) is not None:
            addresses = {(ip, api_port) for entry, api_port in api_server if (ip := parse_address(entry)) is not None}
            return self.find_refusal(host, port, address, api_server=addresses)
        if name in _NEVER_NAMES or any(
            (normalise_host(entry), api_port) == (name, port) for entry, api_port in api_server
        ):
            return EgressRefusal.NEVER
        is_listed = self.allowed is not None and self.allowed.lists_name(host, port)
        if self.is_in_cluster and (name == LOCALHOST or name.endswith(f".{LOCALHOST}")):
            return None if is_listed else EgressRefusal.LOOPBACK
        return None if self.allowed is None or is_listed else EgressRefusal.NOT_LISTED


def refusal_message(refusal: EgressRefusal, field: str, host: str, port: int) -> str:
    """Return the message of a refusal. It repeats what the tenant has written, never the resolved address."""
    dest = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match refusal:
        case EgressRefusal.NEVER:
            return (
                f"{field}: connections to {dest} are blocked: it is, or resolves to, an address that is never allowed "
                f"(unspecified, link-local, multicast, cloud metadata, the Kubernetes API server): use another host"
            )
        case EgressRefusal.LOOPBACK:
            return (
                f"{field}: connections to {dest} are blocked: it is, or resolves to, the pod's loopback address: use "
                f"another host, or ask the administrator to list localhost or its address in {SETTING}"
            )
        case EgressRefusal.NOT_LISTED:
            return (
                f"{field}: connections to {dest} are blocked: {SETTING} does not list it: ask the administrator to "
                f"add it or use another host"
            )


def equivalent_addresses(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 addresses that the known gateways and tunnels may derive from it."""
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
    """Yield the IPv4 address that a local NAT64 gateway derives, for each possible prefix length (RFC 6052)."""
    for start in (6, 7, 8, 12):
        # Skip octet 8, which is reserved: with prefixes of up to 64 bits, the IPv4 address continues after it.
        octets = [packed[index] for index in range(start, 16) if index != 8 or start == 12][:4]
        # Skip 0.0.0.0/8, which has no hosts: a wrong prefix length often leads there, and its refusal would refuse the
        # whole address.
        if octets[0]:
            yield IPv4Address(bytes(octets))


def _same(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 address that it contains if it is IPv4-mapped or of the common NAT64 prefix."""
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
