"""Properties of texts that callers send."""

import unicodedata


def is_visible(text: str) -> bool:
    """Return whether a text has a visible character. A text without one has no meaning to rank by."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text)
