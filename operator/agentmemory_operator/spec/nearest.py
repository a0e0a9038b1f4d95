"""Suggest the known name that is most similar to an unknown one."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

# Longer names are not compared: a request may contain many of them, and each comparison is slow.
MAX_COMPARED_CHARS = 32


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`; case, `_` and `-` are ignored.

    None if no known name is similar, or if `name` has more than 32 characters.
    """
    if len(name) > MAX_COMPARED_CHARS:
        return None
    by_letters: dict[str, str] = {}
    for candidate in known:
        by_letters.setdefault(_letters(candidate), candidate)
    matches = difflib.get_close_matches(_letters(name), by_letters, n=1)
    return by_letters[matches[0]] if matches else None


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return `; did you mean NAME?`. Empty if `name` is known or not text, or `nearest_name` finds none."""
    suggestion = nearest_name(name, known) if isinstance(name, str) and name not in known else None
    return f"; did you mean {suggestion}?" if suggestion else ""


def unknown_field(name: str, known: Iterable[str], called_elsewhere: Mapping[str, Sequence[str]]) -> str:
    """Return the message for an unknown field: a suggestion, if any, and all known fields.

    The message is only `unknown` if no fields are known.

    Args:
        called_elsewhere: Names of fields in other APIs, each with the fields here that may be meant, best first.
    """
    if not (known := tuple(known)):
        return "unknown"
    alternative = next((field for field in called_elsewhere.get(name, ()) if field in known), None)
    question = f"; did you mean {alternative}?" if alternative else did_you_mean(name, known)
    return f"unknown{question}; known are {', '.join(known)}"


def _letters(name: str) -> str:
    return re.sub("[_-]", "", name).lower()
