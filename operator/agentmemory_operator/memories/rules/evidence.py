"""Evidence beyond likeness that a memory answers a question, as far as it tells itself: stored with its words.

`search/rules/clues.py` has what the question tells. Source of the numbers: `docs/adr/0029`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE
from agentmemory_operator.memories.rules.record import Payload
from agentmemory_operator.memories.rules.words import content_words
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

EVIDENCE_KEY = "evidence"
"""Of a memory with weighted keyword text: what `evidence_of` gives."""

SAYS, MARKS = "says", "marks"
"""In it: a number (`evidence_of`), and words that tell the rest. Two keys, because each that a score reads is an index:
the engine reads the whole payload of a candidate for one that is not."""

HAS_TIME, ASKED, BY_USER = "time", "asked", "user"
"""Marks; that of a name is `name_mark`, that of a memory whose words the text holds `held_mark`."""

ENOUGH_WORDS = 30
"""Content words from which on a memory counts as saying all that it can."""

DEFAULT_TERSE = 0.5
"""Of a memory without evidence: sealed, or not counted yet."""

MAX_NAMES = 8
ASSISTANT = "assistant"

_NAMED_TIME = (
    r"yesterday|today|tonight|tomorrow|ago|weekend|january|february|march|april|june|july|august|september|october"
    r"|november|december|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
    r"|(?:last|next|this|past)\s+(?:night|day|week|month|year|spring|summer|autumn|fall|winter)"
    r"|(?:days?|weeks?|months?|years?)\s+(?:before|earlier|later)"
    r"|(?:in|since|until|on)\s+may"
)
# Digits tell a time in any language: a year, a date, an hour.
_DIGITS = r"(?:19|20)\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{1,2}:\d\d|\d{1,2}\s*[ap]\.?m"
_TIMES = re.compile(rf"\b(?:{_DIGITS})\b")
_ENGLISH_TIMES = re.compile(rf"\b(?:{_DIGITS}|{_NAMED_TIME})\b", re.IGNORECASE)


def evidence_of(
    row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], language: str, held: Sequence[str] = ()
) -> Payload:
    """The evidence of a stored memory; none of what is sealed, as it would lie open.

    `says` is `terse`, and what an assistant said has it below 0, so that one number tells both.

    Args:
        before: the memories before it in its session, the nearest last.
        held: ids of the memories whose words its text holds.
    """
    if row.get(ZONE_KEY):
        return {}
    says = terse(row["content"], language)
    marks = [
        *([HAS_TIME] if has_time(row["content"], language) else []),
        *([ASKED] if before and _answers(row, before[-1]) else []),
        *([BY_USER] if row.get("role") == "user" else []),
        *(name_mark(name) for name in names_of(row.get("speaker") or "")),
        *map(held_mark, held),
    ]
    return {SAYS: -says if row.get("role") == ASSISTANT else says} | ({MARKS: marks} if marks else {})


def name_mark(name: str) -> str:
    """The mark of what somebody said, by one of the names."""
    return f"by {name}"


def held_mark(memory_id: str) -> str:
    """The mark of a text that holds the words of another memory."""
    return f"holds {memory_id}"


def terse(text: str, language: str) -> float:
    """How much a text says, 0..1: by the logarithm of its content words, 1 from `ENOUGH_WORDS` on."""
    return min(math.log1p(len(content_words(text, language))) / math.log1p(ENOUGH_WORDS), 1.0)


def has_time(text: str, language: str) -> bool:
    """Whether a text says when something is."""
    return bool((_ENGLISH_TIMES if language == DEFAULT_LANGUAGE else _TIMES).search(text))


def names_of(speaker: str) -> list[str]:
    """The names by which a question may call a speaker, in lower case."""
    return list(dict.fromkeys(re.findall(r"\w+", speaker.lower())))[:MAX_NAMES]


def _answers(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether another one asked something right before."""
    is_other = (row.get("speaker"), row.get("role")) != (before.get("speaker"), before.get("role"))
    return is_other and "?" in before["content"]
