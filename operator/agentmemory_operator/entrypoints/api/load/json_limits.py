"""Enforce limits on JSON before it is parsed, by counting its *parts*: strings (keys included), lists and objects.

The memory of a parsed value has little relation to its size: `{},` is 3 bytes, but becomes an object of 64 bytes. So
the brackets and strings in the bytes of a body are counted first, without building its values. A batch is split into
its items, and each item is parsed on its own. Numbers are not counted: the limit on the size of a body also bounds
their number.
`check_unique_keys` then rejects parsed documents with repeated keys.

Long scans are generators that yield where they may be interrupted (`runtime.slices`).
"""

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import orjson

from agentmemory_operator.entrypoints.api.load.request_slots import MIB
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, reject_repeated_keys

MAX_ITEM_BYTES = MIB
# Maximum parts of an item. A vector of maximum size is a single list, and the longest `source_ids` have 1,000 strings.
MAX_ITEM_PARTS = 32_768
MAX_BATCH_PARTS = 16 * MAX_ITEM_PARTS
# Maximum parts to scan, including those of rejected items. Counting this many takes about a second.
MAX_SCANNED_PARTS = 2 * MAX_BATCH_PARTS
# Maximum depth. Metadata has at most 16 levels, and filters have 8, each of which is two levels of JSON.
MAX_DEPTH = 32
# Maximum depth that orjson parses; it rejects deeper documents as invalid.
MAX_PARSER_DEPTH = 1_024
# Bytes charged for each string, list and object, in addition to the body. Their real memory is larger: an object with
# one short key is two parts and takes about 300 bytes. So docs/operations.md allows 16 times the charged bytes.
PART_BYTES = 32

# Tokens, or bytes of a string, between two points of interruption.
_TOKENS_AT_ONCE = 1_024
_BYTES_AT_ONCE = 64 << 10
# Matches a bracket, or a string. Of a string that is longer than `_BYTES_AT_ONCE` or has escapes, it matches only the
# opening quote.
_TOKEN = re.compile(rb'"[^"\\]{0,%d}+"|["\[\]{}]' % _BYTES_AT_ONCE)
# Matches the rest of a string up to its closing quote, which is not included.
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Matches a string. An unclosed string matches up to the end, so that each quote is scanned once.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING, _CLOSING, _BLANK = frozenset(b"[{"), frozenset(b"]}"), b" \t\r\n"


class LimitExceeded(Exception):
    """A document exceeds a limit.

    Args:
        field: Name of the list that exceeds it, or "body" for the whole document.
    """

    def __init__(self, message: str, *, field: str = "body") -> None:
        super().__init__(message)
        self.field = field


class MalformedJson(Exception):
    """A document is not JSON by its brackets, quotes or keys, or too deep for the parser."""


@dataclass(frozen=True, slots=True)
class ItemSpan:
    """Byte range of an item of a list, `end` excluded. `fault` is the reason why it must not be parsed, or ''."""

    start: int
    end: int
    fault: str = ""


@dataclass(slots=True)
class SplitDocument:
    """Result of `split_list`.

    Attributes:
        remainder: The document with the list emptied.
        items: Items of the list. If its key is repeated, those of the last list. None if there is no such list.
        parts: Number of parts of the remainder and of all items without a fault.
    """

    remainder: bytes = b""
    items: list[ItemSpan] | None = None
    parts: int = 0


@dataclass(slots=True)
class _Count:
    """Counts of one item, or of the document around the list."""

    parts: int = 0
    depth: int = 0

    @property
    def fault(self) -> str:
        """The reason why the item or document must not be parsed, or an empty string."""
        if self.parts > MAX_ITEM_PARTS:
            return f"has more than {MAX_ITEM_PARTS:,} strings, lists and objects: send less, or split it"
        return f"is nested deeper than {MAX_DEPTH} levels" if self.depth > MAX_DEPTH else ""


def max_parts(document: bytes) -> int:
    """Return an upper bound for the parts of a document, which also counts brackets and quotes inside strings."""
    return document.count(b"[") + document.count(b"{") + document.count(b'"') // 2


def parts_if_small(document: bytes) -> int | None:
    """Return an upper bound for the parts of a document, or None if only a scan can decide whether it keeps the limits.

    The result is None for every document over 1 MiB.
    """
    if len(document) > MAX_ITEM_BYTES:
        return None
    opened = document.count(b"[") + document.count(b"{")
    max_parts = opened + document.count(b'"') // 2
    if max_parts > MAX_ITEM_PARTS:
        return None
    return max_parts if opened <= MAX_DEPTH or _is_shallow(document) else None


