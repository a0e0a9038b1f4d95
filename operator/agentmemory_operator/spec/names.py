"""Names as they are compared: in NFC, and never of characters alone that do not show.

`Zoë` has two spellings in Unicode that look the same. Requests, tokens and the users of an object are all brought to
one (NFC) where they are read, so that rights are checked on the name that is stored. NFC also turns a few signs into
others of the same look, for example the Kelvin sign into K: the check comes after it, never before.
"""

import re
import unicodedata
from typing import Any

# Default_Ignorable_Code_Point of Unicode, and what is drawn as nothing: U+2800, the blank pattern of Braille; U+1D159,
# a null note; U+FFF9..FFFB, annotation marks; U+13430..1343F and U+16FE4, which join signs.
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Inside of a character class; control characters are not among them."""

CONTROL = r"\x00-\x1f\x7f-\x9f"
VISIBLE_PATTERN = rf"[^\s{CONTROL}{INVISIBLE}]"
NAME_PATTERN = rf"^[^{CONTROL}]*[^\s{CONTROL}{INVISIBLE}][^{CONTROL}]*$"
"""No control characters, and at least one that shows."""

_VISIBLE = re.compile(VISIBLE_PATTERN)


def canonical(name: str) -> str:
    """The one spelling (NFC) in which a name is stored and compared."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def canonical_name(value: Any) -> Any:
    """`canonical` of a text; anything else as it is, for its own check."""
    return canonical(value) if isinstance(value, str) else value


def is_blank(text: str) -> bool:
    """Whether nothing of a text shows."""
    return _VISIBLE.search(text) is None
