"""Derive the ids of memories, and encode the cursors of lists."""

import base64
import binascii
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

# Namespace of this project for UUIDv5. No other use of UUIDv5 over the same words gives the same id.
NAMESPACE = uuid.UUID("6f0d9c52-3a64-5a0e-9a39-0d4b1f3f6c11")

_VERSION, _VARIANT = 7 << 76, 0b10 << 62
_SEQUENCE_BITS, _RANDOM_BITS = 12, 62
# Maximum length of a cursor. Its longest part is a name of 256 characters, each as two escapes of six characters.
_MAX_CURSOR_CHARS = 8_192


def time_ordered_id(now_ms: int, sequence: int, *, randomness: int) -> str:
    """Return a UUIDv7. Ids of one batch sort by `sequence`, which wraps after 4,096.

    Args:
        now_ms: Unix milliseconds.
        sequence: Position of the item in its batch.
        randomness: 62 random bits.
    """
    order = (sequence % (1 << _SEQUENCE_BITS)) << 64
    return str(uuid.UUID(int=(now_ms << 80) | _VERSION | order | _VARIANT | randomness % (1 << _RANDOM_BITS)))


def zone_scope(scope: str, secret: str) -> str:
    """Return the scope, the string that ids are derived from, for a zone. Without a secret, return `scope` unchanged.

    Only holders of the secret can test which value an id was derived from.
    """
    return "\x00".join((scope, "zone", secret)) if secret else scope


def keyed_id(agent_id: str, user_id: str, key: str) -> str:
    """Return the UUIDv5 of a user's idempotency key.

    Args:
        agent_id: Scope that ids are derived from: the agent's, or that of one of its zones.
    """
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, key))))


def item_id(agent_id: str, user_id: str, namespace: Sequence[str], key: str) -> str:
    """Return the UUIDv5 of the item under a key of a user's namespace. No idempotency key has the same UUID."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, "\x1f".join(namespace), "item", key))))


def slot_id(agent_id: str, user_id: str, session_id: str, number: int) -> str:
    """Return the UUIDv5 of a slot in a session's working memory.

    It differs from that of any idempotency key, which has fewer parts.
    """
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, session_id, "working", str(number)))))


def identity_id(agent_id: str, user_id: str, type_name: str, *, field: str, value: str) -> str:
    """Return the UUIDv5 of the root of an identity. It is the same for all authors."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("identity", agent_id, user_id, type_name, field, value))))


def content_id(agent_id: str, user_id: str, type_name: str, content_hash: str, *, index: int = 0) -> str:
    """Return the UUIDv5 of a memory with this content. `index` numbers the ids of one content: see `duplicates.py`."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("content", agent_id, user_id, type_name, content_hash, str(index)))))


def trace_id(memory_id: str, erasure_id: str) -> str:
    """Return the UUIDv5 of the trace point of an erasure; see `erasure_trace`."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("erased", memory_id, erasure_id))))


def is_id(value: str) -> bool:
    """Return whether `value` is a UUID in the canonical spelling that stored ids have."""
    try:
        return str(uuid.UUID(value)) == value
    except ValueError:
        return False


def chunks_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive parts of at most `size` items, for calls that take a limited number."""
    return (items[start : start + size] for start in range(0, len(items), size))


def parts_within(items: Iterable[tuple[T, int]], max_size: int, max_items: int | None = None) -> Iterator[list[T]]:
    """Yield consecutive parts of items that are given with their sizes.

    Args:
        max_size: Maximum sum of the sizes in a part. A larger item is a part of its own.
        max_items: Maximum number of items in a part. None does not limit it.
    """
    part: list[T] = []
    total = 0
    for item, size in items:
        if part and (total + size > max_size or len(part) == max_items):
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part


def encode_cursor(*position: str | int | None, is_padded: bool = False) -> str:
    """Encode the position after the last entry of a page as a cursor.

    Args:
        is_padded: True if the cursor must end with "=".
    """
    text = json.dumps(position).encode()
    space = b" " if is_padded and len(text) % 3 == 0 else b""
    return base64.urlsafe_b64encode(text + space).decode()


def decode_cursor(cursor: str) -> list[Any] | None:
    """Decode the position of a cursor, without checking its parts. None if the text is not a cursor."""
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor[:_MAX_CURSOR_CHARS].encode()))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return position if isinstance(position, list) else None
