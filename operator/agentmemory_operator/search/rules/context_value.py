"""Order of the memories of a context, the question in a conversation, and the types that are no statements."""

from collections.abc import Sequence

from agentmemory_operator.memories.rules.filters import IS_WORKING, Condition, equals_any
from agentmemory_operator.memories.rules.record import MemoryRecord

EPISODE_TYPES = ("episodic", "event", "task", "working")
"""Types of what happened or passes. Memories of other types that nobody said in a conversation are facts of a user."""

NOT_A_STATEMENT: tuple[Condition, ...] = (equals_any("type", EPISODE_TYPES), IS_WORKING)

MAX_QUESTION_CHARS = 2_000

# Measured on three sets of conversations: `bench/README.md`, "A context". Values near them give the same.
RANK_OFFSET = 3
NEIGHBOUR_SHARES = (0.2, 0.1)
"""Shares of the values of the nearest and the second nearest result in the session, before and after."""
LENGTH_POWER = 0.25
# Estimate of the length of a line: characters of a token, and tokens of its number and line break.
CHARS_PER_TOKEN, LINE_TOKENS = 4, 4


def question_of(messages: Sequence[tuple[str, str]]) -> str:
    """Return the text to search for: of the last message of a user, else of the last message.

    Args:
        messages: Role and text, oldest first. At least one.
    """
    asked = [text for role, text in messages if role == "user"]
    return (asked or [messages[-1][1]])[-1].strip()[:MAX_QUESTION_CHARS]


def order_facts(records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """Sort facts: pinned ones first, then by importance, newest first."""
    return sorted(records, key=lambda record: (not record.pinned, -record.importance, -record.created_at, record.id))


def order_hits(records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """Sort the results of a search by their value within a budget of tokens.

    The value of a result is `1 / (RANK_OFFSET + rank)`, and a share of the values of the results next to it in its
    session: an answer is often beside the turn that has the words of the question. It is divided by a power of the
    length: two short memories are better than a long one.

    Args:
        records: Results, best first.
    """
    own = {record.id: 1 / (RANK_OFFSET + rank) for rank, record in enumerate(records)}
    values = dict(own)
    for session in _by_session(records):
        for distance, share in enumerate(NEIGHBOUR_SHARES, 1):
            for one, other in zip(session, session[distance:], strict=False):
                values[one] += share * own[other]
                values[other] += share * own[one]
    lengths = {record.id: len(record.content) / CHARS_PER_TOKEN + LINE_TOKENS for record in records}
    return sorted(records, key=lambda record: (-values[record.id] / lengths[record.id] ** LENGTH_POWER, record.id))


def _by_session(records: Sequence[MemoryRecord]) -> list[list[str]]:
    """Return the ids of each session of a user, in order of time. Omits memories without a session."""
    sessions: dict[tuple[str, str], list[str]] = {}
    for record in sorted(records, key=lambda record: (record.created_at, record.id)):
        if record.session_id is not None:
            sessions.setdefault((record.user_id, record.session_id), []).append(record.id)
    return list(sessions.values())
