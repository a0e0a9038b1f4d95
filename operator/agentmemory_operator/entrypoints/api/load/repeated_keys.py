"""Keys that an object of a JSON document has twice: parsers keep the last value, and nobody hears of the first.

A parsed document has fewer keys than there are members in its bytes if a key is repeated. Both are counted without
going through the numbers of a vector: each member has one colon outside of strings, and the search for objects ends
with the last opening brace.
"""

import json
from heapq import heappop, heappush
from typing import Any

from agentmemory_operator.entrypoints.api.load.json_limits import STRING
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, once


def refuse_repeated_keys(document: bytes, value: Any) -> None:
    """Pass where each object of a document has each key once, escapes resolved.

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
    bare = STRING.sub(b"", document)
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
