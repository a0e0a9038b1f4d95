"""Features of a query that predict which memories answer it, in addition to similarity.

| variable | 1 if | otherwise |
|---|---|---|
| `terse` | the memory has 30 content words or more | less, by the logarithm of their number |
| `author` | the query names the speaker, or has I, me, my, mine or myself and the speaker is the user | 0 |
| `time` | the query asks when, and the memory mentions a time | 0 |
| `asked` | the previous memory in the session has a question by another speaker | 0 |
| `date` | the memory is from a time that the query names (`time_spans.py`) | 0.5 shortly before or after, else 0 |

For memories by an assistant, `terse` is a constant. The match and these variables form one number in 0..1 for every
query: (fused + sum of weight x variable) / (1 + sum of the weights). Source of the numbers: `docs/adr/0029`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
from agentmemory_operator.search.rules.time_spans import TimeSpan
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

NEAR_DATE = 0.5
"""Value of `date` within the margin of a named time. People talk of an event shortly before or after it."""

CREATED_AT, VALID_FROM = "createdAt", "validFrom"
MAX_QUERY_NAMES, MAX_QUERY_WORDS = 8, 64

_HALF = "half"
_ASKS_WHEN = re.compile(
    r"\b(?:when|how (?:long ago|recently|soon)|(?:what|which) (?:date|day|month|year|time|week|season))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_OF_SELF = re.compile(r"\b(?:i|me|my|mine|myself)\b", re.IGNORECASE)
Condition = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFeatures:
    """Features of one query.

    Attributes:
        half_score: BM25 score at which the keyword term is 0.5.
        names: Words that may be names, in lower case, at most 8: capitalised content words; without them all content
            words.
        is_first_person: True if the query contains I, me, my, mine or myself.
        asks_when: True if the query asks for a time.
        dates: Times that the query names.
        date_keys: Keys of a memory's times that are compared with `dates`.
    """

    half_score: float
    names: tuple[str, ...] = ()
    is_first_person: bool = False
    asks_when: bool = False
    dates: tuple[TimeSpan, ...] = ()
    date_keys: tuple[str, ...] = (CREATED_AT,)

    @property
    def authors(self) -> list[str]:
        """Marks of memories by the speakers that the query refers to."""
        return [*map(speaker_mark, self.names), *([BY_USER] if self.is_first_person else [])]

    def placeholder_values(self) -> dict[str, Formula]:
        """Return the value of each placeholder in a scoring query, except the time, by name."""
        return {
            _HALF: self.half_score,
            "author": _is_marked(*self.authors) if self.authors else 0.0,
            "time": _is_marked(HAS_TIME) if self.asks_when else 0.0,
            "date": self._date_formula() if self.dates else 0.0,
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
            self._date_value(payload),
        )
        return {name: float(value) for name, value in zip(EVIDENCE, values, strict=True)}

    def _date_formula(self) -> Formula:
        """Return Qdrant's formula of `_date_value`."""
        inside, near = (
            [{"key": key, "range": {"gte": since, "lt": until}} for since, until in bounds for key in self.date_keys]
            for bounds in self._date_bounds()
        )
        return {"sum": [{"mult": [1 - NEAR_DATE, {"should": inside}]}, {"mult": [NEAR_DATE, {"should": near}]}]}

    def _date_value(self, payload: Mapping[str, Any]) -> float:
        """Return 1 for a memory from a named time, `NEAR_DATE` for one from shortly before or after, else 0."""
        times = [payload[key] for key in self.date_keys if payload.get(key) is not None]
        inside, near = (
            any(since <= time < until for since, until in bounds for time in times) for bounds in self._date_bounds()
        )
        return 1.0 if inside else NEAR_DATE * near

    def _date_bounds(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return start and end of the named times, and of the same with their margins."""
        return (
            [(span.since_ms, span.until_ms) for span in self.dates],
            [(span.since_ms - span.margin_ms, span.until_ms + span.margin_ms) for span in self.dates],
        )


def extract_features(
    query: str, language: str, *, dates: tuple[TimeSpan, ...] = (), date_keys: tuple[str, ...] = (CREATED_AT,)
) -> QueryFeatures:
    """Extract the features of a query. `is_first_person` and `asks_when` are False unless the language is English.

    Args:
        dates, date_keys: See `QueryFeatures`.
    """
    scale = AUTO_SCALE if language == AUTO_LANGUAGE else 1.0
    language = language_of(query, language)
    words = content_words(query, language)
    score_at_half = scale * max(HALF_SCORE, HALF_SCORE_PER_WORD * min(len(set(words)), MAX_QUERY_WORDS))
    capitalised = " ".join(word for word in _WORD.findall(query) if word[0].isupper())
    names = tuple(dict.fromkeys(content_words(capitalised, DEFAULT_LANGUAGE) or words))[:MAX_QUERY_NAMES]
    is_english = language == DEFAULT_LANGUAGE
    return QueryFeatures(
        half_score=score_at_half,
        names=names,
        is_first_person=is_english and bool(_OF_SELF.search(query)),
        asks_when=is_english and bool(_ASKS_WHEN.search(query)),
        dates=dates,
        date_keys=date_keys,
    )


def evidence_formulas(assistant: float) -> dict[str, Formula]:
    """Return Qdrant's formula of each variable in the module's table, with placeholders for the query's features.

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
