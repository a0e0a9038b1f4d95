"""Keyword search: the text that a memory is found by, and the BM25 vector that Qdrant computes from it.

The keyword text of a memory consists of its date, the contents of up to two memories before it in its session, and its
own content. The words of a question are often in the preceding turns instead of in the answer. The memory's own words
and date occur three times, the previous memory twice, and the memory before that once. Both neighbours are truncated.
Source of the numbers: `docs/adr/0009` and `docs/adr/0029`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from agentmemory_operator.collections.rules.collection import (
    AUTO_LANGUAGE,
    DEFAULT_LANGUAGE,
    KEYWORD_VECTOR,
    KeywordSource,
)
from agentmemory_operator.memories.rules.any_language import any_language_text
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY, compute_evidence, neighbour_mark
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_PENDING,
    NOT_SUPERSEDED,
    Condition,
    Filter,
    equals,
    equals_any,
)
from agentmemory_operator.memories.rules.record import ORDER_KEY, TOMBSTONE_KEY, WINDOW_DUE_KEY, WINDOW_KEY, Payload
from agentmemory_operator.memories.rules.words import engine_text, first_content_words
from agentmemory_operator.spec.presets.table import MARKS_PATH

BM25_MODEL = "qdrant/bm25"
ORDER_STEP = 1000
"""Sort positions per millisecond of `createdAt`: the maximum number of memories in a request. Memories of the same time
are ordered by their place in the request."""

OWN_REPETITIONS = 3
"""Repetitions of the memory's own words and date in its text. The nearest neighbour has one less, the next two less."""

NEIGHBOUR_WORDS = 30
"""Maximum number of content words of a neighbour in a text."""

_OPTIONS = {"avg_len": 80.0, "k": 1.2}
# Most words of a text in any language are two, see `any_language_text`.
_ANY_LANGUAGE = {**_OPTIONS, "avg_len": 160.0, "language": "none"}

IS_DUE: Condition = {"key": WINDOW_DUE_KEY, "match": {"value": True}}

_RECOMPUTED = frozenset({WINDOW_KEY, EVIDENCE_KEY})

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KeywordText:
    """Keyword text of a memory, with the payload that depends on it.

    Attributes:
        text: Text that Qdrant computes the keyword vector from.
        window_ids: Ids of the neighbours whose contents the text includes, oldest first.
        order: Sort position in the session, by time and then by place in the request. None without a session, in a zone
            and for a working memory, whose words no other text may include.
        evidence: Stored with the text; see `memories/rules/evidence.py`.
    """

    text: str
    window_ids: tuple[str, ...] = ()
    order: int | None = None
    evidence: Payload = field(default_factory=dict)

    def add_to_point(self, point: Mapping[str, Any], source: KeywordSource) -> dict[str, Any]:
        """Return a point with its keyword vector and the payload keys that belong to its text.

        Args:
            point: Point with an unnamed dense vector, or with an empty vector if it has none.
        """
        payload: Payload = {key: value for key, value in point["payload"].items() if key not in _RECOMPUTED}
        if self.order is not None:
            # Mark the text as due until its neighbours are checked again, because they may change concurrently.
            payload |= {ORDER_KEY: self.order, WINDOW_DUE_KEY: True}
        if self.window_ids:
            payload[WINDOW_KEY] = list(self.window_ids)
        if self.evidence:
            payload[EVIDENCE_KEY] = self.evidence
        # Write only the keyword vector for a point without a dense vector, for example one that lost it in a rebuild.
        dense = {"": point["vector"]} if point["vector"] else {}
        words = {KEYWORD_VECTOR: keyword_document(self.text, source)}
        return {"id": point["id"], "vector": dense | words, "payload": payload}


def build_keyword_text(
    row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], source: KeywordSource
) -> KeywordText:
    """Return the keyword text of a stored memory.

    Args:
        before: The preceding memories of its session, the nearest last.
    """
    near = before[-source.window :] if source.window else ()
    text = keyword_text(row, [neighbour["content"] for neighbour in near], source)
    window_ids = tuple(neighbour["id"] for neighbour in near)
    return KeywordText(text, window_ids, row.get(ORDER_KEY), compute_evidence(row, before, source.language, window_ids))


