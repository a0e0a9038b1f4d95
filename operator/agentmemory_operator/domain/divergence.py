"""What of a rebuild's source is not in its target as it is there. Pure.

Before the move nobody but the operator writes into the target, so the source is the truth, whatever the target says:

| the target's point | is |
|---|---|
| is not there | missing |
| has a lower `rev`, or none | older |
| has another `rev` or `updatedAt` otherwise | strayed: it went another way, and is removed and carried anew |
| is not in the source | gone: really deleted there |

Points go another way where one was purged and written anew under its id, and in a collection that was live before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION_KEYS = ("rev", "updatedAt")
"""What of a payload tells two versions of a point apart."""

NO_REV = 0
"""Stands for the revision of what none of our writers wrote; theirs begin at 1."""

PointId = str | int
Rows = Mapping[PointId, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How a target differs from its source.

    Attributes:
        carried: missing and older ones.
        strayed: with the revision that each has in the target.
    """

    carried: tuple[PointId, ...] = ()
    strayed: Mapping[PointId, int | None]


def divergence(source: Rows, target: Rows) -> Divergence:
    """Return what of the source's points the target lacks, or has otherwise.

    Args:
        source, target: points of the same stretch or page; of those of the target that are not among the source's
            nothing is said.
    """
    carried, strayed = [], {}
    for id_, row in source.items():
        other = target.get(id_)
        if other is None or rev_of(other) < rev_of(row):
            carried.append(id_)
        elif any(other.get(key) != row.get(key) for key in VERSION_KEYS):
            strayed[id_] = other.get("rev")
    return Divergence(carried=tuple(carried), strayed=strayed)


def rev_of(row: Mapping[str, Any]) -> int:
    """Return a point's revision, 0 where it has none."""
    rev: int = row.get("rev") or NO_REV
    return rev
