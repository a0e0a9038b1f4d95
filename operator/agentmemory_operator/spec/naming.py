"""Names of collections: the alias that clients use and the numbered physical names behind it."""

import hashlib
import re
from collections.abc import Iterable
from itertools import count

ALIAS_PREFIX = "agent_memory_"

PLACEHOLDER_KEY = "placeholder"
"""In the marker's place: an empty collection that keeps the snapshots of its name in reach, and nobody's memories."""

SHARD_SETS = "agentmemory_shard_snapshots"
"""Reserved: holds on record, in its metadata, which shard snapshots of a cluster belong together."""

SCRATCH_PREFIX = "agentmemory_scratch__"
"""Reserved: collections that a snapshot is restored into to be looked at, and nobody's memories."""

MOST_DIGITS = 9
"""Of a number in a physical name: what has more, no operator has made."""

# Qdrant refuses the same characters; "." and ".." would name another part of the URL.
_COLLECTION = re.compile(r"(?!\.\.?$)[^<>:\"/\\|?*\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_NUMBER = re.compile(rf"[0-9]{{1,{MOST_DIGITS}}}")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def alias_of(slug: str) -> str:
    """The alias that every client of the agent's collection uses."""
    return ALIAS_PREFIX + slug


def physical_names(alias: str, last: str | None) -> tuple[str, str]:
    """Where the collection likely is, and the name that a new one gets; numbers are never used twice.

    Args:
        alias: the stable name.
        last: the physical name that the last pass reported, None at the first.
    """
    return last or f"{alias}__1", next_physical(alias, (last,))


def is_collection_name(name: object) -> bool:
    """Whether Qdrant may have a collection of that name, so that it can stand in a URL."""
    return isinstance(name, str) and _COLLECTION.fullmatch(name) is not None


def is_file_of(physical: str, name: object) -> bool:
    """Whether a snapshot's file bears the name that Qdrant, or we, give those of a collection."""
    return is_collection_name(name) and isinstance(name, str) and name.startswith(f"{physical}-")


def slug_in(name: str) -> str | None:
    """The agent whose alias or numbered collection has this name; None for any other name."""
    plain, found, number = name.rpartition("__")
    alias = plain if found and _NUMBER.fullmatch(number) else name
    slug = alias.removeprefix(ALIAS_PREFIX)
    return slug if alias != slug and _SLUG.fullmatch(slug) else None


def number_of(physical: str, alias: str) -> int | None:
    """The number in a physical name of an alias; None for another name."""
    name, found, number = physical.rpartition("__")
    return int(number) if found and name == alias and _NUMBER.fullmatch(number) else None


def next_physical(alias: str, names: Iterable[str | None]) -> str:
    """The next physical name; no collection has or had it.

    Args:
        names: of collections, placeholders included, of statuses, of snapshots: every name that is known of.
    """
    numbers = {number for name in names if name and (number := number_of(name, alias)) is not None}
    number = max(numbers, default=0) + 1
    if number >= 10**MOST_DIGITS:
        # Nobody comes so far by counting: a status says so that we did not write.
        number = next(free for free in count(1) if free not in numbers)
    return f"{alias}__{number}"


def scratch_prefix(cluster_id: str) -> str:
    """The prefix of one cluster's scratch collections; no other cluster's begin with it."""
    return f"{SCRATCH_PREFIX}{_short_hash(cluster_id)}__"


def scratch_name(cluster_id: str, uid: str) -> str:
    """The scratch collection of one object."""
    return scratch_prefix(cluster_id) + _short_hash(uid)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
