"""Features of a query that predict which memories answer it, in addition to similarity.

| variable | 1 if | otherwise |
|---|---|---|
| `terse` | the memory has 30 content words or more | less, by the logarithm of their number |
| `author` | the query names the speaker, or has I, me, my, mine or myself and the speaker is the user | 0 |
| `time` | the query asks when, and the memory mentions a time | 0 |
| `asked` | the previous memory in the session has a question by another speaker | 0 |
| `date` | the query names the memory's date | 0 |

For memories by an assistant, `terse` is a constant. The match and these variables form one number in 0..1 for every
query: (fused + sum of weight x variable) / (1 + sum of the weights). Source of the numbers: `docs/adr/0029`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from agentmemory_operator.collections.rules.collection import AUTO_LANGUAGE, DEFAULT_LANGUAGE
from agentmemory_operator.memories.rules.any_language import language_of
from agentmemory_operator.memories.rules.evidence import (
    ANSWERS_QUESTION,
    BY_USER,
    DEFAULT_TERSE,
    EVIDENCE_KEY,
    HAS_TIME,
    MARKS_KEY,
    TERSE_KEY,
    speaker_mark,
)
from agentmemory_operator.memories.rules.words import content_words
from agentmemory_operator.search.rules.score import placeholder
from agentmemory_operator.spec.expression.formulas import Formula, product_formula, sum_formula
from agentmemory_operator.spec.expression.variables import EVIDENCE
from agentmemory_operator.spec.presets.table import MARKS_PATH, TERSE_PATH, EvidenceWeights

HALF_SCORE = 10.0
"""BM25 score at which the keyword term is 0.5: one to two rare words in common."""

HALF_SCORE_PER_WORD = 2.0
"""BM25 score per distinct content word, which replaces HALF_SCORE in a query of more than 5 such words.

