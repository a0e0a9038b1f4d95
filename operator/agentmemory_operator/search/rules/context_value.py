"""Order of the memories of a context, the question in a conversation, and the types that are no statements."""

from collections.abc import Sequence

from agentmemory_operator.memories.rules.filters import IS_WORKING, Condition, equals_any
from agentmemory_operator.memories.rules.record import MemoryRecord

EPISODE_TYPES = ("episodic", "event", "task", "working")
"""Types of what happened or passes. Memories of other types that nobody said in a conversation are facts of a user."""

NOT_A_STATEMENT: tuple[Condition, ...] = (equals_any("type", EPISODE_TYPES), IS_WORKING)

MAX_QUESTION_CHARS = 2_000


def question_of(messages: Sequence[tuple[str, str]]) -> str:
    """Return the text to search for: of the last message of a user, else of the last message.

    Args:
        messages: Role and text, oldest first. At least one.
    """
    asked = [text for role, text in messages if role == "user"]
    return (asked or [messages[-1][1]])[-1][:MAX_QUESTION_CHARS]


def order_facts(records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """Sort facts: pinned ones first, then by importance, newest first."""
    return sorted(records, key=lambda record: (not record.pinned, -record.importance, -record.created_at, record.id))


def order_hits(records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """Sort the results of a search, best first, by value per token."""
    return list(records)
