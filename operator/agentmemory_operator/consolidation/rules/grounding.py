"""Find numbers, dates and names in a model's statement that its sources do not contain. Pure.

A number counts as contained in several spellings: 1,000 and 1000, 07 and 7, two and 2, May and 2026-05-07. A name is a
word with a capital letter. At the start of a sentence a capitalised word is no name if it is a common word, or shares
its stem with a word of a source. Scripts without capital letters have no names here.

The relation between names and numbers is not checked: a model may still distort a sentence.
"""

import re
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"[^\W_]+(?:[.,:/'\u2019_-][^\W_]+)*")
_ENDS = frozenset('.!?:;\n"\u201c\u201d(\u2013\u2014')
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"\d+\.\d+")
_DAY = re.compile(r"\d{4}-(\d{2})(?:-\d{2})?")
_DIGITS = re.compile(r"\d+")
_PARTS = re.compile(r"[.,:/_-]")
_POSSESSIVE = re.compile(r"['\u2019](?:s|S)?$")
# Forms of a word share a stem (lives, lived, living): the word without its last 3 characters, and at least 3 of them.
_STEM_CHARS = 3
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORT_CHARS = 3
_COUNTED = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_NUMBERS = {word: str(number) for number, word in enumerate(_COUNTED)}
_NUMBERS |= {"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "hundred": "100", "thousand": "1000"}
_NUMBERS |= {"twice": "2", "dozen": "12", "first": "1", "second": "2", "third": "3", "once": "1"}
# In lower case these words need no source: they are usually pronouns or mark an order, and rarely state a number.
_SELDOM_NUMBERS = frozenset({"one", "once", "first", "second", "third"})
_USUAL_TEXT = """
a about after all also always an and another any are as ask asks assistant at be because before both but buy buys by
call can client cost costs customer did dislikes do does drinks drives during each eats either enjoys every
everybody everyone few first for from get gets go goes had has hates have he her here his how however i if in is it
its just keep keeps know knows learn learns leaves like likes live lives loves made make makes many meets most moved
my need needs neither never no nobody not now of often on once one only or orders our owner owns pays people person
plans plays prefers prefer reads second send sends several she since so some somebody someone sometimes speaks stay
stays studies studied that the their then there these they third this those though to travels under until use used
user users uses usually visited wants want was we went were what when where which while who whose why will with
without work worked works would yes you your
"""
# Common words at the start of a sentence, which are no names.
_USUAL = frozenset(_USUAL_TEXT.split())


def find_ungrounded(statement: str, sources: Iterable[str], *, words: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the numbers, dates and names of a statement that no source contains, each once, in order.

    Args:
        sources: Texts from which the statement was made, and names of their speakers.
        words: Additional words that the statement may contain literally, e.g. dates.
    """
    source_words, figures = _known(sources)
    source_words |= {word.casefold() for word in words}
    missing = (
        word
        for word, starts_sentence in _words(statement)
        if not (
            word.casefold() in source_words or _has_figures(word, figures)
            if _DIGITS.search(word)
            else _is_known(word, source_words, figures, begins=starts_sentence)
        )
    )
    return tuple(dict.fromkeys(missing))


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a text, each with True if it starts a sentence."""
    end = 0
    for match in _WORD.finditer(text):
        gap = text[end : match.start()]
        yield _POSSESSIVE.sub("", match[0]), end == 0 or not _ENDS.isdisjoint(gap)
        end = match.end()


def _known(sources: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words and the numbers in the sources."""
    words: set[str] = set()
    figures: set[str] = set()
    for source in sources:
        for word, _ in _words(source):
            folded = word.casefold()
            words.update((folded, *_PARTS.split(folded)))
            figures.update(_figures(word))
            if folded in _NUMBERS:
                figures.add(_NUMBERS[folded])
            if (month := _month_of(word)) is not None:
                figures.add(str(month))
            if day := _DAY.fullmatch(word):
                words.add(MONTHS[int(day[1]) - 1] if 1 <= int(day[1]) <= len(MONTHS) else "")
    return frozenset(words), frozenset(figures)


def _figures(word: str) -> Iterator[str]:
    """Yield the numbers within a word, without thousands separators and leading zeros."""
    if _THOUSANDS.fullmatch(word):
        word = word.replace(",", "")
    if _DECIMAL.fullmatch(word):
        yield word
        return
    for digits in _DIGITS.findall(word):
        yield digits.lstrip("0") or "0"


def _has_figures(word: str, figures: frozenset[str]) -> bool:
    return all(figure in figures for figure in _figures(word))


def _is_known(word: str, words: frozenset[str], figures: frozenset[str], *, begins: bool) -> bool:
    folded = word.casefold()
    if folded in words:
        return True
    if folded in _NUMBERS and _NUMBERS[folded] in figures and not word[0].isupper():
        return True
    if not any(char.isupper() for char in word):
        return folded not in _NUMBERS or folded in _SELDOM_NUMBERS
    if (month := _month_of(word)) is not None:
        return MONTHS[month - 1] in words or MONTHS[month - 1][:_SHORT_CHARS] in words
    if begins and (folded in _USUAL or _has_stem(folded, words)):
        return True
    parts = _PARTS.split(word)
    return len(parts) > 1 and all(_is_known(part, words, figures, begins=begins) for part in parts if part)


def _month_of(word: str) -> int | None:
    """Return the number of a month's name with a capital letter, or None: `may` is no month."""
    folded = word.casefold()
    if not word[:1].isupper():
        return None
    for number, month in enumerate(MONTHS, 1):
        if folded in (month, month[:_SHORT_CHARS]):
            return number
    return None


def _has_stem(folded: str, words: frozenset[str]) -> bool:
    stem = folded[: max(_STEM_CHARS, len(folded) - _STEM_CHARS)]
    return len(folded) > _STEM_CHARS and any(word.startswith(stem) for word in words)