def _is_shallow(document: bytes) -> bool:
    """Return whether brackets of any kind outside strings are balanced and at most `MAX_DEPTH` deep."""
    brackets = _STRING.sub(b"", document).translate(_AS_SQUARE, _NO_BRACKETS)
    # Compare the numbers first: many more closing brackets than opening ones would make each pass below expensive.
    if brackets.count(b"[") != brackets.count(b"]"):
        return False
    for _ in range(MAX_DEPTH):
        # Remove the innermost level.
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def count_parts(document: bytes) -> Generator[None, None, int]:
    """Count the parts of a document. If `parts_if_small` has an upper bound, return that without a scan.

    Raises:
        LimitExceeded: If there are more than `MAX_ITEM_PARTS`, or they are nested deeper than `MAX_DEPTH`.
        MalformedJson: If a scan finds an unopened bracket, an unclosed string, or a depth beyond the parser's.
    """
    if (parts := parts_if_small(document)) is not None:
        return parts
    count, depth = _Count(), 0
    for number, (start, end) in enumerate(_tokens(document)):
        if number % _TOKENS_AT_ONCE == 0 or not end:
            yield
        if not end:
            continue
        depth = _deeper(depth, document[start])
        count.parts += document[start] not in _CLOSING
        count.depth = max(count.depth, depth)
        if count.parts > MAX_ITEM_PARTS:
            break
    if count.fault:
        raise LimitExceeded(count.fault)
    return count.parts


def split_list(document: bytes, name: str, *, max_items: int) -> Generator[None, None, SplitDocument]:
    """Split the items of the list `name` off a document.

    The document is valid JSON if the remainder and every item are. An item beyond a limit of its own only gets a
    `fault`.

    Raises:
        LimitExceeded: If there are too many items, too many parts in total, or the remainder is too large or too deep
            or has too many parts itself.
        MalformedJson: If brackets are unbalanced, a string is not closed, the key before a list is not a string, or the
            document is too deep for the parser.
    """
    splitter = _Splitter(document, name, max_items)
    for number, (start, end) in enumerate(_tokens(document)):
        if number % _TOKENS_AT_ONCE == 0 or not end:
            yield
        if end:
            splitter.take(start, end)
    return splitter.cut()


@dataclass(slots=True)
class _Splitter:
    """Processes the tokens of a document in order."""

    document: bytes
    name: str
    max_items: int
    _depth: int = 0
    _last: tuple[int, int] = (0, 0)
    # Items of the last list `name`, and the start of the current item; then the byte ranges outside such lists.
    _items: list[ItemSpan] | None = None
    _is_inside: bool = False
    _item_start: int = 0
    _kept: list[tuple[int, int]] = field(default_factory=list)
    _kept_start: int = 0
    _item: _Count = field(default_factory=_Count)
    _around: _Count = field(default_factory=_Count)
    # `_accepted_parts` counts parts of items that will be parsed, `_total_parts` all parts.
    _accepted_parts: int = 0
    _total_parts: int = 0

    def take(self, start: int, end: int) -> None:
        """Process the token between two positions of the document. Errors are those of `split_list`."""
        before = self._depth
        self._depth = _deeper(before, self.document[start])
        if self._is_inside and before == 2:
            position = self._last[1]
            while (position := self.document.find(b",", position, start)) >= 0:
                self._end_item(position)
                position += 1
                self._item_start = position
        is_closing = self.document[start] in _CLOSING
        if self._is_inside and is_closing and self._depth == 1:
            self._leave(start)
        count = self._item if self._is_inside else self._around
        count.parts += not is_closing
        count.depth = max(count.depth, self._depth - 2 * self._is_inside)
        self._total_parts += not is_closing
        if self._total_parts > MAX_SCANNED_PARTS:
            raise LimitExceeded(f"has more than {MAX_SCANNED_PARTS:,} strings, lists and objects: send less")
        if self._around.parts > MAX_ITEM_PARTS:
            raise LimitExceeded(self._around.fault)
        if before == 1 and self._depth == 2 and self._begins_list(start):
            self._enter(end)
        self._last = start, end

    def cut(self) -> SplitDocument:
        """Return the result after the last token. Errors are those of `split_list`."""
        if self._depth:
            raise MalformedJson("a bracket is not closed")
        if self._around.fault:
            raise LimitExceeded(self._around.fault)
        spans = [*self._kept, (self._kept_start, len(self.document))]
        if sum(end - start for start, end in spans) > MAX_ITEM_BYTES:
            raise LimitExceeded(f"has more than {MAX_ITEM_BYTES // MIB} MiB besides {self.name!r}")
        envelope = b"".join(self.document[start:end] for start, end in spans)
        return SplitDocument(envelope, self._items, self._accepted_parts + self._around.parts)

    def _begins_list(self, start: int) -> bool:
        """Return whether the bracket at `start` opens the list that is the value of the key `name`.

        Raises:
            MalformedJson: If the key is not a valid JSON string.
        """
        name = self.document[slice(*self._last)]
        is_key = self.document[start] == ord("[") and name[:1] == b'"' and len(name) <= 8 * len(self.name) + 2
        if not is_key or self.document[self._last[1] : start].strip(_BLANK) != b":":
            return False
        try:
            return bool(orjson.loads(name) == self.name)
        except orjson.JSONDecodeError:
            raise MalformedJson("a key is not a string") from None

    def _enter(self, end: int) -> None:
        self._is_inside, self._items, self._item = True, [], _Count()
        self._item_start = end
        self._kept.append((self._kept_start, end))

    def _leave(self, start: int) -> None:
        assert self._items is not None
        # End an item only if there is one: a list without items may contain whitespace only.
        if self._items or self.document[self._item_start : start].strip(_BLANK):
            self._end_item(start)
        self._is_inside, self._kept_start = False, start

    def _end_item(self, end: int) -> None:
        assert self._items is not None
        fault = self._item.fault
        if end - self._item_start > MAX_ITEM_BYTES:
            fault = f"is larger than {MAX_ITEM_BYTES // MIB} MiB"
        self._items.append(ItemSpan(self._item_start, end, fault))
        self._accepted_parts += 0 if fault else self._item.parts
        self._item = _Count()
        if self._accepted_parts > MAX_BATCH_PARTS:
            raise LimitExceeded(f"has more than {MAX_BATCH_PARTS:,} strings, lists and objects: send several batches")
        if len(self._items) > self.max_items:
            raise LimitExceeded(f"has more than {self.max_items:,} items: send several batches", field=self.name)


