"""Properties of texts that callers send."""

import re

# The API's definition: no white space, control character, or character that renders as nothing, for example U+3164.
_VISIBLE = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U00016fe4"
    r"\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def is_visible(text: str) -> bool:
    """Return whether a text has a visible character. The API refuses texts without one."""
    return _VISIBLE.search(text) is not None
