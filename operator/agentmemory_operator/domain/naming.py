"""Names of collections: the alias that clients use and the numbered physical names behind it."""

import hashlib
from collections.abc import Iterable

ALIAS_PREFIX = "agent_memory_"

PLACEHOLDER_KEY = "placeholder"
"""In the marker's place: an empty collection that keeps the snapshots of its name in reach, and nobody's memories."""

SHARD_SETS = "agentmemory_shard_snapshots"
"""Reserved: holds on record, in its metadata, which shard snapshots of a cluster belong together."""

SCRATCH_PREFIX = "agentmemory_scratch__"
"""Reserved: collections that a snapshot is restored into to be looked at, and nobody's memories."""


def alias_of(slug: str) -> str:
    """Return the alias that every client of the agent's collection uses."""
    return ALIAS_PREFIX + slug


def physical_names(alias: str, last: str | None) -> tuple[str, str]:
    """Return where the collection likely is, and the name that a new one gets; numbers are never used twice.

    Args:
        alias: the stable name.
        last: the physical name that the last pass reported, None at the first.
    """
    return last or f"{alias}__1", next_physical(alias, (last,))


def number_of(physical: str, alias: str) -> int | None:
    """Return the number in a physical name of an alias, None of a name that is no such one."""
    name, found, number = physical.rpartition("__")
    return int(number) if found and name == alias and number.isascii() and number.isdigit() else None


def next_physical(alias: str, names: Iterable[str | None]) -> str:
    """Return a physical name that nothing bears or bore.

    Args:
        names: of collections, placeholders included, of statuses, of snapshots: every name that is known of.
    """
    numbers = (number_of(name, alias) for name in names if name)
    return f"{alias}__{max((number for number in numbers if number is not None), default=0) + 1}"


def scratch_prefix(cluster_id: str) -> str:
    """Return what the scratch collections of one cluster begin with; no other cluster's do."""
    return f"{SCRATCH_PREFIX}{_short_hash(cluster_id)}__"


def scratch_name(cluster_id: str, uid: str) -> str:
    """Return the scratch collection of one object."""
    return scratch_prefix(cluster_id) + _short_hash(uid)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