def _tokens(document: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each string, and of each bracket outside strings. (0, 0) only marks an interruption."""
    position = 0
    while position < len(document):
        for token in _TOKEN.finditer(document, position):
            position = token.end()
            if document[token.start()] == ord('"') and position - token.start() == 1:
                # A long string, or one with escapes: match it in pieces, so that no single match takes long.
                position, is_closed = _match_piece(document, position)
                while not is_closed:
                    yield 0, 0
                    position, is_closed = _match_piece(document, position)
                yield token.start(), position
                break
            yield token.span()
        else:
            return


def _match_piece(document: bytes, position: int) -> tuple[int, bool]:
    """Return the end of the next piece of a string, and whether the string is closed there.

    Args:
        position: Position in the string.

    Raises:
        MalformedJson: If the document ends before the string is closed.
    """
    match = _INSIDE.match(document, position, position + _BYTES_AT_ONCE)
    assert match is not None
    if match.end() < len(document) and document[match.end()] == ord('"'):
        return match.end() + 1, True
    if match.end() == position:
        raise MalformedJson("a string is not closed")
    return match.end(), False


def _deeper(depth: int, token: int) -> int:
    """Return the depth after a token, which is given by its first byte.

    Raises:
        MalformedJson: If the depth exceeds the parser's, or a bracket was not opened.
    """
    if token in _OPENING:
        if depth == MAX_PARSER_DEPTH:
            raise MalformedJson(f"it is nested deeper than {MAX_PARSER_DEPTH:,} levels")
        return depth + 1
    if token in _CLOSING:
        if depth == 0:
            raise MalformedJson("a bracket was not opened")
        return depth - 1
    return depth


def check_unique_keys(document: bytes, value: Any) -> None:
    """Raise if an object of a document has a key twice, also if the two are escaped differently.

    Parsers keep the last of two values, which would silently lose the other. If a key is repeated, the parsed document
    has fewer keys than its bytes have members. Both are counted without visiting the numbers of a vector: each member
    has one colon outside strings, and the search for objects ends with the last opening brace.

    Args:
        document: Valid JSON.
        value: The parsed document.

    Raises:
        RepeatedKey: If an object has a key twice.
    """
    braces, colons = document.count(b"{"), document.count(b":")
    if braces == 0 or _keys_of(value, braces) == colons:
        return
    # Count again without strings, because some colons or braces are inside them.
    without_strings = _STRING.sub(b"", document)
    if _keys_of(value, without_strings.count(b"{")) != without_strings.count(b":"):
        json.loads(document, object_pairs_hook=reject_repeated_keys)
        raise RepeatedKey("a key is repeated in one object")


def _keys_of(value: Any, objects: int) -> int:
    """Count the keys of all objects in a value.

    Args:
        objects: Upper bound for the number of objects; the search ends there. Lists are searched last.
    """
    keys, found = 0, 0
    pending, lists = [value], list[tuple[int, int, list[Any]]]()
    while pending or lists:
        if not pending:
            # Visit the shortest list first, because the longest is usually a vector.
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
