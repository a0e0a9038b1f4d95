"""What became of a memory that was to be stored, and of a request that comes again."""

from dataclasses import dataclass, replace
from typing import Literal

from agentmemory_operator.domain.records import TOMBSTONE_KEY, MemoryRecord, Payload
from agentmemory_operator.errors import AgentMemoryError, Conflict

Event = Literal["ADD", "SUPERSEDE", "CORROBORATE", "NONE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A memory that is durable now.

    Attributes:
        event: NONE: it was there already, or another item of the same request says the same. CORROBORATE: it was there
            already, and another author says so too.
        recorded: false where an event left nothing new behind.
    """

    id: str
    event: Event
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


Outcome = Stored | AgentMemoryError


def stored_of(memory_id: str, supersedes: str | None = None) -> Stored:
    """Return that a memory of its own was stored."""
    return Stored(id=memory_id, event="SUPERSEDE" if supersedes else "ADD", supersedes=supersedes)


def repeated(outcome: Outcome) -> Outcome:
    """Return the outcome of an item that says what another said."""
    return replace(outcome, event="NONE", recorded=False) if isinstance(outcome, Stored) else outcome


def other_request(row: Payload | None, record: MemoryRecord) -> Conflict | None:
    """Return why a record is not the one that was stored under its key."""
    if row is None or record.request_hash is None:
        return None
    if TOMBSTONE_KEY in row:
        return Conflict(
            "Idempotency-Key: what was stored under this key was deleted, or was refused; send a new key to store it"
        )
    if row.get("requestHash") != record.request_hash:
        return Conflict("Idempotency-Key: it came with another body before; send a new key")
    return None


def superseded(memory_id: str | None) -> Conflict:
    """Return why a version that is no head cannot be superseded."""
    return Conflict(f"supersedes: {memory_id} is superseded or deleted; supersede the head of its chain instead")