def keyword_text(row: Mapping[str, Any], before: Sequence[str], source: KeywordSource) -> str:
    """Build the keyword text of a memory.

    Args:
        before: The contents of its window, the nearest last.
    """
    own_lines = [date_text(row["createdAt"], source.language), row["content"]]
    parts = own_lines * OWN_REPETITIONS
    for repetitions, text in zip(range(OWN_REPETITIONS - 1, 0, -1), reversed(before), strict=False):
        parts += [first_content_words(text, NEIGHBOUR_WORDS, source.language)] * repetitions
    return "\n".join(parts)


def question_document(question: str, source: KeywordSource) -> dict[str, Any]:
    """Return the document from which Qdrant computes the keyword vector of a question."""
    is_any = source.language == AUTO_LANGUAGE
    return _any_language(question, is_question=True) if is_any else keyword_document(question, source)


def _any_language(text: str, *, is_question: bool) -> dict[str, Any]:
    return {"text": any_language_text(text, is_question=is_question), "model": BM25_MODEL, "options": _ANY_LANGUAGE}


def keyword_document(text: str, source: KeywordSource) -> dict[str, Any]:
    """Return the document from which Qdrant computes the keyword vector of a memory."""
    if source.language == AUTO_LANGUAGE:
        return _any_language(text, is_question=False)
    return {"text": engine_text(text), "model": BM25_MODEL, "options": {"language": source.language, **_OPTIONS}}


def date_text(created_at: int, language: str) -> str:
    """Return the UTC day of a time: `8 May 2023` in English, 2023-05-08 in other languages, both with `auto`.

    Args:
        created_at: Unix milliseconds.
    """
    day = _EPOCH + timedelta(milliseconds=created_at)
    named, iso = f"{day.day} {_MONTHS[day.month - 1]} {day.year}", f"{day:%Y-%m-%d}"
    if language == AUTO_LANGUAGE:
        return f"{named} {iso}"
    return named if language == DEFAULT_LANGUAGE else iso


def order_of(created_at: int, position: int) -> int:
    """Return the sort position in the session: by time, then by `position` in the request, below 1,000.

    The result is below 2**53 until the year 2255, so a float64 represents it exactly.

    Args:
        created_at: Unix milliseconds.
    """
    return created_at * ORDER_STEP + position


def session_sort_key(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return the sort key of a row with a session position: the position, then the id."""
    return row[ORDER_KEY], row["id"]


def is_member(row: Mapping[str, Any]) -> bool:
    """Return whether a row's content belongs to the keyword texts of the memories after it."""
    is_hidden = TOMBSTONE_KEY in row or row.get("pending") or row.get("supersededById")
    return not is_hidden and ORDER_KEY in row


def includes_words_of(ids: Sequence[str]) -> Condition:
    """Return the condition that a keyword text includes the words of at least one of these memories."""
    return equals_any(MARKS_PATH, list(map(neighbour_mark, ids)))


def session_members_filter(user_id: str, session_id: str, *conditions: Condition) -> Filter:
    """Return the filter for the visible memories of a session, as in `is_member`."""
    session = [equals("userId", user_id), equals("sessionId", session_id)]
    return {"must": [*session, NOT_DELETED, NOT_PENDING, NOT_SUPERSEDED, *conditions]}


def find_stale_ids(members: Sequence[Mapping[str, Any]], window: int, *, neighbours: int) -> set[str]:
    """Return the ids of members whose stored window differs from the members before them.

    Args:
        members: Consecutive memories of one session, in order.
        neighbours: Number of members at the start that serve as neighbours only.
    """
    stale = set()
    for index, row in enumerate(members[neighbours:], neighbours):
        expected = [neighbour["id"] for neighbour in members[max(0, index - window) : index]]
        if list(row.get(WINDOW_KEY, ())) != expected:
            stale.add(row["id"])
    return stale


def group_by_session(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Group rows by user and session, each group in order. Omits rows without a position in a session."""
    sessions: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted((row for row in rows if ORDER_KEY in row), key=session_sort_key):
        sessions.setdefault((row["userId"], row["sessionId"]), []).append(row)
    return sessions
