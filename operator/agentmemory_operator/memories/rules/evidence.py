"""Evidence that a memory answers questions, independent of similarity.

Evidence is computed when the memory is stored: from its text, speaker and role, and from the previous memory.

`search/rules/query_features.py` has the counterpart for the query. Source of the numbers: `docs/adr/0029`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE
from agentmemory_operator.memories.rules.any_language import language_of
from agentmemory_operator.memories.rules.record import Payload
from agentmemory_operator.memories.rules.words import count_content_words
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

EVIDENCE_KEY = "evidence"
"""Result of `compute_evidence`, on memories with a keyword text and without a zone."""

TERSE_KEY, MARKS_KEY = "says", "marks"
"""Keys of the evidence: a number (`compute_evidence`), and a list of words. There are only two, because each key that a
score reads needs an index. For a key without an index, Qdrant reads the whole payload of a candidate."""

HAS_TIME, ANSWERS_QUESTION, BY_USER = "time", "asked", "user"
"""Marks: the text mentions a time, follows a question by another speaker, or is by the user. See also `speaker_mark`
for speakers and `neighbour_mark` for neighbours."""

MAX_TERSE_WORDS = 30
"""Number of content words from which `compute_terse` is 1."""

DEFAULT_TERSE = 0.5
"""Value for memories without evidence, for example encrypted ones and those stored before evidence existed."""

MAX_NAMES = 8
ASSISTANT = "assistant"

_NAMES = (
    "yesterday|today|tonight|tomorrow|ago|weekend|january|february|march|april|june|july|august|september|october"
    "|november|december|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
)
_PERIODS = "night|day|week|month|year|spring|summer|autumn|fall|winter"
_RELATIONS = "before|earlier|later"
_NAMED_TIME = (
    rf"{_NAMES}|(?:last|next|this|past)\s+(?:{_PERIODS})|(?:days?|weeks?|months?|years?)\s+(?:{_RELATIONS})"
    r"|(?:in|since|until|on)\s+may"
)
# Digits that denote a time in any language: a year, a date, or an hour.
_DIGITS = r"(?:19|20)\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{1,2}:\d\d|\d{1,2}\s*[ap]\.?m"
_TIMES = re.compile(rf"\b(?:{_DIGITS})\b")
_DIGIT_TIMES = re.compile(rf"\b(?=\d)(?:{_DIGITS})\b", re.IGNORECASE)
# Each named time has one of these words. Most texts have none, and need no slow search for names.
_TIME_WORDS = frozenset(f"{_NAMES}|{_PERIODS}|{_RELATIONS}|may".split("|"))
_TOKENS = re.compile(r"\w+")
_ENGLISH_TIMES = re.compile(rf"\b(?:{_DIGITS}|{_NAMED_TIME})\b", re.IGNORECASE)


def compute_evidence(
    row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], language: str, keyword_ids: Sequence[str] = ()
) -> Payload:
    """Return the evidence of a stored memory; empty for an encrypted one, because evidence is stored in plain text.

    The number under `TERSE_KEY` is the result of `compute_terse`, negated if an assistant is the speaker.

    Args:
        before: The preceding memories of its session, the nearest last.
        keyword_ids: Ids of the neighbours whose words its keyword text includes.
    """
    if row.get(ZONE_KEY):
        return {}
    language = language_of(row["content"], language)
    terse = compute_terse(row["content"], language)
    marks = [
        *([HAS_TIME] if has_time(row["content"], language) else []),
        *([ANSWERS_QUESTION] if before and _answers(row, before[-1]) else []),
        *([BY_USER] if row.get("role") == "user" else []),
        *(speaker_mark(name) for name in names_of(row.get("speaker") or "")),
        *map(neighbour_mark, keyword_ids),
    ]
    return {TERSE_KEY: -terse if row.get("role") == ASSISTANT else terse} | ({MARKS_KEY: marks} if marks else {})


def speaker_mark(name: str) -> str:
    """Return the mark of a memory by a speaker with this name."""
    return f"by {name}"


def neighbour_mark(memory_id: str) -> str:
    """Return the mark of a keyword text that includes the words of another memory."""
    return f"holds {memory_id}"


def compute_terse(text: str, language: str) -> float:
    """Return a measure of how much a text states, 0..1: logarithmic in its content words, 1 from `MAX_TERSE_WORDS`."""
    return min(math.log1p(count_content_words(text, language)) / math.log1p(MAX_TERSE_WORDS), 1.0)


def has_time(text: str, language: str) -> bool:
    """Return whether a text mentions a time: by digits in any language, in English also by words like `yesterday`."""
    if language != DEFAULT_LANGUAGE:
        return bool(_TIMES.search(text))
    # Without regard to case, some letters that are not ASCII equal those of the names.
    if text.isascii() and _TIME_WORDS.isdisjoint(_TOKENS.findall(text.lower())):
        return bool(_DIGIT_TIMES.search(text))
    return bool(_ENGLISH_TIMES.search(text))


def names_of(speaker: str) -> list[str]:
    """Return the names by which a question may refer to a speaker, in lower case, at most 8."""
    return list(dict.fromkeys(re.findall(r"\w+", speaker.lower())))[:MAX_NAMES]


def _answers(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether the previous memory has a question by another speaker or role."""
    is_other = (row.get("speaker"), row.get("role")) != (before.get("speaker"), before.get("role"))
    return is_other and "?" in before["content"]
