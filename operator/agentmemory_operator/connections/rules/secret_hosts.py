"""Where the value of a Secret may go: the hosts that its annotation lists, against those that a spec names. Pure.

Nothing of the annotation is parsed: the few ways to write a place are made, and looked for among its items. So what is
malformed matches nothing.
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

HOSTS = f"{GROUP}/hosts"
"""On a Secret: hosts that its values may be sent to, separated by commas; `*.` stands for one level."""

USUAL_PORTS = {"http": 80, "https": 443}
MAX_PORT, MAX_NAME, MAX_LABEL = 65_535, 253, 63
FIRST_SIGN, DELETE = 0x20, 0x7F
# Of what a message names: an event of more than 1,024 characters would be cut within its command.
MAX_NAMED = 150

# So strict that every client reads the same host out of it: no user, and nothing before the path but a port.
_URL = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[!-~]*)?")
_BRACKETED = re.compile(r"\[([0-9a-f:.]+)\](?::([0-9]{1,5}))?")
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A host and a port of it.

    Attributes:
        host: lower case, without a dot at its end; an IPv6 address in brackets, in its shortest form.
        is_usual: the port is the scheme's own.
    """

    host: str
    port: int
    is_usual: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.host if self.is_usual else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GoesTo:
    """The places that a value is sent to, sorted; at least one."""

    places: tuple[HostPort, ...]


class Exempt(Enum):
    """Values that no annotation has to let go."""

    NOWHERE = "nowhere"
    """It stays in this process: certificates of authorities, keys that sign."""

    BY_HAND = "by hand"
    """The person who runs a command, and reads the Secret with rights of their own, has typed where it goes."""


Destination = GoesTo | Exempt
NOWHERE, BY_HAND = Exempt.NOWHERE, Exempt.BY_HAND


@dataclass(frozen=True, slots=True)
class KeptSecret:
    """A Secret as it was read, at once.

    Attributes:
        values: by key; never logged.
        hosts: its annotation, None where it has none.
    """

    values: Mapping[str, str] = field(repr=False)
    hosts: str | None = None


def goes_to(url: str, *more: str) -> GoesTo:
    """Where a value goes that is sent to URLs.

    Raises:
        SpecInvalid: one is no HTTP URL of a host.
    """
    return GoesTo(tuple(sorted({_place_of(each) for each in (url, *more)})))


def may_exist(name: str, key: str) -> bool:
    """Whether Kubernetes takes the names of a Secret and of a key: others would make another path of them."""
    return bool(len(name) <= MAX_NAME and _SECRET_NAME.fullmatch(name) and _SECRET_KEY.fullmatch(key))


def unlisted(to: Destination, hosts: str | None) -> tuple[HostPort, ...]:
    """The places that a Secret's annotation does not list.

    Args:
        hosts: the annotation, None where there is none.
    """
    if isinstance(to, Exempt):
        return ()
    items = [item.strip() for item in (hosts or "").split(",")]
    written = {item.lower() for item in items if item.isascii()}
    return tuple(place for place in to.places if not _is_listed(place, written))


def refusal(namespace: str, name: str, places: tuple[HostPort, ...], hosts: str | None) -> str:
    """What is told where a Secret's values may not go, with the command that lets them.

    Who may not read the Secret learns nothing of its annotation but that it does not list these places: the command
    reads by itself what it lists.
    """
    named, rest = _named(places)
    secret = f"kubectl -n {namespace}"
    jsonpath = r"jsonpath='{.metadata.annotations.agentmemory\.dev/hosts}'"
    listed = f"$({secret} get secret {name} -o {jsonpath})," if hosts and hosts.strip(" ,") else ""
    value = f'"{HOSTS}={listed}{named}"' if listed else shlex.quote(f"{HOSTS}={named}")
    more = f" (and {rest} more hosts, which the next message names)" if rest else ""
    return (
        f"Secret {namespace}/{name} must not be sent to {named.replace(',', ', ')}{more}: its annotation {HOSTS} does"
        f" not list it. If the owner of the Secret wants its values to be sent there:"
        f" {secret} annotate secret {name} {value} --overwrite"
    )


def can_be_sent(value: str) -> bool:
    """Whether a header can carry a value: a line's end, as of a file that was read, would end it."""
    return not any(ord(sign) < FIRST_SIGN or ord(sign) == DELETE for sign in value)


def unsendable(namespace: str, name: str, key: str) -> str:
    """What is told of a value that no header can carry; nothing of the value."""
    return (
        f"Secret {namespace}/{name}: the value of {key!r} contains a line break or another control character, which no"
        " request can carry: store it as one line, as --from-literal does"
    )


def _named(places: tuple[HostPort, ...]) -> tuple[str, int]:
    """As many places as a message has room for, at least one, and how many are left."""
    names = [str(place) for place in places]
    named = names[:1]
    for name in names[1:]:
        if len(",".join((*named, name))) > MAX_NAMED:
            break
        named.append(name)
    return ",".join(named), len(names) - len(named)


def _place_of(url: str) -> HostPort:
    found = _URL.fullmatch(url)
    host = _host_of(found[2].lower()) if found else None
    port = int(found[3]) if found and found[3] else USUAL_PORTS.get(found[1], 0) if found else 0
    if found is None or host is None or not 0 < port <= MAX_PORT:
        raise SpecInvalid(
            Reason.INVALID_SPEC, f"{url[:MAX_NAMED]!r} is not an http:// or https:// URL: no Secret is sent to it"
        )
    return HostPort(host, port, port == USUAL_PORTS[found[1]])


def _host_of(written: str) -> str | None:
    if written.startswith("["):
        return _address(written[1:-1])
    name = written.removesuffix(".")
    labels = name.split(".")
    return name if len(name) <= MAX_NAME and all(0 < len(label) <= MAX_LABEL for label in labels) else None


def _address(written: str) -> str | None:
    """An IPv6 address in brackets and in its shortest form, None of what is none."""
    try:
        return f"[{IPv6Address(written).compressed}]"
    except ValueError:
        return None


def _is_listed(place: HostPort, written: set[str]) -> bool:
    if place.host.startswith("["):
        return any(_is_address(item, place) for item in written if item.startswith("["))
    return not written.isdisjoint(_ways_to_write(place))


def _ways_to_write(place: HostPort) -> Iterator[str]:
    for name in (place.host, *_wildcards(place.host)):
        for ended in (name, f"{name}."):
            yield ended
            yield f"{ended}:{place.port}"


def _wildcards(host: str) -> Iterator[str]:
    """Yield what stands for a host and its neighbours: of an address nothing, nor of a name right below the top."""
    _, _, parent = host.partition(".")
    is_address = host.rpartition(".")[2].isdecimal()
    if "." in parent and not is_address:
        yield f"*.{parent}"


def _is_address(item: str, place: HostPort) -> bool:
    found = _BRACKETED.fullmatch(item)
    return found is not None and _address(found[1]) == place.host and found[2] in (None, str(place.port))
