"""Reject repeated keys in JSON objects, as an `object_pairs_hook` of the standard library's parser."""

from typing import Any


class RepeatedKey(ValueError):
    """A key occurs twice in one object. The message contains up to 64 characters of the key."""


def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its key-value pairs.

    Raises:
        RepeatedKey: If a key occurs twice.
    """
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = set[str]()
        repeated = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise RepeatedKey(f"the key {repeated[:64]!a} is repeated in one object")
    return result
