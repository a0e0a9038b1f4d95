"""Compare two texts word by word."""

import re
from collections import Counter
from difflib import SequenceMatcher

# Comparing two texts takes time in proportion to the pairs of equal words, for each difference.
MAX_CHARS, MAX_PIECES, MAX_PAIRS = 8_000, 1_000, 10_000
_WORDS = re.compile(r"\s+|[^\s]+")


def diff_words(before: str, after: str) -> list[tuple[str, str]]:
    """Return the pieces of both texts in order, each with 'same', 'removed' or 'added'.

    Longer texts are not compared, and the result is empty: than `MAX_CHARS`, or `MAX_PIECES` words and spaces. Nor are
    texts that repeat the same words very often, which have more than `MAX_PAIRS` pairs of equal words.
    """
    if max(len(before), len(after)) > MAX_CHARS:
        return []
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if max(len(old), len(new)) > MAX_PIECES or _count_pairs(old, new) > MAX_PAIRS:
        return []
    pieces: list[tuple[str, str]] = []
    # Spaces are equal everywhere, so they only count next to equal words.
    matcher = SequenceMatcher(str.isspace, old, new, autojunk=False)
    for kind, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(old[old_start:old_end])))
            continue
        if old_end > old_start:
            pieces.append(("removed", "".join(old[old_start:old_end])))
        if new_end > new_start:
            pieces.append(("added", "".join(new[new_start:new_end])))
    return pieces


def _count_pairs(old: list[str], new: list[str]) -> int:
    counts = Counter(new)
    return sum(counts[word] for word in old if not word.isspace())
