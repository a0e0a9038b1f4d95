"""Holds the limits of JSON before anything is made of it: counts strings, lists and objects in the bytes of a body.

What such a value takes in memory has little to do with its bytes: `{},` is 3 bytes and an object of 64. So a body is
read as brackets and strings first, which makes nothing, and a batch is cut into its items, each of which is then
parsed by itself. Numbers need no count: their bytes bound them.

The work is done by generators that yield where they may be interrupted (`runtime.slices`).
"""

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import orjson

from agentmemory_operator.entrypoints.api.load.in_flight import MIB
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, once

ITEM_MAX_BYTES = MIB
# A vector of the largest size is one list; the longest `source_ids` are 1,000 strings.
ITEM_MAX_PARTS = 32_768
BATCH_MAX_PARTS = 16 * ITEM_MAX_PARTS
# With those of items that are refused: so many are counted in about a second.
SEEN_MAX_PARTS = 2 * BATCH_MAX_PARTS
# Metadata have 16 levels, filters 8 of two each.
MAX_DEPTH = 32
# As deep as the parser itself goes.
PARSED_DEPTH = 1_024
# What each part counts in the room for bodies: an object with one short key takes some 300 bytes, its copies included.
PART_BYTES = 32

# Between two looks at the clock.
_TOKENS_AT_ONCE = 1_024
_BYTES_AT_ONCE = 64 << 10
_TOKEN = re.compile(rb'"[^"\\]*+"|["\[\]{}]')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Also one that is not closed, to the end: each quote is looked at once.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING, _CLOSING, _BLANK = frozenset(b"[{"), frozenset(b"]}"), b" \t\r\n"


class TooMuch(Exception):
    """A document is beyond a limit, as a whole or in one field."""

    def __init__(self, message: str, *, field: str = "body") -> None:
        super().__init__(message)
        self.field = field


class NoJson(Exception):
    """A document is no JSON by its brackets and quotes, or no parser's by its depth."""


@dataclass(frozen=True, slots=True)
class ItemSpan:
    """Where an item of a list stands, and why it is not to be parsed."""

    start: int
    end: int
    fault: str = ""


@dataclass(slots=True)
class Cut:
    """A document without the items of its list.

    Attributes:
        rest: the document with the list emptied.
        items: None where the document has no such list.
        parts: strings (keys too), lists and objects in all that is to be parsed.
    """

    rest: bytes = b""
    items: list[ItemSpan] | None = None
    parts: int = 0


@dataclass(slots=True)
class _Count:
    """What has been seen of one item, or of what is around the list."""

    parts: int = 0
    depth: int = 0

    @property
    def fault(self) -> str:
        """Why it is not to be parsed."""
        if self.parts > ITEM_MAX_PARTS:
            return f"has more than {ITEM_MAX_PARTS:,} strings, lists and objects: send less, or split it"
        return f"is nested deeper than {MAX_DEPTH} levels" if self.depth > MAX_DEPTH else ""


def parts_at_most(document: bytes) -> int:
    """How many parts a document has, as if each bracket and quote in its strings were one of its own."""
    return document.count(b"[") + document.count(b"{") + document.count(b'"') // 2


def few_parts(document: bytes) -> int | None:
    """How many parts a document has at the most, where a glance shows that it keeps the limits; None of others."""
    if len(document) > ITEM_MAX_BYTES:
        return None
    opened = document.count(b"[") + document.count(b"{")
    most = opened + document.count(b'"') // 2
    if most > ITEM_MAX_PARTS:
        return None
    return most if opened <= MAX_DEPTH or _is_shallow(document) else None


