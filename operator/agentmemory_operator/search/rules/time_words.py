"""Words for times in one language, and where they occur in a text.

A table (`search/time_words`) has the words of each slot, by the value that they stand for: `unit`, `month` (1..12),
`weekday` (1 is Monday), `season` (its first month), `holiday` (month-day-days), `part` of a day, `number`, and `years`
(of a month, season, holiday or date: -1 is last year). Its `times` are regular expressions with these slots in braces,
and with the slots for digits below. Each has a meaning: the kind and the shift of `time_spans.py`, and optionally a
part of the day. A meaning with `?` counts only if words of `prefixes` or `suffixes` are next to the time, because "may"
and "march" are usually no months. A space matches one to three spaces, and ` ?` at most three.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

_WORD_SLOTS = ("unit", "month", "weekday", "season", "holiday", "part", "number", "years")
_DIGIT_SLOTS = {
    "year": r"(?:19|20)\d\d",
    "buddhist": r"2[45]\d\d",
    "iso": r"\d{4}-\d\d-\d\d",
    "mm": r"[01]?\d",
    "day": r"[0-3]?\d",
}
_DIGIT_NUMBER = r"(?!0)\d{1,3}"
# Characters before a time in which a prefix is looked for, longer than each prefix.
_PREFIX_CHARS = 32


@dataclass(frozen=True, slots=True)
class TimePattern:
    """Form of a time and its meaning.

    Attributes:
        form: Regular expression, with a named group for each slot.
        kind, shift: See `time_spans.py`.
        part: Part of the day; None for the whole time.
        is_weak: True if it counts only in a range, or next to a word of `prefixes` or `suffixes`.
    """

    form: str
    kind: str
    shift: str
    part: str | None
    is_weak: bool


@dataclass(frozen=True, slots=True)
class TimeWords:
    """Words and patterns of one language.

    Attributes:
        scan: Expression that matches where a pattern does.
        slots: Expressions of the words of each slot, by the value that they stand for.
        prefixes, suffixes: Words before or after a time, by relation: in, since, until, before, after or between; and
            `number`, the beginning of a larger number, such as "twenty-" before "five days ago".
        gaps: Words between the two times of a range: `to`, and `and`, which needs the relation `between`.
    """

    scan: re.Pattern[str]
    patterns: Sequence[TimePattern]
    slots: Mapping[str, Mapping[Any, re.Pattern[str]]]
    prefixes: Mapping[str, re.Pattern[str]]
    suffixes: Mapping[str, re.Pattern[str]]
    gaps: Mapping[str, re.Pattern[str]]


@dataclass(frozen=True, slots=True)
class Mention:
    """Time in a text.

    Attributes:
        start, end: Place of its words, including those of its relation.
        values: Values of the pattern's slots.
        relation: A name of `prefixes` or `suffixes`; None if none of their words is next to it.
    """

    start: int
    end: int
    pattern: TimePattern
    values: Mapping[str, Any]
    relation: str | None = None


def build_words(table: Mapping[str, Any]) -> TimeWords:
    """Compile the table of a language. `find_mentions` compiles each single pattern later, at its first use."""
    words: dict[str, Mapping[Any, str]] = {name: table.get(name, {}) for name in _WORD_SLOTS}
    forms = {name: "|".join(values.values()) for name, values in words.items()} | _DIGIT_SLOTS
    forms["number"] = f"{_DIGIT_NUMBER}|{forms['number']}"
    before, after = table.get("boundaries", (r"(?<!\w)", r"(?!\w)"))

    def bounded(text: str) -> str:
        return rf"{before}(?<!\d)(?<!\d[.,])(?:{text})(?!\d){after}"

    def relations(name: str, form: str) -> dict[str, re.Pattern[str]]:
        return {key: re.compile(form.replace("WORDS", _spaced(text))) for key, text in table.get(name, {}).items()}

    return TimeWords(
        scan=re.compile(bounded("|".join(_filled(text, forms, "(?:{form})") for text in table["times"]))),
        patterns=[
            _read_meaning(meaning, bounded(_filled(text, forms, "(?P<{name}>{form})")))
            for text, meaning in table["times"].items()
        ],
        slots={
            name: {key: re.compile(_spaced(text)) for key, text in values.items()} for name, values in words.items()
        },
        prefixes=relations("prefixes", rf"{before}(?:WORDS)\s*\Z"),
        suffixes=relations("suffixes", r"\s*(?:WORDS)"),
        gaps=relations("gaps", r"\s*(?:WORDS)\s*"),
    )


def find_mentions(text: str, words: TimeWords) -> Iterator[Mention]:
    """Yield the times in a text in lower case, in order. Of several patterns the one with the longest match counts."""
    end = 0
    while found := words.scan.search(text, end):
        matches = [
            (match.end(), -place, match)
            for place, pattern in enumerate(words.patterns)
            if (match := _compiled(pattern.form).match(text, found.start()))
        ]
        end, place, match = max(matches)
        values = {slot: _value(words, slot, word) for slot, word in match.groupdict().items() if word}
        mention = _with_relation(Mention(match.start(), end, words.patterns[-place], values), text, words)
        end = mention.end
        yield mention


def is_range(text: str, words: TimeWords, first: Mention, last: Mention) -> bool:
    """Return whether two times that follow each other are the ends of a range."""
    gap = text[first.end : last.start]
    if first.relation == "since" and last.relation == "until" and not gap.strip():
        return True
    is_between = "between" in (first.relation, last.relation)
    names = (["to"] if is_between or not first.pattern.is_weak else []) + (["and"] if is_between else [])
    return any(words.gaps[name].fullmatch(gap) for name in names)


@cache
def _compiled(form: str) -> re.Pattern[str]:
    """Compile a pattern at its first use: those of all languages take 200 ms. The cache of `re` is too small."""
    return re.compile(form)


def _read_meaning(meaning: str, form: str) -> TimePattern:
    """Parse a meaning: kind, shift, part of the day, `?`. Only the kind is required."""
    kind, *details = meaning.removesuffix("?").split()
    part = details.pop() if details and details[-1].isalpha() and details[-1] != "past" else None
    return TimePattern(form, kind, " ".join(details), part, meaning.endswith("?"))


def _filled(text: str, forms: Mapping[str, str], group: str) -> str:
    for name, form in forms.items():
        text = text.replace(f"{{{name}}}", group.format(name=name, form=form))
    return _spaced(text)


def _spaced(text: str) -> str:
    return text.replace(" ?", r"\s{0,3}").replace(" ", r"\s{1,3}")


def _with_relation(mention: Mention, text: str, words: TimeWords) -> Mention:
    for relation, expression in words.suffixes.items():
        if found := expression.match(text, mention.end):
            return replace(mention, end=found.end(), relation=relation)
    near = text[max(0, mention.start - _PREFIX_CHARS) : mention.start]
    for relation, expression in words.prefixes.items():
        is_possible = relation != "number" or "number" in mention.pattern.shift
        if is_possible and (found := expression.search(near)):
            return replace(mention, start=mention.start - len(near) + found.start(), relation=relation)
    return mention


def _value(words: TimeWords, slot: str, word: str) -> Any:
    """Return the value of the words in a slot."""
    if slot == "iso":
        return word
    if word.isdecimal():
        return int(word)
    return next(key for key, expression in words.slots[slot].items() if expression.fullmatch(word))
