"""Lists of known names: technologies, systems, endings of host names, and words that are not names.

Names are literal strings, looked up word by word. No user input is used as a regular expression.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from agentmemory_operator.memories.rules.entities import EntityKind, fold
from agentmemory_operator.spec.effective.entities import DeclaredName, EntitySettings

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class ListedName:
    """Known name.

    Attributes:
        name: Name as stored on memories.
        aliases: Other spellings, in any case.
        is_case_sensitive: True if it is also an everyday word. It then counts only in this spelling, and neither at the
            start of a sentence nor before a capitalised word.
    """

    name: str
    aliases: tuple[str, ...] = ()
    is_case_sensitive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityLists:
    """Lists for the extraction of names.

    Attributes:
        domains: Endings of host names, without the dot.
        ignored: Texts that are not names, folded.
        words: Everyday words, folded.
        times: Words for days, months and quarters, folded.
        noise: Words that no name starts with, such as articles and greetings, folded.
        openers: Words that a name may start with, even at the start of a sentence, folded.
    """

    technologies: tuple[ListedName, ...] = ()
    systems: tuple[ListedName, ...] = ()
    domains: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()
    noise: frozenset[str] = frozenset()
    openers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KnownName:
    """Name that a spelling refers to.

    Attributes:
        name: Name as stored on memories.
        exact: The only accepted spelling if case matters, else None.
    """

    name: str
    kind: EntityKind
    exact: str | None = None


@dataclass(frozen=True, slots=True)
class NameDictionary:
    """Lookup of names by spelling.

    Attributes:
        spellings: Name by folded spelling.
        lengths: Word counts of the spellings by their first word, longest first.
    """

    spellings: Mapping[str, KnownName] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text: a run of letters and digits."""
    return [match.span() for match in _WORD.finditer(text)]


@lru_cache(maxsize=256)
def build_known_dictionary(lists: EntityLists) -> NameDictionary:
    """Build the dictionary of the known names. A technology takes precedence over a system with the same spelling."""
    found: dict[str, KnownName] = {}
    names_by_kind: tuple[tuple[EntityKind, tuple[ListedName, ...]], ...] = (
        ("technology", lists.technologies),
        ("system", lists.systems),
    )
    for kind, names in names_by_kind:
        for spelling, known_name in _spellings(kind, names):
            if spelling not in lists.ignored:
                found.setdefault(spelling, known_name)
    return build_dictionary(found)


def build_dictionary(names: Mapping[str, KnownName]) -> NameDictionary:
    """Build a dictionary of folded spellings. A spelling without a word is left out."""
    spellings: dict[str, KnownName] = {}
    lengths: dict[str, set[int]] = {}
    for spelling, known_name in names.items():
        if words := word_spans(spelling):
            start, end = words[0]
            lengths.setdefault(spelling[start:end], set()).add(len(words))
            spellings.setdefault(_within_signs(spelling, start, words[-1][1]), known_name)
    return NameDictionary(spellings, {first: sorted(counts, reverse=True) for first, counts in lengths.items()})


def _within_signs(spelling: str, start: int, end: int) -> str:
    """Cut a spelling from its first to its last word, keeping signs that are part of it: .NET, C++, C#."""
    begin = start - 1 if spelling[start - 1 : start] == "." else start
    while spelling[end : end + 1] in ("+", "#"):
        end += 1
    return spelling[begin:end]


def build_lists(settings: EntitySettings, product: EntityLists) -> EntityLists:
    """Build the lists of an object.

    Its technologies and systems, if set, replace the built-in lists. Its ignored texts extend the built-in ones.
    """
    return replace(
        product,
        technologies=_own(settings.technologies, product.technologies),
        systems=_own(settings.systems, product.systems),
        ignored=product.ignored | frozenset(map(fold, settings.ignored)),
    )


def _own(declared: Sequence[DeclaredName] | None, product: tuple[ListedName, ...]) -> tuple[ListedName, ...]:
    return product if declared is None else tuple(ListedName(name.name, name.aliases, name.cased) for name in declared)


def may_be_name(name: str, lists: EntityLists) -> bool:
    """Return whether the lists permit a text as a name. They permit neither ignored texts nor everyday words.

    A capitalised everyday word is permitted, unless it is a word for a time or a word that no name starts with.
    """
    folded = fold(name)
    is_word = folded in lists.words and not name[:1].isupper()
    return bool(folded) and not (folded in lists.ignored or folded in lists.noise or folded in lists.times or is_word)


def parse_names(document: Iterable[Mapping[str, Any]]) -> tuple[ListedName, ...]:
    """Parse the entries of a list file: `name`, and optionally `aliases` and `cased` (case-sensitive)."""
    return tuple(
        ListedName(str(entry["name"]), tuple(map(str, entry.get("aliases", ()))), bool(entry.get("cased", False)))
        for entry in document
    )


def _spellings(kind: EntityKind, names: Iterable[ListedName]) -> Iterator[tuple[str, KnownName]]:
    for entry in names:
        yield (fold(entry.name), KnownName(entry.name, kind, entry.name if entry.is_case_sensitive else None))
        for alias in entry.aliases:
            yield fold(alias), KnownName(entry.name, kind)
