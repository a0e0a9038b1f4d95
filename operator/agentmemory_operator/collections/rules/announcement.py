"""What a collection says of the move of its alias that is ahead, and how long a process may rely on what it said.

`collections/announce.py` says it, `agents/fence.py` reads it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.epochs import closed_until

Json = dict[str, Any]

MOVING_KEY = "agentmemoryMoving"
"""Key of the source's metadata while its alias is about to be moved: {"from", "to", "phase", "token" of that
announcement, "embedding" after it, "carries": false where what is written is not carried over, as in a restore}."""

LEASE_S = 5.0
"""For how many seconds an API process may rely on what a collection's metadata said."""

ANNOUNCE_S = 7.0
"""Seconds between the announcement of a move and its final pass: the lease, and what clocks and calls may differ by."""


class Phase(StrEnum):
    """What the source says of the move."""

    ANNOUNCED = "Announced"
    FINAL = "Final"


def announced(
    source: str, target: str, token: str, phase: Phase, *, carries: bool, embedding: Mapping[str, Any] | None
) -> Json:
    """The change of the source's metadata that announces a move.

    Args:
        token: tells the announcement from every other.
        carries: what is written in the source until then is in the target.
        embedding: in force afterwards, as a marker has it; None is the same as before.
    """
    moving: Json = {"from": source, "to": target, "phase": phase, "token": token}
    moving |= {} if carries else {"carries": False}
    return {MOVING_KEY: moving | ({"embedding": dict(embedding)} if embedding else {})}


def is_announced(metadata: Mapping[str, Any] | None, token: str) -> bool:
    """Whether a collection still says what was announced with a token."""
    return _told(metadata).get("token") == token


def embedding_after(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The embedding that a move brings, as a marker has it; None where it brings none."""
    return _told(metadata).get("embedding") or None


def carries(metadata: Mapping[str, Any] | None) -> bool:
    """Whether what is written in a collection whose alias is about to move is carried over."""
    return _told(metadata).get("carries") is not False


def is_held(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a collection says that its clients are held, or are about to be."""
    return phase_of(metadata) is not None or closed_until(metadata) is not None


def phase_of(metadata: Mapping[str, Any] | None) -> Phase | None:
    """How near the move of a collection's alias is, None where there is none ahead."""
    try:
        return Phase(_told(metadata)["phase"])
    except (KeyError, ValueError):
        return None


def _told(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a collection says of a move; nothing where it says none that can be read."""
    told = (metadata or {}).get(MOVING_KEY)
    return told if isinstance(told, Mapping) else {}
