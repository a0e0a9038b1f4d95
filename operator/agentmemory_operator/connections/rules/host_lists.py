"""Match the hosts that a Secret's annotation lists with those that its value would be sent to. Pure.

Names in the annotation are not parsed. Instead, every accepted spelling of a host is generated and looked up among the
items, so a malformed item matches nothing. Only IPv6 addresses in brackets are parsed, in any spelling.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.spec.kinds.conditions import Reason

HOSTS_ANNOTATION = f"{GROUP}/hosts"
"""Annotation of a Secret: comma-separated hosts that its values may be sent to. `*.` matches one label."""

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT, MAX_NAME_CHARS, MAX_LABEL_CHARS = 65_535, 253, 63
FIRST_SIGN, DELETE = 0x20, 0x7F
# Maximum characters of hosts in a message; the first host is never cut. An event has at most 1,024 characters, and the
# command comes last.
MAX_LISTED_CHARS = 150

# Accepts no user info, and only a port before the path, so that every client reads the same host.
_URL = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[!-~]*)?")
_BRACKETED = re.compile(r"\[([0-9a-f:.]+)\](?::([0-9]{1,5}))?")
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A host and port.

    Attributes:
        host: Lower case, without a trailing dot. An IPv6 address is in brackets, in its shortest form.
        is_default_port: True if the port is the default of the scheme.
    """

    host: str
    port: int
    is_default_port: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.host if self.is_default_port else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Destinations:
    """The destinations of a value, sorted. There is at least one."""

    host_ports: tuple[HostPort, ...]


class Exempt(Enum):
    """Destinations that need no annotation."""

    NOWHERE = "nowhere"
    """The value stays in this process: CA certificates, signing keys."""

    BY_HAND = "by hand"
    """The user of the command line, who reads the Secret with their own rights, has entered the URL."""


Destination = Destinations | Exempt
NOWHERE, BY_HAND = Exempt.NOWHERE, Exempt.BY_HAND


@dataclass(frozen=True, slots=True)
class AnnotatedSecret:
    """A Secret with its annotation, from a single read.

    Attributes:
        values: Values by key; never logged.
        hosts: Its annotation. None without one.
    """

    values: Mapping[str, str] = field(repr=False)
    hosts: str | None = None


def destinations_of(url: str, *more: str) -> Destinations:
    """Return the destinations of a value that is sent to URLs.

    Raises:
        SpecInvalid: If one is not an http:// or https:// URL with a valid host and port and without user info.
    """
    return Destinations(tuple(sorted({_place_of(target) for target in (url, *more)})))


def is_valid_reference(name: str, key: str) -> bool:
    """Return whether the names of a Secret and a key have only characters that Kubernetes permits there.

    Other characters could change the path of the request.
    """
    return bool(len(name) <= MAX_NAME_CHARS and _SECRET_NAME.fullmatch(name) and _SECRET_KEY.fullmatch(key))


def find_unlisted(to: Destination, hosts: str | None) -> tuple[HostPort, ...]:
    """Return the destinations that a Secret's annotation does not list.

    Args:
        hosts: The annotation. None without one.
    """
    if isinstance(to, Exempt):
        return ()
    items = [item.strip() for item in (hosts or "").split(",")]
    written = {item.lower() for item in items if item.isascii()}
    return tuple(host_port for host_port in to.host_ports if not _is_listed(host_port, written))


def refusal_message(namespace: str, name: str, host_ports: tuple[HostPort, ...], hosts: str | None) -> str:
    """Return the message for a Secret that may not be sent to hosts, with the command that permits it.

    Of the annotation, the message reveals only whether it lists other hosts. The command itself reads these.

    Args:
        host_ports: Hosts that the annotation does not list.
        hosts: The annotation. None without one.
    """
    named, remaining = _named(host_ports)
    secret = f"kubectl -n {namespace}"
    jsonpath = r"jsonpath='{.metadata.annotations.agentmemory\.dev/hosts}'"
    listed = f"$({secret} get secret {name} -o {jsonpath})," if hosts and hosts.strip(" ,") else ""
    value = f'"{HOSTS_ANNOTATION}={listed}{named}"' if listed else shlex.quote(f"{HOSTS_ANNOTATION}={named}")
    more = f" (and {remaining} more hosts, which the next message names)" if remaining else ""
    return (
        f"Secret {namespace}/{name} must not be sent to {named.replace(',', ', ')}{more}: its annotation"
        f" {HOSTS_ANNOTATION} does not list it. If the owner of the Secret wants its values to be sent there:"
        f" {secret} annotate secret {name} {value} --overwrite"
    )


def can_be_sent(value: str) -> bool:
    """Return whether a value can be part of a header. A line break, as at the end of a file, would end the header."""
    return not any(ord(char) < FIRST_SIGN or ord(char) == DELETE for char in value)


def unsendable_message(namespace: str, name: str, key: str) -> str:
    """Return the message for a value that no header can contain, without the value."""
    return (
        f"Secret {namespace}/{name}: the value of {key!r} contains a line break or another control character, which no"
        " request can carry: store it as one line, as --from-literal does"
    )


def _named(host_ports: tuple[HostPort, ...]) -> tuple[str, int]:
    """Return as many hosts as a message has space for, at least one, and the number of the others."""
    names = [str(host_port) for host_port in host_ports]
    named = names[:1]
    for name in names[1:]:
        if len(",".join((*named, name))) > MAX_LISTED_CHARS:
            break
        named.append(name)
    return ",".join(named), len(names) - len(named)


def _place_of(url: str) -> HostPort:
    match = _URL.fullmatch(url)
    host = _host_of(match[2].lower()) if match else None
    port = int(match[3]) if match and match[3] else DEFAULT_PORTS.get(match[1], 0) if match else 0
    if match is None or host is None or not 0 < port <= MAX_PORT:
        raise SpecInvalid(
            Reason.INVALID_SPEC,
            f"{url[:MAX_LISTED_CHARS]!r} is not an http:// or https:// URL: no Secret is sent to it",
        )
    return HostPort(host, port, port == DEFAULT_PORTS[match[1]])


def _host_of(text: str) -> str | None:
    if text.startswith("["):
        return _address(text[1:-1])
    name = text.removesuffix(".")
    labels = name.split(".")
    return name if len(name) <= MAX_NAME_CHARS and all(0 < len(label) <= MAX_LABEL_CHARS for label in labels) else None


def _address(text: str) -> str | None:
    """Return an IPv6 address in brackets in its shortest form, or None if it is invalid."""
    try:
        return f"[{IPv6Address(text).compressed}]"
    except ValueError:
        return None


def _is_listed(host_port: HostPort, written: set[str]) -> bool:
    if host_port.host.startswith("["):
        return any(_is_address(item, host_port) for item in written if item.startswith("["))
    return not written.isdisjoint(_ways_to_write(host_port))


def _ways_to_write(host_port: HostPort) -> Iterator[str]:
    for name in (host_port.host, *_wildcards(host_port.host)):
        for spelling in (name, f"{name}."):
            yield spelling
            yield f"{spelling}:{host_port.port}"


def _wildcards(host: str) -> Iterator[str]:
    """Yield the wildcard that matches a host: none for an address or directly below a top-level domain."""
    _, _, parent = host.partition(".")
    is_address = host.rpartition(".")[2].isdecimal()
    if "." in parent and not is_address:
        yield f"*.{parent}"


def _is_address(item: str, host_port: HostPort) -> bool:
    match = _BRACKETED.fullmatch(item)
    return match is not None and _address(match[1]) == host_port.host and match[2] in (None, str(host_port.port))
