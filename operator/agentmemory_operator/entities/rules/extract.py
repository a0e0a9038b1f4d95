"""Extract the names in a text without a model: by lists, and by the way in which names are written.

| kind | meaning |
|---|---|
| client | user who owns the memory, unless the scope is `global`; for `group:NAME` the name |
| agent | author who stored it |
| technology, system | known name, in any of its spellings |
| domain | host name with a known ending |
| quoted | 3 to 60 characters between quotation marks or backticks that look like a name |
| phrase | two to six capitalised words, without those that are not part of a name |

The last four rows are searched in this order; each skips the text that an earlier one has found. The time is bounded:
at most 8,000 characters are read, and each word is looked up a few times.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentmemory_operator.entities.rules.lists import EntityLists, NameDictionary, build_known_dictionary, word_spans
from agentmemory_operator.entities.rules.name_phrases import find_phrases, is_quoted_name, starts_sentence
from agentmemory_operator.memories.rules.entities import MAX_ENTITIES, MAX_ENTITY_NAME_CHARS, Entity, EntityKind, fold
from agentmemory_operator.spec.caller_rights import GLOBAL, GROUP_PREFIX

MAX_READ_CHARS = 8_000
"""Maximum number of characters that are searched for names. Most memories have some hundred."""

MIN_QUOTED_CHARS, MAX_QUOTED_NAME_CHARS = 3, 60
_QUOTED = re.compile(
    "|".join(
        f"{begin}([^{begins_and_ends}\n]{{{MIN_QUOTED_CHARS},{MAX_QUOTED_NAME_CHARS}}})[{end}]"
        for begin, end, begins_and_ends in (
            ('"', '"', '"'),
            ("`", "`", "`"),
            ("“", "”", "“”"),
            ("„", "“”", "„“”"),
            ("«", "»", "«»"),
        )
    )
)
_HOST = re.compile(r"(?<![\w@.-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.)){1,5}[A-Za-z]{2,12}(?![\w-])(?!\.\w)")
_AROUND_NAMES = "+#"
# Characters that join parts of addresses, paths and variables. A slash or hyphen between two names does not join them.
_JOINED_BEFORE, _JOINED_AFTER, _JOINED = frozenset("\\@_.$"), frozenset("\\@_="), frozenset("/-")

Span = tuple[int, int]


@dataclass(slots=True)
class _Reading:
    """Text with the names found so far."""

    text: str
    lists: EntityLists
    words: list[Span]
    taken: list[Span] = field(default_factory=list)
    found: list[tuple[int, Entity]] = field(default_factory=list)

    def take(self, span: Span, name: str, kind: EntityKind) -> None:
        """Record a name unless it is ignored, and block its span for later kinds."""
        self.taken.append(span)
        if fold(name) not in self.lists.ignored:
            self.found.append((span[0], Entity(name, kind)))

    def is_free(self, span: Span) -> bool:
        """Return whether nothing was found in this span."""
        return not any(start < span[1] and span[0] < end for start, end in self.taken)


def extract_entities(text: str, lists: EntityLists, *, user_id: str, author: str | None) -> tuple[Entity, ...]:
    """Return the entities of a memory, each name once, at most 32. User and author come first."""
    found = [*_around(user_id, author), *find_mentions(text, lists)]
    first: dict[str, Entity] = {}
    for entity in found:
        first.setdefault(fold(entity.name), entity)
    return tuple(first.values())[:MAX_ENTITIES]


def find_mentions(text: str, lists: EntityLists) -> list[Entity]:
    """Return the names in a text, in order of their position. Only its first 8,000 characters are read."""
    text = text[:MAX_READ_CHARS]
    reading = _Reading(text, lists, word_spans(text))
    _find_known(reading)
    _find_domains(reading)
    for match in _QUOTED.finditer(reading.text):
        name = " ".join(next(group for group in match.groups() if group is not None).split())
        if reading.is_free(match.span()) and is_quoted_name(name, reading.lists):
            reading.take(match.span(), name, "quoted")
    for span, name in find_phrases(text, reading.words, reading.taken, lists):
        reading.take(span, name, "phrase")
    return [entity for _, entity in sorted(reading.found, key=lambda entry: entry[0])]


def find_occurrences(text: str, words: list[Span], dictionary: NameDictionary) -> Iterator[tuple[Span, str]]:
    """Yield span and spelling of each dictionary entry in a text.

    Of several entries with the same start, only the longest is yielded.
    """
    index = 0
    while index < len(words):
        start, end = words[index]
        matched = 1
        for count in dictionary.lengths.get(fold(text[start:end]), ()):
            if index + count <= len(words) and (
                hit := _spelling_at(text, start, words[index + count - 1][1], dictionary)
            ):
                yield hit
                matched = count
                break
        index += matched


def _spelling_at(text: str, start: int, end: int, dictionary: NameDictionary) -> tuple[Span, str] | None:
    """Find the dictionary entry from `start` to `end`, including signs that are part of it: C++, C#, .NET.

    None if the dictionary has no such spelling. A name without its signs is another: `Swift+` is not Swift.
    """
    longer = end
    while longer < len(text) and longer < end + 2 and text[longer] in _AROUND_NAMES:
        longer += 1
    before = start - 1 if start and text[start - 1] == "." and (start == 1 or text[start - 2].isspace()) else start
    for begin in (before, start):
        spelling = fold(text[begin:longer])
        if spelling in dictionary.spellings:
            return (begin, longer), spelling
    return None


def _around(user_id: str, author: str | None) -> Iterator[Entity]:
    if user_id != GLOBAL:
        yield Entity(user_id.removeprefix(GROUP_PREFIX)[:MAX_ENTITY_NAME_CHARS], "client", "about")
    if author:
        yield Entity(author[:MAX_ENTITY_NAME_CHARS], "agent", "source")


def _find_known(reading: _Reading) -> None:
    text, dictionary = reading.text, build_known_dictionary(reading.lists)
    for span, spelling in find_occurrences(text, reading.words, dictionary):
        known_name = dictionary.spellings[spelling]
        matches_case = known_name.exact is None or text[span[0] : span[1]] == known_name.exact
        is_word = known_name.exact is not None and (starts_sentence(text, span[0]) or _is_in_name(text, span))
        if matches_case and not is_word and _is_separate(text, span):
            reading.take(span, known_name.name, known_name.kind)


def _is_in_name(text: str, span: Span) -> bool:
    """Return whether a capitalised word follows directly. In "Swift Courier", Swift is not the language."""
    return text[span[1] : span[1] + 1] == " " and text[span[1] + 1 : span[1] + 2].isupper()


def _is_separate(text: str, span: Span) -> bool:
    """Return whether a name is not part of a path, address, variable or longer host name."""
    start, end = span
    before, after, beyond = text[start - 1 : start] if start else "", text[end : end + 1], text[end + 1 : end + 2]
    if before in _JOINED_BEFORE or (before in _JOINED and not text[start].isupper()):
        return False
    return (
        after not in _JOINED_AFTER
        and not (after == "." and beyond.isalnum())
        and not (after == "/" and beyond.islower())
    )


def _find_domains(reading: _Reading) -> None:
    for match in _HOST.finditer(reading.text):
        host = match.group().casefold().removeprefix("www.")
        is_file = reading.text[match.start() - 1 : match.start()] in ("/", "\\") and not _is_after_scheme(
            reading.text, match.start()
        )
        if host.rpartition(".")[2] in reading.lists.domains and not is_file and reading.is_free(match.span()):
            reading.take(match.span(), host, "domain")


def _is_after_scheme(text: str, start: int) -> bool:
    return text[max(0, start - 3) : start] == "://"
