"""Split text in any language into words, for `contains`, for the lookup of names, and for the keyword vectors.

A word is a run of letters, digits and marks, case-folded, in NFKC. Some scripts have no spaces between words, or
particles joined to them: Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese. A run of their characters is searched by
its parts (`docs/adr/0042`, `docs/adr/0043`).
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE

_SPACELESS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7"
    "\u17dc\u17dd\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff\u3131-\u318e\u3005-\u3007\u3021-\u302f\u3031-\u3035"
    "\u3038-\u303c\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3105-\u312f"
    "\u31a0-\u31bf\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
)
_RUN = re.compile(f"[{_SPACELESS}]+")
_EACH_RUN = re.compile(f"([{_SPACELESS}]+)")
# Marks without a letter of their own, at which Qdrant's tokenizer splits words.
_UNSPOKEN = re.compile(
    "[\u0e47-\u0e4c\u0e4e\u0ec8-\u0ecc\u0ece\u1037\u1039\u103a\u17c9-\u17d3\u17dd\u302a-\u302f\u3099\u309a]"
)
_LAST_MARK = 0x1FFFF
_MAX_MARKS = 30

MAX_OCCURRENCES = 64
"""Maximum number of occurrences of a name that are checked for word boundaries. Usually the first of them matches."""


@dataclass(frozen=True, slots=True)
class TextWords:
    """Words of one text.

    Attributes:
        spaced: Words of scripts that have spaces.
        runs: Runs of characters of scripts without spaces, delimited by other characters.
    """

    spaced: frozenset[str]
    runs: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.spaced or self.runs)

    def contain(self, other: "TextWords") -> bool:
        """Return whether this text has all spaced words of `other`, and each of its runs as a part of a run."""
        return other.spaced <= self.spaced and all(any(run in own_run for own_run in self.runs) for run in other.runs)


def split_words(text: str) -> TextWords:
    """Return the words of a text and its runs of scripts without spaces, all case-folded and in NFKC."""
    spaced: set[str] = set()
    runs: list[str] = []
    for found in word_pattern().finditer(_folded(text)):
        word = found.group()
        runs += _RUN.findall(word)
        spaced.update(part for part in _RUN.split(word) if part)
    return TextWords(frozenset(spaced), tuple(runs))


@dataclass(frozen=True, slots=True)
class SearchedText:
    """Text in which names are looked up.

    Attributes:
        folded: The text without differences of case, width, composition and spaces.
    """

    folded: str
    words: TextWords

    def has(self, name: str) -> bool:
        """Return whether the text contains a name as whole words, or, in a script without spaces, as part of a run."""
        searched_name = prepare_search(name)
        if not searched_name.words or not self.words.contain(searched_name.words):
            return False
        at = -1
        for _ in range(MAX_OCCURRENCES):
            at = self.folded.find(searched_name.folded, at + 1)
            if at < 0:
                return False
            if not any(_is_within_word(self.folded, position) for position in (at, at + len(searched_name.folded))):
                return True
        return False


def prepare_search(text: str) -> SearchedText:
    """Prepare a text for the lookup of names."""
    return SearchedText(" ".join(_folded(text).split()), split_words(text))


def _is_within_word(text: str, at: int) -> bool:
    """Return whether a position is between two characters of one word."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.category(after).startswith("M"):
        return True
    is_spaced = not (_RUN.match(before) or _RUN.match(after))
    return is_spaced and all(word_pattern().fullmatch(character) for character in (before, after))


def engine_text(text: str) -> str:
    """Return the text in a form in which Qdrant's word tokenizer finds words in every script.

    A run of characters of a script without spaces becomes its single characters and its pairs of neighbours. The rest
    of such a text is converted to NFKC. A text without such runs is returned unchanged.
    """
    if text.isascii() or not _RUN.search(composed := compose(text)):
        return text
    return _RUN.sub(lambda run: f" {' '.join(_parts(run.group()))} ", composed)


def split_runs(word: str) -> list[str]:
    """Return the runs without spaces of a word, and what is between them, in order."""
    return [part for part in _EACH_RUN.split(word) if part]


def character_parts(run: str) -> list[str]:
    """Return the characters of a run without spaces and its pairs of neighbours; empty for any other text."""
    return _parts(run) if _RUN.fullmatch(run) else []


