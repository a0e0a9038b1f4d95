"""Keys of a JSON object: each once, for the standard library's parser."""

from typing import Any


class RepeatedKey(ValueError):
    """A key stands twice in one object; the message names it."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of some pairs, for the standard library's parser.

    Raises:
        RepeatedKey: a key is among them twice.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        seen = set[str]()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RepeatedKey(f"the key {repeated[:64]!a} is repeated in one object")
    return made