def _is_shallow(document: bytes) -> bool:
    """Whether the brackets of a document, if they are in order, are at most `MAX_DEPTH` deep."""
    brackets = _STRING.sub(b"", document).translate(_AS_SQUARE, _NO_BRACKETS)
    # Of the opening ones there are few; so many closing ones would be gone through again and again.
    if brackets.count(b"[") != brackets.count(b"]"):
        return False
    for _ in range(MAX_DEPTH):
        # Takes away the innermost level.
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def count_parts(document: bytes) -> Generator[None, None, int]:
    """How many strings (keys too), lists and objects a document has at the most.

    Raises:
        TooMuch: they are too many, or nested too deeply; says so.
    """
    if (few := few_parts(document)) is not None:
        return few
    count, depth = _Count(), 0
    for number, (start, _) in enumerate(_tokens(document)):
        if number % _TOKENS_AT_ONCE == 0:
            yield
        depth = _deeper(depth, document[start])
        count.parts += document[start] not in _CLOSING
        count.depth = max(count.depth, depth)
        if count.parts > ITEM_MAX_PARTS:
            break
    if count.fault:
        raise TooMuch(count.fault)
    return count.parts


def cut_list(document: bytes, name: str, *, max_items: int) -> Generator[None, None, Cut]:
    """The document and, apart from it, where each item of its list `name` stands.

    The document is JSON if the rest is and every item is.

    Raises:
        TooMuch: there are too many items, too much in all of them, or too much around them.
        NoJson: it is none.
    """
    cutter = _Cutter(document, name, max_items)
    for number, (start, end) in enumerate(_tokens(document)):
        if number % _TOKENS_AT_ONCE == 0:
            yield
        cutter.take(start, end)
    return cutter.cut()


@dataclass(slots=True)
class _Cutter:
    """Reads the tokens of a document in order."""

    document: bytes
    name: str
    max_items: int
    _depth: int = 0
    _last: tuple[int, int] = (0, 0)
    # Where the items of a list under way began, and where those of all lists of the name are.
    _items: list[ItemSpan] | None = None
    _is_inside: bool = False
    _item_start: int = 0
    _kept: list[tuple[int, int]] = field(default_factory=list)
    _kept_start: int = 0
    _item: _Count = field(default_factory=_Count)
    _around: _Count = field(default_factory=_Count)
    # Of items that will be parsed, and of everything.
    _made: int = 0
    _seen: int = 0

    def take(self, start: int, end: int) -> None:
        """Take the next token."""
        before = self._depth
        self._depth = _deeper(before, self.document[start])
        if self._is_inside and before == 2:
            place = self._last[1]
            while (place := self.document.find(b",", place, start)) >= 0:
                self._end_item(place)
                place += 1
                self._item_start = place
        is_closing = self.document[start] in _CLOSING
        if self._is_inside and is_closing and self._depth == 1:
            self._leave(start)
        count = self._item if self._is_inside else self._around
        count.parts += not is_closing
        count.depth = max(count.depth, self._depth - 2 * self._is_inside)
        self._seen += not is_closing
        if self._seen > SEEN_MAX_PARTS:
            raise TooMuch(f"has more than {SEEN_MAX_PARTS:,} strings, lists and objects: send less")
        if self._around.parts > ITEM_MAX_PARTS:
            raise TooMuch(self._around.fault)
        if before == 1 and self._depth == 2 and self._begins_list(start):
            self._enter(end)
        self._last = start, end

    def cut(self) -> Cut:
        """What was found."""
        if self._depth:
            raise NoJson("a bracket is not closed")
        if self._around.fault:
            raise TooMuch(self._around.fault)
        kept = [*self._kept, (self._kept_start, len(self.document))]
        if sum(end - start for start, end in kept) > ITEM_MAX_BYTES:
            raise TooMuch(f"has more than {ITEM_MAX_BYTES // MIB} MiB besides {self.name!r}")
        rest = b"".join(self.document[start:end] for start, end in kept)
        return Cut(rest, self._items, self._made + self._around.parts)

    def _begins_list(self, start: int) -> bool:
        """Whether the bracket stands behind the list's name."""
        name = self.document[slice(*self._last)]
        is_key = self.document[start] == ord("[") and name[:1] == b'"' and len(name) <= 8 * len(self.name) + 2
        if not is_key or self.document[self._last[1] : start].strip(_BLANK) != b":":
            return False
        try:
            return bool(orjson.loads(name) == self.name)
        except orjson.JSONDecodeError:
            raise NoJson("a key is not a string") from None

    def _enter(self, end: int) -> None:
        self._is_inside, self._items, self._item = True, [], _Count()
        self._item_start = end
        self._kept.append((self._kept_start, end))

    def _leave(self, start: int) -> None:
        assert self._items is not None
        # Blank is the inside of a list without items, and nothing else.
        if self._items or self.document[self._item_start : start].strip(_BLANK):
            self._end_item(start)
        self._is_inside, self._kept_start = False, start

    def _end_item(self, end: int) -> None:
        assert self._items is not None
        fault = self._item.fault
        if end - self._item_start > ITEM_MAX_BYTES:
            fault = f"is larger than {ITEM_MAX_BYTES // MIB} MiB"
        self._items.append(ItemSpan(self._item_start, end, fault))
        self._made += 0 if fault else self._item.parts
        self._item = _Count()
        if self._made > BATCH_MAX_PARTS:
            raise TooMuch(f"has more than {BATCH_MAX_PARTS:,} strings, lists and objects: send several batches")
        if len(self._items) > self.max_items:
            raise TooMuch(f"has more than {self.max_items:,} items: send several batches", field=self.name)


