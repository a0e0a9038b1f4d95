"""Which of the known names was likely meant by one that there is not."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

# Longer names are compared with none: a request has many, and comparing takes long.
MAX_COMPARED_CHARS = 32


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever its case and with or without `_` and `-`; None if none is."""
    if len(name) > MAX_COMPARED_CHARS:
        return None
    by_letters: dict[str, str] = {}
    for one in known:
        by_letters.setdefault(_letters(one), one)
    near = difflib.get_close_matches(_letters(name), by_letters, n=1)
    return by_letters[near[0]] if near else None


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """The question, beginning with a semicolon; nothing where no known name is like this one."""
    near = nearest(name, known) if isinstance(name, str) and name not in known else None
    return f"; did you mean {near}?" if near else ""


def unknown_field(name: str, known: Iterable[str], called_elsewhere: Mapping[str, Sequence[str]]) -> str:
    """Say of a field that there is not which was likely meant, and which there are.

    Args:
        called_elsewhere: fields by the names that others give them.
    """
    if not (known := tuple(known)):
        return "unknown"
    meant = next((field for field in called_elsewhere.get(name, ()) if field in known), None)
    question = f"; did you mean {meant}?" if meant else did_you_mean(name, known)
    return f"unknown{question}; known are {', '.join(known)}"


def _letters(name: str) -> str:
    return re.sub("[_-]", "", name).lower()
