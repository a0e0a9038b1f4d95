"""Distinguish names from prose, code and log lines, in quoted texts and in runs of capitalised words."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from agentmemory_operator.entities.rules.lists import EntityLists, word_spans
from agentmemory_operator.memories.rules.entities import fold

Span = tuple[int, int]

MAX_PHRASE_WORDS = 6
MAX_COMMON_SHARE = 0.5
"""Maximum share of everyday words in a name. A text with more is prose. New York has exactly this share."""

_CODE = frozenset("/\\<>{}=()[];|*$%^~_@")
_CODE_BEFORE, _CODE_AFTER = frozenset("/\\<_{=@#$"), frozenset("/\\_={")
_SENTENCE_END = frozenset(".!?:;•\n")
_PARTS = frozenset(
    {"of", "de", "du", "des", "da", "di", "del", "la", "le", "van", "von", "der", "den", "zu", "zur", "&"}
)
_OPENING = " \t\"'“„«(`*-"
_JOINTS = frozenset({" ", "-", "\u2019", "'", " & ", ". "})
_MAX_QUOTED_WORDS = 8


def starts_sentence(text: str, start: int) -> bool:
    """Return whether a sentence starts at an index of a text, judged by punctuation."""
    before = text[:start].rstrip(_OPENING)
    return not before or before[-1] in _SENTENCE_END


def is_quoted_name(text: str, lists: EntityLists) -> bool:
    """Return whether a text between quotation marks looks like a name, rather than prose, code or a sentence."""
    words = [text[start:end] for start, end in word_spans(text)]
    if (
        not words
        or not text.isprintable()
        or len(words) > _MAX_QUOTED_WORDS
        or not _CODE.isdisjoint(text)
        or text[-1] in ".!?,:…"
    ):
        return False
    if not any(word[0].isupper() for word in words) or (len(words) == 1 and _is_code_word(words[0])):
        return False
    return not _is_prose(words, lists)


def find_phrases(
    text: str, words: Sequence[Span], found_spans: Sequence[Span], lists: EntityLists
) -> Iterator[tuple[Span, str]]:
    """Yield span and text of each name of two to six capitalised words.

    Args:
        words: Spans of the words of the text.
        found_spans: Spans of names already found; no phrase overlaps them.
    """
    for run in _runs(text, words, sorted(found_spans), lists):
        trimmed = _trimmed(text, run, lists)
        if 2 <= len(trimmed) <= MAX_PHRASE_WORDS and _is_name([text[start:end] for start, end in trimmed], lists):
            span = trimmed[0][0], trimmed[-1][1]
            yield span, " ".join(text[span[0] : span[1]].split())


def _runs(text: str, words: Sequence[Span], found: Sequence[Span], lists: EntityLists) -> Iterator[list[Span]]:
    """Yield runs of capitalised words, including small words within names between them."""
    run: list[Span] = []
    found_spans = iter([*found, (len(text), len(text))])
    nearest = next(found_spans)
    for start, end in words:
        while nearest[1] <= start and nearest[0] < len(text):
            nearest = next(found_spans)
        word = text[start:end]
        is_free = end <= nearest[0] and not _is_in_code(text, start, end)
        joins = bool(run) and text[run[-1][1] : start] in _JOINTS and is_free and _joins(text, run[-1], start)
        if is_free and word[0].isupper() and not _is_code_word(word):
            if joins:
                run.append((start, end))
                continue
            yield run
            run = [(start, end)]
        elif joins and word in _PARTS and (word != "of" or _is_one(text, run, lists)):
            run.append((start, end))
        else:
            yield run
            run = []
    yield run


def _joins(text: str, before: Span, start: int) -> bool:
    """Return whether a word continues a name: after a full stop only if that follows an initial or a title."""
    return not text[before[1] : start].startswith(".") or before[1] - before[0] <= 2


def _is_one(text: str, run: Sequence[Span], lists: EntityLists) -> bool:
    """Return whether a run has one word so far: "Bank of America" is one name, "Anna Schmidt of Acme" is two."""
    return sum(fold(text[start:end]) not in lists.noise for start, end in run) == 1


def _trimmed(text: str, run: Sequence[Span], lists: EntityLists) -> list[Span]:
    """Remove everyday words at the start of a run, and words at its end that end no name."""
    leading = list(takewhile(lambda span: _is_trimmed(text, span, lists), run))
    remaining = list(run[len(leading) :])
    while remaining and _ends_no_name(text[remaining[-1][0] : remaining[-1][1]], lists):
        remaining.pop()
    # Add a single everyday word before a name, unless it starts a sentence, as in New York and Big Corp.
    if leading and len(remaining) == 1 and not _is_noise(text, leading[-1], lists):
        remaining.insert(0, leading[-1])
    return remaining


def _ends_no_name(word: str, lists: EntityLists) -> bool:
    return word in _PARTS or word == "s" or (fold(word) in lists.noise and (word == "I" or not word.isupper()))


def _is_trimmed(text: str, span: Span, lists: EntityLists) -> bool:
    word = fold(text[span[0] : span[1]])
    is_common = word in lists.words or word in lists.noise
    return (is_common and word not in lists.openers) or text[span[0] : span[1]] in _PARTS


def _is_noise(text: str, span: Span, lists: EntityLists) -> bool:
    """Return whether an everyday word is not part of a name.

    True for articles, pronouns, words for times, and at the start of a sentence.
    """
    word = fold(text[span[0] : span[1]])
    return word in lists.noise or word in lists.times or starts_sentence(text, span[0])


def _is_name(words: Sequence[str], lists: EntityLists) -> bool:
    if any(fold(word) in lists.times for word in words) or all(word.isupper() and len(word) > 1 for word in words):
        return False
    return sum(word not in _PARTS for word in words) >= 2 and not _is_prose(words, lists)


def _is_prose(words: Sequence[str], lists: EntityLists) -> bool:
    common = sum(fold(word) in lists.words for word in words)
    return common > MAX_COMMON_SHARE * len(words)


def _is_code_word(word: str) -> bool:
    """Return whether a word is written in camelCase."""
    return word[0].islower() and any(character.isupper() for character in word)


def _is_in_code(text: str, start: int, end: int) -> bool:
    return (start > 0 and text[start - 1] in _CODE_BEFORE) or text[end : end + 1] in _CODE_AFTER