Otherwise a long query would score too high, because a memory contains some of many words by chance.
"""

AUTO_SCALE = 1.7
"""Factor of these scores with the language `auto`, which counts most words twice (`docs/adr/0047`)."""

MAX_QUERY_NAMES, MAX_QUERY_WORDS = 8, 64
_MAX_DATES = 4

_HALF = "half"
_ASKS_WHEN = re.compile(
    r"\b(?:when|how (?:long ago|recently|soon)|(?:what|which) (?:date|day|month|year|time|week|season))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_OF_SELF = re.compile(r"\b(?:i|me|my|mine|myself)\b", re.IGNORECASE)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH = "|".join(_MONTHS)
_DATE = re.compile(
    rf"\b(?:(?P<iso>\d{{4}}-\d\d-\d\d)|(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)? )?(?P<month>{_MONTH})"
    rf"(?: (?P<us_day>\d{{1,2}})(?:st|nd|rd|th)?)?,? (?P<year>(?:19|20)\d\d)|(?P<whole>(?:19|20)\d\d))\b",
    re.IGNORECASE,
)
Condition = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFeatures:
    """Features of one query.

    Attributes:
        half_score: BM25 score at which the keyword term is 0.5.
        names: Words that may be names, in lower case, at most 8: capitalised content words, or all if none is.
        is_first_person: True if the query contains I, me, my, mine or myself.
        asks_when: True if the query asks for a time.
        dates: Start and end (exclusive) of the days, months and years in UTC that the query names, Unix milliseconds.
    """

    half_score: float
    names: tuple[str, ...] = ()
    is_first_person: bool = False
    asks_when: bool = False
    dates: tuple[tuple[int, int], ...] = ()

    @property
    def authors(self) -> list[str]:
        """Marks of memories by the speakers that the query refers to."""
        return [*map(speaker_mark, self.names), *([BY_USER] if self.is_first_person else [])]

    def placeholder_values(self) -> dict[str, Formula]:
        """Return the values for the placeholders of a scoring query."""
        dates = [{"key": "createdAt", "range": {"gte": since, "lt": until}} for since, until in self.dates]
        return {
            _HALF: self.half_score,
            "author": _is_marked(*self.authors) if self.authors else 0.0,
            "time": _is_marked(HAS_TIME) if self.asks_when else 0.0,
            "date": {"should": dates} if dates else 0.0,
        }

    def compute_evidence_values(self, payload: Mapping[str, Any], assistant: float) -> dict[str, float]:
        """Return the variables' values for a memory, equal to those that Qdrant computes.

        Args:
            assistant: Value of `terse` for memories by an assistant.
        """
        evidence = payload.get(EVIDENCE_KEY) or {}
        terseness, marks = float(evidence.get(TERSE_KEY, DEFAULT_TERSE)), set(evidence.get(MARKS_KEY, ()))
        values = (
            assistant if terseness < 0 else terseness,
            not marks.isdisjoint(self.authors),
            self.asks_when and HAS_TIME in marks,
            ANSWERS_QUESTION in marks,
            any(since <= payload["createdAt"] < until for since, until in self.dates),
        )
        return {name: float(value) for name, value in zip(EVIDENCE, values, strict=True)}


def extract_features(query: str, language: str) -> QueryFeatures:
    """Extract the features of a query. In languages other than English, these are only `half_score` and `names`."""
    scale = AUTO_SCALE if language == AUTO_LANGUAGE else 1.0
    language = language_of(query, language)
    words = content_words(query, language)
    score_at_half = scale * max(HALF_SCORE, HALF_SCORE_PER_WORD * min(len(set(words)), MAX_QUERY_WORDS))
    capitalised = " ".join(word for word in _WORD.findall(query) if word[0].isupper())
    names = tuple(dict.fromkeys(content_words(capitalised, DEFAULT_LANGUAGE) or words))[:MAX_QUERY_NAMES]
    if language != DEFAULT_LANGUAGE:
        return QueryFeatures(half_score=score_at_half, names=names)
    return QueryFeatures(
        half_score=score_at_half,
        names=names,
        is_first_person=bool(_OF_SELF.search(query)),
        asks_when=bool(_ASKS_WHEN.search(query)),
        dates=tuple(_dates_in(query)),
    )


def evidence_formulas(assistant: float) -> dict[str, Formula]:
    """Return Qdrant's formulas of the variables, with placeholders for the features of the query.

    Args:
        assistant: Value of `terse` for memories by an assistant.
    """
    is_assistant = {"key": TERSE_PATH, "range": {"lt": 0.0}}
    # For memories by an assistant, replace the stored number, which is negative, by the constant.
    correction = {"mult": [is_assistant, {"sum": [assistant, {"neg": TERSE_PATH}]}]}
    terse = {"sum": [TERSE_PATH, correction]}
    answers_question = _is_marked(ANSWERS_QUESTION)
    return {
        "terse": terse,
        "author": placeholder("author"),
        "time": placeholder("time"),
        "asked": answers_question,
        "date": placeholder("date"),
    }


EVIDENCE_DEFAULTS: Mapping[str, float] = {TERSE_PATH: DEFAULT_TERSE}

HALF_SCORE_PLACEHOLDER: Formula = placeholder(_HALF)


def add_evidence(fused: float, weights: EvidenceWeights, numbers: Mapping[str, float]) -> float:
    """Return the match of a memory combined with its evidence, by the module's formula.

    Args:
        numbers: Values of the evidence variables by name.
    """
    terms = weights.terms
    return (fused + sum(weight * numbers[name] for name, weight in terms.items())) / (1 + sum(terms.values()))


def add_evidence_formula(fused: Formula, weights: EvidenceWeights, formulas: Mapping[str, Formula]) -> Formula:
    """Return `add_evidence` as a formula of Qdrant."""
    terms = weights.terms
    if not terms:
        return fused
    weighted_terms = [product_formula(weight, formulas[name]) for name, weight in terms.items()]
    return product_formula(1 / (1 + sum(terms.values())), sum_formula(fused, *weighted_terms))


def _is_marked(*marks: str) -> Condition:
    return {"key": MARKS_PATH, "match": {"any": list(marks)}}


def _dates_in(query: str) -> Iterator[tuple[int, int]]:
    """Yield start and end (exclusive) of the days, months and years among the first four dates of a text."""
    for _, found in zip(range(_MAX_DATES), _DATE.finditer(query), strict=False):
        try:
            since, until = _days_of(found)
        except (OverflowError, ValueError):
            # Skip dates that do not exist, for example the 31st of February, or that are out of range.
            continue
        yield _ms(since), _ms(until)


def _days_of(found: re.Match[str]) -> tuple[datetime, datetime]:
    """Return the start of the named day, month or year, and the start of the next.

    Raises:
        ValueError: If there is no such day.
    """
    if iso := found["iso"]:
        return _a_day(datetime.fromisoformat(iso).replace(tzinfo=UTC))
    if whole := found["whole"]:
        return datetime(int(whole), 1, 1, tzinfo=UTC), datetime(int(whole) + 1, 1, 1, tzinfo=UTC)
    year, month = int(found["year"]), _MONTHS.index(found["month"].lower()) + 1
    if day := found["day"] or found["us_day"]:
        return _a_day(datetime(year, month, int(day), tzinfo=UTC))
    return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def _a_day(since: datetime) -> tuple[datetime, datetime]:
    return since, since + timedelta(days=1)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
