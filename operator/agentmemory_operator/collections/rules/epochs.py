"""What an alias leads to, told apart: each change of it gives the collection behind it an epoch that was never before.

Every epoch is greater than those before it, so that contents which a snapshot brings back, metadata included, are known
to be of the past.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EPOCH_KEY = "agentmemoryEpoch"
"""Key of a collection's metadata: {"number", "contents"}."""

CLOSED_KEY = "agentmemoryClosed"
"""Key of a collection's metadata while it is neither read nor written: {"restore", "since", "epoch" afterwards}."""

_MOST = 1 << 53
"""A number of JSON that every reader keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Which change of what an alias leads to brought its collection there.

    Attributes:
        number: of the change; Unix milliseconds where the clock has gone on since the last one. 0 before any.
        contents: number of the last change that did not carry over what was written: a restore, or its way back.
    """

    number: int = 0
    contents: int = 0


def epoch_in(metadata: Mapping[str, Any] | None) -> Epoch:
    """What a collection's metadata says, whatever was written there."""
    told = (metadata or {}).get(EPOCH_KEY)
    if not isinstance(told, Mapping):
        return Epoch()
    return Epoch(number=_number(told.get("number")), contents=_number(told.get("contents")))


def epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    """The change of metadata that says so."""
    return {EPOCH_KEY: {"number": epoch.number, "contents": epoch.contents}}


def next_epoch(last: Epoch, now_ms: int, *, carries: bool, least: int = 0) -> Epoch:
    """The epoch after one.

    Args:
        carries: what was written before is there afterwards.
        least: see `SlugClaim.least_epoch`.
    """
    number = max(now_ms, last.number + 1, least)
    return Epoch(number=number, contents=last.contents if carries else number)


def closing_to_json(restore: str, since: str | None, epoch: int) -> dict[str, Any]:
    """The change of metadata that closes a collection.

    Args:
        epoch: number of the one that it is opened with.
    """
    return {CLOSED_KEY: {"restore": restore, "since": since, "epoch": epoch}}


def closed_until(metadata: Mapping[str, Any] | None) -> int | None:
    """The number of the epoch that a closed collection opens with; None where it is open.

    It is 0 where the metadata has none that is valid.
    """
    told = (metadata or {}).get(CLOSED_KEY)
    if not told:
        return None
    return _number(told.get("epoch")) if isinstance(told, Mapping) else 0


def _number(told: Any) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < _MOST else 0
