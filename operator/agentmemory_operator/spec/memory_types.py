"""Memory types and their rules."""

from dataclasses import dataclass, replace
from typing import Literal

TtlMode = Literal["Hard", "Soft", "SoftUnlessUsed", "Session"]


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long memories of a type answer.

    Attributes:
        mode: Hard: gone, and removed by the next cleanup. Soft: hidden from searches and lists, and kept.
            SoftUnlessUsed: as Soft, but what a search ever returned stays. Session: gone with its session, and as Hard
            after `days` where nobody ends it.
        days: since createdAt; None only with Session.
        idle_hours: of Session without days: a session that was not used for so long is over; None only when ended.
        keep_importance: SoftUnlessUsed hides only what is less important; None hides whatever it is.
    """

    mode: TtlMode
    days: float | None = None
    keep_importance: float | None = None
    idle_hours: float | None = None

    @property
    def removes(self) -> bool:
        """Whether memories go for good, not just out of sight."""
        return self.mode in ("Hard", "Session")

    @property
    def ends(self) -> bool:
        """Whether time alone takes memories out of answers."""
        return self.days is not None or self.idle_hours is not None


WORKING = "working"
"""The type of what an agent has in mind within a session; it lasts no longer."""

MAX_WORKING_MEMORY_SLOTS = 32

MAX_ITEM_VERSIONS = 20


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One type of memory.

    Attributes:
        half_life_days: days after which recency has halved; None never decays (recency 1).
        boost: multiplies the combined score.
        ttl: None answers for ever.
        supersede_by: the field that, with user and type, identifies a memory: the next one of the same value supersedes
            it. None leaves it to the writer to name an id.
        immutable: a memory of the type is neither superseded nor changed, and deleted by administrators alone.
        confidence: of a memory stored without one; None leaves it without, which scores as 1.
        event_types: what a memory's `event_type` may be; none is anything.
        required: fields, by the API's names, that a memory of the type is not stored without.
        meaning: how to recognise what belongs to the type, for whoever chooses it; empty says nothing.
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
        """Whether its memories stay until an administrator deletes them: immutable, and without a time to live."""
        return self.immutable and self.ttl is None

    @property
    def lasts_a_session(self) -> bool:
        """Whether its memories go when their session ends."""
        return self.ttl is not None and self.ttl.mode == "Session"


def ending_with_session(type_: MemoryType, idle_hours: float | None) -> MemoryType:
    """The type with the idle time that ends a session, if its memories last one; its own `days` win."""
    ttl = type_.ttl or (Ttl("Session") if type_.name == WORKING else None)
    if idle_hours is None or ttl is None or ttl.mode != "Session" or ttl.days is not None:
        return type_
    return replace(type_, ttl=replace(ttl, idle_hours=idle_hours))


SESSION_USED_KEY = "sessionUsedAt"
"""Of a memory that lasts a session: when that was last used; see `memories/session_use.py`."""