def _tokens(document: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each string and each bracket outside of strings begins and ends."""
    place = 0
    while place < len(document):
        for token in _TOKEN.finditer(document, place):
            place = token.end()
            if document[token.start()] == ord('"') and place - token.start() == 1:
                # With escapes: read in pieces, so that no single match is long.
                place = _end_of_string(document, place)
                yield token.start(), place
                break
            yield token.span()
        else:
            return


def _end_of_string(document: bytes, place: int) -> int:
    while place < len(document):
        inside = _INSIDE.match(document, place, place + _BYTES_AT_ONCE)
        assert inside is not None
        if inside.end() < len(document) and document[inside.end()] == ord('"'):
            return inside.end() + 1
        if inside.end() == place:
            break
        place = inside.end()
    raise NoJson("a string is not closed")


def _deeper(depth: int, token: int) -> int:
    """The depth behind a token, given by its first byte."""
    if token in _OPENING:
        if depth == PARSED_DEPTH:
            raise NoJson(f"it is nested deeper than {PARSED_DEPTH:,} levels")
        return depth + 1
    if token in _CLOSING:
        if depth == 0:
            raise NoJson("a bracket was not opened")
        return depth - 1
    return depth


def refuse_repeated_keys(document: bytes, value: Any) -> None:
    """Pass where each object of a document has each key once, escapes resolved.

    Parsers keep the last value of two, and nobody hears of the first. A parsed document has fewer keys than there are
    members in its bytes if a key is repeated. Both are counted without going through the numbers of a vector: each
    member has one colon outside of strings, and the search for objects ends with the last opening brace.

    Args:
        document: JSON.
        value: what a parser has made of it.

    Raises:
        RepeatedKey: an object has a key twice.
    """
    braces, colons = document.count(b"{"), document.count(b":")
    if braces == 0 or _keys_of(value, braces) == colons:
        return
    # Some are inside of strings.
    bare = _STRING.sub(b"", document)
    if _keys_of(value, bare.count(b"{")) != bare.count(b":"):
        json.loads(document, object_pairs_hook=once)
        raise RepeatedKey("a key is repeated in one object")


def _keys_of(value: Any, objects: int) -> int:
    """How many keys the objects in a value have.

    Args:
        objects: how many there are at most; those in lists are looked for last.
    """
    keys, found = 0, 0
    pending, lists = [value], list[tuple[int, int, list[Any]]]()
    while pending or lists:
        if not pending:
            # The shortest first: the longest is a vector.
            pending = [child for child in heappop(lists)[2] if isinstance(child, (dict, list))]
            continue
        node = pending.pop()
        if isinstance(node, dict):
            keys, found = keys + len(node), found + 1
            if found == objects:
                break
            pending += [child for child in node.values() if isinstance(child, (dict, list))]
        elif isinstance(node, list):
            heappush(lists, (len(node), id(node), node))
    return keys
