"""Names of collections: the alias that clients use and the numbered physical names behind it."""

import re

ALIAS_PREFIX = "agent_memory_"

PLACEHOLDER_KEY = "placeholder"
"""In the marker's place: an empty collection that keeps the snapshots of its name in reach, and nobody's memories."""

_NUMBERED = re.compile(r"^(?P<alias>.+)__(?P<number>\d+)$")


def alias_of(slug: str) -> str:
    """Return the alias that every client of the agent's collection uses."""
    return ALIAS_PREFIX + slug


def physical_names(alias: str, last: str | None) -> tuple[str, str]:
    """Return where the collection likely is, and the name that a new one gets; numbers are never used twice.

    Args:
        alias: the stable name.
        last: the physical name that the last pass reported, None at the first.
    """
    first = f"{alias}__1"
    if last is None:
        return first, first
    match = _NUMBERED.match(last)
    number = int(match["number"]) + 1 if match else 1
    return last, f"{alias}__{number}"
