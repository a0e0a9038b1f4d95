"""Announcements of a move of an alias, in the metadata of the alias's current target, and the durations around them.

`collections/announce.py` writes them, `agents/fence.py` reads them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.epochs import read_reopening_epoch

Json = dict[str, Any]

MOVING_KEY = "agentmemoryMoving"
"""Metadata key of a move's source: {"from", "to", "phase", "token", "embedding", "carries"}. "token" identifies the
announcement, "embedding" is set if the move changes it, "carries" is false if writes are not copied, as in a
restore."""

LEASE_S = 5.0
"""Seconds for which an API process may rely on a collection's metadata, counted from the start of its read."""

ANNOUNCE_S = 7.0
"""Minimum seconds from the announcement of a move to its final phase: the lease, and 2 s for clock drift and slow
calls."""


class Phase(StrEnum):
    """Phase of a move. `Final`: API processes hold back writes.

    From `Announced` on, they get no new lease on the space, and none on the contents unless the move copies all writes.
    """

    ANNOUNCED = "Announced"
    FINAL = "Final"


def build_announcement(
    source: str, target: str, token: str, phase: Phase, *, copies_writes: bool, embedding: Mapping[str, Any] | None
) -> Json:
    """Build the change of the source's metadata that announces a move.

    Args:
        token: Unique id of the announcement.
        copies_writes: True if everything written to the source before the move is copied to the target.
        embedding: Embedding after the move, as in a marker. None if it does not change.
    """
    moving: Json = {"from": source, "to": target, "phase": phase, "token": token}
    moving |= {} if copies_writes else {"carries": False}
    return {MOVING_KEY: moving | ({"embedding": dict(embedding)} if embedding else {})}


def is_announced(metadata: Mapping[str, Any] | None, token: str) -> bool:
    """Return whether a collection's metadata still has the announcement with this token."""
    return _announcement_in(metadata).get("token") == token


def embedding_after(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the embedding after an announced move, as in a marker. None without a move that changes it."""
    return _announcement_in(metadata).get("embedding") or None


def copies_writes(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether an announced move copies the source's writes to the target; True without a move."""
    return _announcement_in(metadata).get("carries") is not False


def must_clients_wait(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether clients of a collection wait, or will soon, because it is closed or its alias is being moved."""
    return phase_of(metadata) is not None or read_reopening_epoch(metadata) is not None


def phase_of(metadata: Mapping[str, Any] | None) -> Phase | None:
    """Return the phase of a collection's announced move, or None without one."""
    try:
        return Phase(_announcement_in(metadata)["phase"])
    except (KeyError, ValueError):
        return None


def _announcement_in(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the announcement in a collection's metadata, or an empty mapping without a valid one."""
    announcement = (metadata or {}).get(MOVING_KEY)
    return announcement if isinstance(announcement, Mapping) else {}
