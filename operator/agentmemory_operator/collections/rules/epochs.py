"""Epochs number the changes of an alias's target.

Each change gives the new target a higher number than any target before. So metadata that a recovered snapshot brings
back has a lower number, and is recognised as outdated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EPOCH_KEY = "agentmemoryEpoch"
"""Metadata key: {"number", "contents"}; see `Epoch`."""

CLOSED_KEY = "agentmemoryClosed"
"""Metadata key of a collection that is neither read nor written: {"restore", "since", "epoch"}.

It reopens with "epoch"."""

_TOO_LARGE = 1 << 53
"""Exclusive upper bound of integers that every JSON parser represents exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The change of the alias that made the collection its target.

    Attributes:
        number: Number of the change: the time in Unix milliseconds, the previous number plus one, or the minimum of the
            slug's claim, whichever is highest. 0 before any change.
        contents: Number of the last change that did not copy all writes: a restore, or its rollback.
    """

    number: int = 0
    contents: int = 0


def read_epoch(metadata: Mapping[str, Any] | None) -> Epoch:
    """Read the epoch from a collection's metadata; missing or invalid numbers are 0."""
    stored = (metadata or {}).get(EPOCH_KEY)
    if not isinstance(stored, Mapping):
        return Epoch()
    return Epoch(number=_number(stored.get("number")), contents=_number(stored.get("contents")))


def epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    """Build the change of metadata that stores an epoch."""
    return {EPOCH_KEY: {"number": epoch.number, "contents": epoch.contents}}


def next_epoch(last: Epoch, now_ms: int, *, copies_writes: bool, min_number: int = 0) -> Epoch:
    """Return the epoch of the next change.

    Args:
        now_ms: Current time, Unix milliseconds.
        copies_writes: True if the change copies all earlier writes.
        min_number: Minimum number; see `SlugClaim.min_epoch`.
    """
    number = max(now_ms, last.number + 1, min_number)
    return Epoch(number=number, contents=last.contents if copies_writes else number)


def closed_to_json(restore: str, since: str | None, epoch: int) -> dict[str, Any]:
    """Build the change of metadata that closes a collection.

    Args:
        restore: Kind, namespace and name of the restore that closes it: `MemoryRestore NAMESPACE/NAME`.
        since: Time of the closing from the restore's status, RFC 3339. None if it has none.
        epoch: Number of the epoch with which it reopens.
    """
    return {CLOSED_KEY: {"restore": restore, "since": since, "epoch": epoch}}


def read_reopening_epoch(metadata: Mapping[str, Any] | None) -> int | None:
    """Return the number of the epoch with which a closed collection reopens, or None if it is open.

    The number is 0 if the metadata has no valid one.
    """
    stored = (metadata or {}).get(CLOSED_KEY)
    if not stored:
        return None
    return _number(stored.get("epoch")) if isinstance(stored, Mapping) else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _TOO_LARGE else 0
