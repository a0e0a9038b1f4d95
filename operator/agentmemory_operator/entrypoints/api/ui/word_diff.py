"""Compare two texts word by word."""

import re
from difflib import SequenceMatcher

# Comparing two texts takes time in proportion to the product of their words.
MAX_CHARS, MAX_PIECES = 8_000, 1_000
_WORDS = re.compile(r"\s+|[^\s]+")


def diff_words(before: str, after: str) -> list[tuple[str, str]]:
    """Return the pieces of both texts in order, each with 'same', 'removed' or 'added'.

    Longer texts are not compared, and the result is empty: than `MAX_CHARS`, or `MAX_PIECES` words and spaces.
    """
    if max(len(before), len(after)) > MAX_CHARS:
        return []
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if max(len(old), len(new)) > MAX_PIECES:
        return []
    pieces: list[tuple[str, str]] = []
    for kind, old_start, old_end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(old[old_start:old_end])))
            continue
        if old_end > old_start:
            pieces.append(("removed", "".join(old[old_start:old_end])))
        if new_end > new_start:
            pieces.append(("added", "".join(new[new_start:new_end])))
    return pieces
