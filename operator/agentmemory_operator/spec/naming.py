"""Names of collections and of derived objects.

A collection has a stable alias that clients use, and a numbered physical name that the alias points to.
"""

import hashlib
import re
from collections.abc import Iterable
from itertools import count

ALIAS_PREFIX = "agent_memory_"

PLACEHOLDER_KEY = "placeholder"
"""Key of the ownership marker in a collection's metadata, true for a placeholder. A placeholder is an empty collection
with the name of a deleted one: Qdrant's snapshots of that name stay reachable through it.
"""

SHARD_SETS_COLLECTION = "agentmemory_shard_snapshots"
"""Reserved collection. Its metadata records which shard snapshots of a cluster belong to one snapshot."""

SCRATCH_PREFIX = "agentmemory_scratch__"
"""Prefix of scratch collections. Snapshots are restored into these temporary collections for verification. No alias
points to them.
"""

MAX_NUMBER_DIGITS = 9
"""Maximum number of digits in the number of a physical name. The operator never creates a longer number."""

# Limits of Kubernetes for the name of an object and the value of a label.
MAX_OBJECT_NAME_CHARS, MAX_LABEL_CHARS = 253, 63

# Excludes the characters that Qdrant rejects, and "." and "..", which would change the path of the URL.
_COLLECTION = re.compile(r"(?!\.\.?$)[^<>:\"/\\|?*\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_NUMBER = re.compile(rf"[0-9]{{1,{MAX_NUMBER_DIGITS}}}")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def alias_of(slug: str) -> str:
    """Return the alias by which every client addresses the agent's collection."""
    return ALIAS_PREFIX + slug


def physical_names(alias: str, last: str | None) -> tuple[str, str]:
    """Return the presumed current physical name, and the name for a new collection.

    Args:
        alias: The stable name.
        last: Physical name that the last pass reported; the new name has the next number. None before the first
            report: both names then have number 1.
    """
    return last or f"{alias}__1", next_physical(alias, (last,))


def is_collection_name(name: object) -> bool:
    """Return whether a name is valid for a collection in Qdrant and safe in the path of a URL."""
    return isinstance(name, str) and _COLLECTION.fullmatch(name) is not None


def is_snapshot_file_of(physical: str, name: object) -> bool:
    """Return whether a name is safe in a URL and starts with `PHYSICAL-`, as snapshot files of that collection do."""
    return is_collection_name(name) and isinstance(name, str) and name.startswith(f"{physical}-")


def find_slug(name: str) -> str | None:
    """Return the slug in the name of an alias or of a numbered collection. None for any other name."""
    prefix, separator, number = name.rpartition("__")
    alias = prefix if separator and _NUMBER.fullmatch(number) else name
    slug = alias.removeprefix(ALIAS_PREFIX)
    return slug if alias != slug and _SLUG.fullmatch(slug) else None


def number_of(physical: str, alias: str) -> int | None:
    """Return the number in a physical name of the alias. None for any other name."""
    name, separator, number = physical.rpartition("__")
    return int(number) if separator and name == alias and _NUMBER.fullmatch(number) else None


def next_physical(alias: str, names: Iterable[str | None]) -> str:
    """Return a physical name with a number above those of all `names`, so that no collection has or had it.

    If that number has more than 9 digits, it is the lowest unused number instead.

    Args:
        alias: The stable name, which the physical name starts with.
        names: Names of all collections (placeholders included), in statuses and of snapshots. None is ignored.
    """
    numbers = {number for name in names if name and (number := number_of(name, alias)) is not None}
    number = max(numbers, default=0) + 1
    if number >= 10**MAX_NUMBER_DIGITS:
        # Use the lowest free number. The operator never counts that far, so another writer has chosen the highest.
        number = next(candidate for candidate in count(1) if candidate not in numbers)
    return f"{alias}__{number}"


def scratch_prefix(cluster_id: str) -> str:
    """Return the name prefix of one cluster's scratch collections. It differs between clusters."""
    return f"{SCRATCH_PREFIX}{_short_hash(cluster_id)}__"


def scratch_name(cluster_id: str, uid: str) -> str:
    """Return the name of the scratch collection of the object with this uid, the same in every process."""
    return scratch_prefix(cluster_id) + _short_hash(uid)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def append_suffix(name: str, suffix: str, max_chars: int = MAX_OBJECT_NAME_CHARS) -> str:
    """Append a suffix to the name of an object, with at most `max_chars` characters.

    A digest keeps a truncated name unique.
    """
    if len(name) + len(suffix) <= max_chars:
        return name + suffix
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: max_chars - len(suffix) - 9].rstrip('-.')}-{digest}{suffix}"


def label_of(memory_name: str) -> str:
    """Return the label value by which the snapshots of an agent are found."""
    return append_suffix(memory_name, "", MAX_LABEL_CHARS)
