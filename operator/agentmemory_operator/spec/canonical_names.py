"""Names in the form that is stored and compared, and suggestions for unknown names.

The form is NFC, with at least one visible character. `Zoë` has two spellings in Unicode that look the same. Requests,
tokens and the users of an object are normalised to NFC where they are read, so rights are checked on the name that is
stored. NFC also replaces a few signs by others of the same look, for example the Kelvin sign by K. Validation therefore
runs after normalisation.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Default_Ignorable_Code_Point of Unicode, and characters that render as nothing: U+2800, the blank pattern of Braille;
# U+1D159, a null note; U+FFF9..FFFB, annotation marks; U+13430..1343F and U+16FE4, which join signs.
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Content of a regex character class. Control characters are in `CONTROL`."""

CONTROL = r"\x00-\x1f\x7f-\x9f"
VISIBLE_PATTERN = rf"[^\s{CONTROL}{INVISIBLE}]"
NAME_PATTERN = rf"^[^{CONTROL}]*[^\s{CONTROL}{INVISIBLE}][^{CONTROL}]*$"
"""At least one visible character, no control characters."""

_VISIBLE = re.compile(VISIBLE_PATTERN)

# Length of the longest names to compare, because a request may contain many names, and each comparison is slow.
MAX_COMPARED_CHARS = 32

MAX_NORMALISED_CHARS = 2_000
"""Length of the longest name that is normalised: a run of marks takes quadratic time, and no valid name is longer."""


def canonical(name: str) -> str:
    """Return the NFC spelling of a name, in which it is stored and compared. Unchanged above 2,000 characters."""
    return name if name.isascii() or len(name) > MAX_NORMALISED_CHARS else unicodedata.normalize("NFC", name)


def canonical_name(value: Any) -> Any:
    """Return `canonical` of a string, and any other value unchanged for its own validation."""
    return canonical(value) if isinstance(value, str) else value


def is_blank(text: str) -> bool:
    """Return whether a text contains no visible character."""
    return _VISIBLE.search(text) is None


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`. Case, `_` and `-` are ignored.

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
