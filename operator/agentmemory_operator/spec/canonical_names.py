"""Names in the form that is stored and compared: NFC, with at least one visible character.

`Zoë` has two spellings in Unicode that look the same. Requests, tokens and the users of an object are normalised to NFC
where they are read, so rights are checked on the name that is stored. NFC also replaces a few signs by others of the
same look, for example the Kelvin sign by K. Validation therefore runs after normalisation.
"""

import re
import unicodedata
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


def canonical(name: str) -> str:
    """Return the NFC spelling of a name, in which it is stored and compared."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def canonical_name(value: Any) -> Any:
    """Return `canonical` of a string, and any other value unchanged for its own validation."""
    return canonical(value) if isinstance(value, str) else value


def is_blank(text: str) -> bool:
    """Return whether a text contains no visible character."""
    return _VISIBLE.search(text) is None
