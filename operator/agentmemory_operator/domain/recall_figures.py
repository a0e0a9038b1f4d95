"""What probe searches of a rebuild came to: the figures, and how record and status have them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What the probes came to; shares of 0..1, None where they were not measured.

    Attributes:
        probes: searches of each kind.
        neighbours: of the source's nearest that are the target's too.
        found_before, found_after: only where the memories were embedded anew.
        index_before, index_after: of the source's and of the target's index.
    """

    probes: int
    neighbours: float | None = None
    found_before: float | None = None
    found_after: float | None = None
    index_before: float | None = None
    index_after: float | None = None


_NAMES = {
    "found_before": "foundBefore",
    "found_after": "foundAfter",
    "index_before": "indexBefore",
    "index_after": "indexAfter",
}


def recall_to_json(recall: Recall) -> Json:
    """Return the figures as status and record have them; what was not measured is left out."""
    return {_NAMES.get(name, name): value for name, value in asdict(recall).items() if value is not None}


def recall_from_json(told: Mapping[str, Any] | None) -> Recall | None:
    """Return the figures on record, None where there are none."""
    names = {told_as: name for name, told_as in _NAMES.items()}
    values = {names.get(key, key): value for key, value in (told or {}).items()}
    known = {name: values[name] for name in Recall.__slots__ if name in values}
    return Recall(**known) if "probes" in known else None