def _parts(run: str) -> list[str]:
    letters: list[str] = []
    for character in _UNSPOKEN.sub("", run):
        if letters and unicodedata.category(character).startswith("M"):
            letters[-1] += character
        else:
            letters.append(character)
    return [*letters, *(first + second for first, second in pairwise(letters))]


def _folded(text: str) -> str:
    """Return a text without differences of case, width and composition."""
    return compose(compose(text).casefold())


def compose(text: str) -> str:
    """Return a text in NFKC, with at most 30 marks in a row, as in the Stream-Safe Text Format of UAX 15.

    Sorting the marks of a longer run takes quadratic time: 6 s for 65,000.
    """
    mark, long_run = _mark_patterns()
    # A longer run has a mark at a multiple of 30. Most texts have none there, and need no slow search for runs.
    if not text.isascii() and mark.search(text[::_MAX_MARKS]):
        text = long_run.sub(lambda run: run.group()[:_MAX_MARKS], text)
    return unicodedata.normalize("NFKC", text)


@lru_cache(maxsize=1)
def word_pattern() -> re.Pattern[str]:
    r"""Return the pattern of a word: letters, digits, and the marks of Hindi, Thai and so on, which `\w` lacks."""
    return re.compile(f"(?:[^\\W_]|[{_marks()}])+")


@lru_cache(maxsize=1)
def _mark_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a mark and of more than 30 in a row."""
    return re.compile(f"[{_marks()}]"), re.compile(f"[{_marks()}]{{{_MAX_MARKS + 1},}}")


@lru_cache(maxsize=1)
def _marks() -> str:
    """Return the content of a character class: all marks, and two half-width letters that NFKC turns into marks."""
    marks = [chr(code) for code in range(_LAST_MARK) if unicodedata.category(chr(code)).startswith("M")]
    return "".join(_ranges([*marks, "\uff9e", "\uff9f"]))


def _ranges(characters: list[str]) -> Iterator[str]:
    """Yield sorted characters as ranges of a character class."""
    first = last = characters[0]
    for character in [*characters[1:], chr(0)]:
        if ord(character) == ord(last) + 1:
            last = character
            continue
        yield f"{first}-{last}"
        first = last = character


_MIN_CONTENT_CHARS = 4
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
_FIRST_PART = re.compile(r"(\w+)(?:['\u2019]\w+)*")
_SHORT_CHARS = 1_000

# Stop words for counting and truncating texts and for finding names in queries. Keyword search uses Qdrant's own stop
# words and stems. In languages other than English, words of fewer than 4 characters are stop words, except numbers.
_STOP_WORDS = frozenset(
    re.split(
        r"\s+",
        """a about above after again against all am an and any are as at be because been before being below
        between both but by can could did do does doing down during each few for from further had has have
        having he her here hers herself him himself his how i if in into is it its itself just me more most
        my myself no nor not now of off on once only or other our ours ourselves out over own same she
        should so some such than that the their theirs them themselves then there these they this those
        through to too under until up very was we were what when where which while who whom why will with
        would you your yours yourself yourselves""",
    )
)


def content_words(text: str, language: str) -> list[str]:
    """Return the content words of a text in lower case, in order, without the part after an apostrophe."""
    return [word for word, _ in _content_words(text, language)]


def count_content_words(text: str, language: str) -> int:
    """Return the number of content words of a text."""
    if language != DEFAULT_LANGUAGE:
        return len(content_words(text, language))
    return sum(word not in _STOP_WORDS for word in map(str.lower, _FIRST_PART.findall(text)))


def first_content_words(text: str, count: int, language: str) -> str:
    """Return the text up to its content word number `count`, or the whole text if it has fewer content words."""
    # A short text rarely has so many words of any kind, which are counted faster.
    if len(text) <= _SHORT_CHARS and len(_WORD.findall(text)) < count:
        return text
    for number, (_, end) in enumerate(_content_words(text, language), 1):
        if number == count:
            return text[:end]
    return text


def _content_words(text: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield each content word with its end position."""
    for found in _WORD.finditer(text):
        word = found.group().lower().replace("\u2019", "'").partition("'")[0]
        if _is_content_word(word, language):
            yield word, found.end()


def _is_content_word(word: str, language: str) -> bool:
    if language == DEFAULT_LANGUAGE:
        return word not in _STOP_WORDS
    return len(word) >= _MIN_CONTENT_CHARS or word.isdecimal()
