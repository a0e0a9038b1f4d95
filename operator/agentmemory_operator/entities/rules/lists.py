"""What is known of names before any text is read: technologies, systems, endings of domains, words that are no names.

Names are literal strings, looked up word by word; nothing that a user writes is ever read as a pattern.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from agentmemory_operator.memories.rules.entities import EntityKind, fold
from agentmemory_operator.spec.effective.entities import EntitySettings, OwnName

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class ListedName:
    """A known name.

    Attributes:
        aliases: other spellings; case tells none apart.
        cased: it is a word of everyday language too: it counts only as it is spelt here, inside a sentence.
    """

    name: str
    aliases: tuple[str, ...] = ()
    cased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityLists:
    """The lists that texts are read by.

    Attributes:
        domains: endings of domain names, without the dot.
        ignored: names that are none, folded.
        words: of everyday language, folded.
        times: of these, those of days, months and quarters.
        noise: of these, those that no name begins with.
        openers: of these, those that names begin with, even where a sentence does too.
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
class Known:
    """What a spelling stands for.

    Attributes:
        exact: as it has to be spelt, where case counts.
    """

    name: str
    kind: EntityKind
    exact: str | None = None


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Spellings by themselves, folded.

    Attributes:
        lengths: by the first word of a spelling, how many words those that begin with it have, the longest first.
    """

    spellings: Mapping[str, Known] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)


def word_starts(text: str) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends: letters and digits are words, everything else parts them."""
    return [match.span() for match in _WORD.finditer(text)]


@lru_cache(maxsize=256)
def dictionary_of(lists: EntityLists) -> Dictionary:
    """The known names by their spellings; a technology wins over a system."""
    found: dict[str, Known] = {}
    listed: tuple[tuple[EntityKind, tuple[ListedName, ...]], ...] = (
        ("technology", lists.technologies),
        ("system", lists.systems),
    )
    for kind, names in listed:
        for spelling, known in _spellings(kind, names):
            if spelling not in lists.ignored:
                found.setdefault(spelling, known)
    return dictionary_over(found)


def dictionary_over(found: Mapping[str, Known]) -> Dictionary:
    """The dictionary of some spellings, each folded, but for signs at their ends; one without a word is left out."""
    spellings: dict[str, Known] = {}
    lengths: dict[str, set[int]] = {}
    for spelling, known in found.items():
        if words := word_starts(spelling):
            start, end = words[0]
            lengths.setdefault(spelling[start:end], set()).add(len(words))
            spellings.setdefault(_within_signs(spelling, start, words[-1][1]), known)
    return Dictionary(spellings, {first: sorted(counts, reverse=True) for first, counts in lengths.items()})


def _within_signs(spelling: str, start: int, end: int) -> str:
    """A spelling from its first word to its last, with the signs that belong to them: .NET, C++, C#."""
    begin = start - 1 if spelling[start - 1 : start] == "." else start
    while spelling[end : end + 1] in ("+", "#"):
        end += 1
    return spelling[begin:end]


def lists_of(settings: EntitySettings, product: EntityLists) -> EntityLists:
    """The lists of an object: its own over the product's."""
    return replace(
        product,
        technologies=_own(settings.technologies, product.technologies),
        systems=_own(settings.systems, product.systems),
        ignored=product.ignored | frozenset(map(fold, settings.ignored)),
    )


def _own(own: Sequence[OwnName] | None, product: tuple[ListedName, ...]) -> tuple[ListedName, ...]:
    return product if own is None else tuple(ListedName(one.name, one.aliases, one.cased) for one in own)


def may_be_name(name: str, lists: EntityLists) -> bool:
    """Whether the lists leave a name that somebody calls one: no ignored name, and no word of everyday language.

    Of a single word that is one of those, a capital letter tells that it is a name too.
    """
    folded = fold(name)
    is_word = folded in lists.words and not name[:1].isupper()
    return bool(folded) and not (folded in lists.ignored or folded in lists.noise or folded in lists.times or is_word)


def names_in(document: Iterable[Mapping[str, Any]]) -> tuple[ListedName, ...]:
    """The names of a list as it lies in a file."""
    return tuple(
        ListedName(str(entry["name"]), tuple(map(str, entry.get("aliases", ()))), bool(entry.get("cased", False)))
        for entry in document
    )


def _spellings(kind: EntityKind, names: Iterable[ListedName]) -> Iterator[tuple[str, Known]]:
    for listed in names:
        yield fold(listed.name), Known(listed.name, kind, listed.name if listed.cased else None)
        for alias in listed.aliases:
            yield fold(alias), Known(listed.name, kind)
