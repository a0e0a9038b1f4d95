"""Memory types: decay, time to live, supersession, and the fields that they require."""

from dataclasses import dataclass, replace
from typing import Literal

TtlMode = Literal["Hard", "Soft", "SoftUnlessUsed", "Session"]


@dataclass(frozen=True, slots=True)
class Ttl:
    """Time to live of the memories of a type.

    Attributes:
        mode: Hard: hidden after `days`, and removed by the next cleanup. Soft: hidden from searches and lists, and
            removed only `remove_hidden_days` later, if `Lifecycle` sets it. SoftUnlessUsed: as Soft, but a memory that
            a search ever returned stays. Session: removed with its session, and as Hard after `days` if the session is
            not ended.
        days: Age since createdAt. None only with Session.
        keep_importance: Importance from which SoftUnlessUsed never hides a memory. None: importance does not matter.
        idle_hours: Hours without use after which a session is over; only for Session without `days`. None: a session
            ends by request only.
    """

    mode: TtlMode
    days: float | None = None
    keep_importance: float | None = None
    idle_hours: float | None = None

    @property
    def removes(self) -> bool:
        """True if expired memories are removed permanently, not only hidden."""
        return self.mode in ("Hard", "Session")

    @property
    def expires(self) -> bool:
        """True if memories expire by age (`days`) or idle time (`idle_hours`), not only if their session is ended."""
        return self.days is not None or self.idle_hours is not None


WORKING = "working"
"""Type of an agent's working memory within a session. It lasts as long as the session."""

MAX_WORKING_MEMORY_SLOTS = 32

MAX_ITEM_VERSIONS = 20


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One type of memory.

    Attributes:
        half_life_days: Days after which recency has halved. None never decays (recency 1).
        boost: Factor of the combined score.
        ttl: Time to live. None never expires.
        supersede_by: Field that, with user and type, identifies a memory. A new memory with the same value supersedes
            the old one. None: writers name the id that they supersede.
        immutable: True if memories of the type are never superseded or changed, and only callers with the verb admin
            can delete them. A time to live still ends them.
        confidence: Default of a memory stored without one. None stores none, which scores as 1.
        event_types: Allowed values of `event_type`. Empty allows any.
        required: API names of the fields without which a memory of the type is rejected. Items, working memories and
            imports are exempt.
        meaning: Guidance for the person or model that chooses a type. Empty gives none.
    """

    name: str
    half_life_days: float | None
    boost: float = 1.0
    ttl: Ttl | None = None
    supersede_by: Literal["key", "subject"] | None = None
    immutable: bool = False
    confidence: float | None = None
    event_types: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    meaning: str = ""

    @property
    def never_expires(self) -> bool:
        """True if its memories stay until an administrator deletes them: immutable, and without a time to live."""
        return self.immutable and self.ttl is None

    @property
    def ends_with_session(self) -> bool:
        """True if its memories are removed when their session ends."""
        return self.ttl is not None and self.ttl.mode == "Session"


def with_session_end(type_: MemoryType, idle_hours: float | None) -> MemoryType:
    """Return the type with `idle_hours` set in its time to live if its mode is Session and it has no `days`.

    A type `working` without a time to live gets the mode Session too. Any other type is returned unchanged, as is every
    type if `idle_hours` is None.
    """
    ttl = type_.ttl or (Ttl("Session") if type_.name == WORKING else None)
    if idle_hours is None or ttl is None or ttl.mode != "Session" or ttl.days is not None:
        return type_
    return replace(type_, ttl=replace(ttl, idle_hours=idle_hours))


SESSION_USED_KEY = "sessionUsedAt"
"""Payload key of memories that end with their session: its last use, Unix ms. See `memories/session_use.py`."""
