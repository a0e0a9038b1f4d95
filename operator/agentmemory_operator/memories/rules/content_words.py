"""The words of a text that say something: not those that every text of its language has.

The engine has stop words and stems of its own for what it searches; these only count and cut. Of other languages than
English short words are taken for such words: no list of theirs is kept here.
"""

import re
from collections.abc import Iterator

from agentmemory_operator.collections.rules.collection import DEFAULT_LANGUAGE

_SHORTEST = 4
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")

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
    """The content words of a text in lower case, in order; what follows an apostrophe is dropped."""
    return [word for word, _ in _content_words(text, language)]


def first_content_words(text: str, count: int, language: str) -> str:
    """The text up to its content word of this number; all of it where it has fewer."""
    for place, (_, end) in enumerate(_content_words(text, language), 1):
        if place == count:
            return text[:end]
    return text


def _content_words(text: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield each content word and where it ends."""
    for found in _WORD.finditer(text):
        word = found.group().lower().replace("\u2019", "'").partition("'")[0]
        if _says_something(word, language):
            yield word, found.end()


def _says_something(word: str, language: str) -> bool:
    if language == DEFAULT_LANGUAGE:
        return word not in _STOP_WORDS
    return len(word) >= _SHORTEST or word.isdecimal()
