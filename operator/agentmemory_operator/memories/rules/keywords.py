"""Search by words: what a memory's keyword text is, and what its BM25 score is worth.

The keyword text of a memory is its date, the contents of the two memories before it in its session, and its own: what
answers a question often does not repeat the question's words. The engine makes the vector. A memory's
own words and date stand three times, the memory before it twice, the one before that once, and both are cut. Source of
the numbers: `docs/adr/0009` and `docs/adr/0029`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE, KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY, evidence_of, held_mark
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_PENDING,
    NOT_SUPERSEDED,
    Condition,
    Filter,
    equals,
    equals_any,
)
from agentmemory_operator.memories.rules.record import DUE_KEY, ORDER_KEY, TOMBSTONE_KEY, WINDOW_KEY, Payload
from agentmemory_operator.memories.rules.words import engine_text, first_content_words
from agentmemory_operator.spec.presets.table import MARKS_PATH

MODEL = "qdrant/bm25"
PLACES = 1000
"""Memories of one request: those of one time stand in the order of the request."""

OWN_TIMES = 3
"""How often a text holds the memory's own words and date; each neighbour stands once less than the next."""

NEIGHBOUR_WORDS = 30
"""Content words of a neighbour in a text."""

_OPTIONS = {"avg_len": 80.0, "k": 1.2}

IS_DUE: Condition = {"key": DUE_KEY, "match": {"value": True}}

_MADE_ANEW = frozenset({WINDOW_KEY, EVIDENCE_KEY})

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Words:
    """What of a memory is found by words.

    Attributes:
        text: what the engine makes the keyword vector of.
        window_ids: whose contents it holds besides the memory's own, oldest first.
        order: place in the session, by time and then by place in the request; None without a session.
        evidence: what lies with them, see `memories/rules/evidence.py`.
    """

    text: str
    window_ids: tuple[str, ...] = ()
    order: int | None = None
    evidence: Payload = field(default_factory=dict)

    def on(self, point: Mapping[str, Any], source: KeywordSource) -> dict[str, Any]:
        """A point, its vector nameless so far, with its keyword vector and what finds its neighbours."""
        payload: Payload = {key: value for key, value in point["payload"].items() if key not in _MADE_ANEW}
        if self.order is not None:
            # Until its neighbours were looked at again: a neighbour may come or go at the same time.
            payload |= {ORDER_KEY: self.order, DUE_KEY: True}
        if self.window_ids:
            payload[WINDOW_KEY] = list(self.window_ids)
        if self.evidence:
            payload[EVIDENCE_KEY] = self.evidence
        # What has no vector for its meaning, or lost it in a rebuild, has none to be named.
        dense = {"": point["vector"]} if point["vector"] else {}
        words = {KEYWORD_VECTOR: keyword_document(self.text, source)}
        return {"id": point["id"], "vector": dense | words, "payload": payload}


def words_of(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], source: KeywordSource) -> Words:
    """The words of a stored memory.

    Args:
        before: the memories before it in its session, the nearest last.
    """
    near = before[-source.window :] if source.window else ()
    text = keyword_text(row, [neighbour["content"] for neighbour in near], source)
    held = tuple(neighbour["id"] for neighbour in near)
    return Words(text, held, row.get(ORDER_KEY), evidence_of(row, before, source.language, held))


def keyword_text(row: Mapping[str, Any], before: Sequence[str], source: KeywordSource) -> str:
    """The keyword text of a memory.

    Args:
        before: the contents of its window, the nearest last.
    """
    own = [date_text(row["createdAt"], source.language), row["content"]]
    parts = own * OWN_TIMES
    for times, text in zip(range(OWN_TIMES - 1, 0, -1), reversed(before), strict=False):
        parts += [first_content_words(text, NEIGHBOUR_WORDS, source.language)] * times
    return "\n".join(parts)


def keyword_document(text: str, source: KeywordSource) -> dict[str, Any]:
    """The text for which the engine puts its own vector of words."""
    return {"text": engine_text(text), "model": MODEL, "options": {"language": source.language, **_OPTIONS}}


def date_text(created_at: int, language: str) -> str:
    """A day as people ask for it, `8 May 2023`; in other languages than English as 2023-05-08."""
    day = _EPOCH + timedelta(milliseconds=created_at)
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}" if language == DEFAULT_LANGUAGE else f"{day:%Y-%m-%d}"


def order_of(created_at: int, place: int) -> int:
    """A memory's place in its session; below 2**53 (until 2255) every engine compares it exactly."""
    return created_at * PLACES + place


def position(row: Mapping[str, Any]) -> tuple[int, str]:
    """What the memories of a session are sorted by."""
    return row[ORDER_KEY], row["id"]


def is_member(row: Mapping[str, Any]) -> bool:
    """Whether a row's content belongs to the keyword texts of those after it."""
    is_gone = TOMBSTONE_KEY in row or row.get("pending") or row.get("supersededById")
    return not is_gone and ORDER_KEY in row


def holders_of(ids: Sequence[str]) -> Condition:
    """The condition that a memory's keyword text holds the words of one of some memories."""
    return equals_any(MARKS_PATH, list(map(held_mark, ids)))


def members_of(user_id: str, session_id: str, *conditions: Condition) -> Filter:
    """The filter of the memories of a session that answer, as `is_member` tells."""
    session = [equals("userId", user_id), equals("sessionId", session_id)]
    return {"must": [*session, NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED, *conditions]}


def stale_ids(members: Sequence[Mapping[str, Any]], window: int, *, known: int) -> set[str]:
    """Which of a session's members have another window than the members before them.

    Args:
        members: consecutive, in order.
        known: how many at the start are there as neighbours only.
    """
    stale = set()
    for place, row in enumerate(members[known:], known):
        expected = [neighbour["id"] for neighbour in members[max(0, place - window) : place]]
        if list(row.get(WINDOW_KEY, ())) != expected:
            stale.add(row["id"])
    return stale


def by_session(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Rows by user and session, in order; those without a session are left out."""
    sessions: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted((row for row in rows if ORDER_KEY in row), key=position):
        sessions.setdefault((row["userId"], row["sessionId"]), []).append(row)
    return sessions
