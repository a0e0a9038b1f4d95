"""Ids of memories, and cursors of lists."""

import base64
import binascii
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

# Of our own making, so that no other use of UUIDv5 over the same words gives the same id.
NAMESPACE = uuid.UUID("6f0d9c52-3a64-5a0e-9a39-0d4b1f3f6c11")

_VERSION, _VARIANT = 7 << 76, 0b10 << 62
_SEQUENCE_BITS, _RANDOM_BITS = 12, 62
# A name of 256 characters, each two escapes of six characters, is the longest part.
_LONGEST_CURSOR = 8_192


def time_ordered_id(now_ms: int, sequence: int, *, randomness: int) -> str:
    """A UUIDv7: ids of one batch sort by `sequence`, which wraps after 4,096.

    Args:
        now_ms: Unix milliseconds.
        sequence: the item's place in its batch.
        randomness: 62 random bits.
    """
    order = (sequence % (1 << _SEQUENCE_BITS)) << 64
    return str(uuid.UUID(int=(now_ms << 80) | _VERSION | order | _VARIANT | randomness % (1 << _RANDOM_BITS)))


def secret_scope(scope: str, secret: str) -> str:
    """What the ids of memories with a zone are made with: without the secret, nobody can try what an id stands for."""
    return "\x00".join((scope, "zone", secret)) if secret else scope


def keyed_id(agent_id: str, user_id: str, key: str) -> str:
    """The one id (UUIDv5) that an idempotency key of a user stands for."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, key))))


def item_id(agent_id: str, user_id: str, namespace: Sequence[str], key: str) -> str:
    """The one id (UUIDv5) of the item under a key of a user's namespace; no key is another's idempotency key."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, "\x1f".join(namespace), "item", key))))


def place_id(agent_id: str, user_id: str, session_id: str, number: int) -> str:
    """The one id (UUIDv5) of a place in a session's working memory; no idempotency key has as many parts."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join((agent_id, user_id, session_id, "working", str(number)))))


def identity_id(agent_id: str, user_id: str, type_name: str, *, field: str, value: str) -> str:
    """The id (UUIDv5) of the first memory of an identity; who says it is no part of it."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("identity", agent_id, user_id, type_name, field, value))))


def content_id(agent_id: str, user_id: str, type_name: str, content_hash: str, *, place: int = 0) -> str:
    """The id (UUIDv5) of the first memory that says this; `place` counts those that were superseded since."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("content", agent_id, user_id, type_name, content_hash, str(place)))))


def trace_id(memory_id: str, erasure_id: str) -> str:
    """The id (UUIDv5) of the point that keeps the trace of an erasure whose tombstone another memory has replaced."""
    return str(uuid.uuid5(NAMESPACE, "\x00".join(("erased", memory_id, erasure_id))))


def is_id(value: str) -> bool:
    """Whether `value` is a UUID in the one spelling that ids are stored in."""
    try:
        return str(uuid.UUID(value)) == value
    except ValueError:
        return False


def chunks_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield ids, or what has one, in parts that one call takes."""
    return (items[start : start + size] for start in range(0, len(items), size))


def encode_cursor(*place: str | int | None) -> str:
    """The text that tells a list where a page ended."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def decode_cursor(cursor: str) -> list[Any] | None:
    """The place that a cursor names, whatever it holds; None where it is no cursor."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor[:_LONGEST_CURSOR].encode()))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return place if isinstance(place, list) else None
