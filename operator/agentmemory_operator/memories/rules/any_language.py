"""Words of texts in any language, for the keyword language `auto`.

Qdrant stems a whole text by the rules of one language. `auto` needs no language: each word of a script with spaces is
searched by itself and by its beginning. The word itself, a number or a code is exact; the beginning also matches
inflected forms, and counts less, because it is less rare. A memory that contains the word of the question therefore
precedes one that contains another form of it. Source of the numbers: `docs/adr/0047`.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from agentmemory_operator.collections.rules.collection import AUTO_LANGUAGE, DEFAULT_LANGUAGE
from agentmemory_operator.memories.rules.stop_words import STOP_WORDS
from agentmemory_operator.memories.rules.words import character_parts, compose, split_runs, word_pattern

BEGINNING_LETTERS = 4
"""Number of letters of a word's beginning."""

_BEGINNING = "\u01c2"
"""Letter before each beginning, so that it differs from every word. Qdrant's tokenizer splits at what is no letter."""

_VIRAMA = "\u02bc"
"""Letter instead of a virama, at which Qdrant's tokenizer would split Hindi, Bengali or Tamil words."""

_MIN_STEM_LETTERS = 3
_MAX_CACHED_LETTERS = 40
_VIRAMA_CLASS = 9
_ASCII_WORD = re.compile("[A-Za-z0-9]+")
# Soft hyphen, tatweel, joiners, marks of direction, variation selectors, byte order mark.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u0640\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)
# Articles, "and", "of" and the like, which Arabic and Hebrew join to a word.
_PREFIX = re.compile(
    "^(?:[\u0648\u0641]?(?:[\u0628\u0643]?\u0627\u0644|\u0644\u0644)|\u0648"
    "|[\u05d1\u05d4\u05d5\u05db\u05dc\u05de\u05e9]{1,2})(?=...)"
)
# Plurals and cases that are a whole letter of a short word: Latin, Greek, Cyrillic, Devanagari, Arabic, Hebrew.
_ENDING = re.compile(
    "(?<=...)(?:e?s|[\u03b1\u03b5\u03b7\u03b9\u03bf\u03c5\u03c9]+[\u03bd\u03c3]?"
    "|[\u0430\u0435\u0438\u043e\u0443\u044b\u044c\u044d\u044e\u044f]+[\u0432\u043c\u0445]?|[\u093e-\u094c]+\u0902?"
    "|\u0647\u0627|\u0627\u062a|[\u0648\u064a]\u0646|[\u0629\u0647\u064a]|\u05d9\u05dd|\u05d5\u05ea)$"
)

_LANGUAGES_OF: dict[str, list[str]] = defaultdict(list)
for _language, _words in STOP_WORDS.items():
    for _word in _words:
        _LANGUAGES_OF[unicodedata.normalize("NFKC", _word.casefold())].append(_language)


def any_language_text(text: str, *, is_question: bool = False) -> str:
    """Return the parts by which a text in any language is searched, separated by spaces.

    Args:
        is_question: True to leave out the stop words of the text's language. Names and other words stay.
    """
    if is_question:
        return _join(_without_stop_words(_split(text)))
    # A keyword text repeats its lines.
    lines = text.split("\n")
    joined = {line: _join(_split(line)) for line in dict.fromkeys(lines)}
    return " ".join(filter(None, map(joined.__getitem__, lines)))


def language_of(text: str, language: str) -> str:
    """Return the language by whose rules a text is read: english or none for a text of an agent with `auto`."""
    if language != AUTO_LANGUAGE:
        return language
    return DEFAULT_LANGUAGE if languages_by_stop_words(text) == {DEFAULT_LANGUAGE} else "none"


def languages_by_stop_words(text: str) -> set[str]:
    """Return the languages with the most stop words in a text, or the empty set if it has none."""
    return _vote(_split(text))


def _split(text: str) -> list[str]:
    """Return the words of a text and its runs without spaces, in order; letters in the original case."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    words = word_pattern().findall(compose(_INVISIBLE.sub("", text)))
    runs = {word: split_runs(word) for word in dict.fromkeys(words)}
    return [run for word in words for run in runs[word]]


def _join(words: Sequence[str]) -> str:
    joined = {word: " ".join(_parts(word)) for word in dict.fromkeys(words)}
    return " ".join(map(joined.__getitem__, words))


def _vote(words: Iterable[str]) -> set[str]:
    """Return the languages with the most stop words among some words, or the empty set."""
    votes: Counter[str] = Counter()
    for word in words:
        if languages := _LANGUAGES_OF.get(word.casefold()):
            votes.update(languages)
    most = max(votes.values(), default=0)
    return {language for language, count in votes.items() if count == most}


def _without_stop_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words without stop words, or all if no other is left. Keep those that are names by their case."""
    languages = _vote(words)
    # In a question in capitals, case marks no name.
    has_case = sum(map(str.isupper, words)) < 2 or not "".join(words).isupper()
    kept = [
        word
        for at, word in enumerate(words)
        if languages.isdisjoint(_LANGUAGES_OF.get(word.casefold(), ())) or (has_case and _is_name(words, at))
    ]
    return kept or words


def _is_name(words: Sequence[str], at: int) -> bool:
    """Return whether case marks a stop word as a name or a code: `Will`, `IT`, `D` in `vitamin D`."""
    word = words[at]
    if len(word) > 1:
        return word.isupper() or (at > 0 and word[0].isupper())
    is_article = word == "A" and "".join(words[at + 1 : at + 2]).islower()
    return at > 0 and word.isupper() and word != "I" and not is_article


def _parts(word: str) -> Sequence[str]:
    """Return the parts by which a word or a run without spaces is searched."""
    if parts := character_parts(word):
        return parts
    # Long words would fill the memory.
    return (_word_parts if len(word) <= _MAX_CACHED_LETTERS else _word_parts.__wrapped__)(word)


@lru_cache(20_000)
def _word_parts(word: str) -> tuple[str, ...]:
    folded = unicodedata.normalize("NFKC", word.casefold())
    exact = "".join(map(_letter, folded))
    if len(exact) < _MIN_STEM_LETTERS or folded in _LANGUAGES_OF or any(map(str.isdecimal, exact)):
        return (exact,)
    plain = "".join(letter for letter in unicodedata.normalize("NFD", exact) if not unicodedata.combining(letter))
    stem = _PREFIX.sub("", plain)
    # In longer words no ending reaches the beginning, and the search for it takes quadratic time in runs of vowels.
    return exact, _BEGINNING + (_ENDING.sub("", stem) if len(stem) <= _MAX_CACHED_LETTERS else stem)[:BEGINNING_LETTERS]


def _letter(character: str) -> str:
    """Return a character as Qdrant's tokenizer keeps it: digits in ASCII, no marks that are no letters."""
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    combining = unicodedata.combining(character)
    return _VIRAMA if combining == _VIRAMA_CLASS else "" if combining else character
