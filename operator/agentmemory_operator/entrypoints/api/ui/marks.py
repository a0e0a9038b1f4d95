"""Show control characters, and those that change the direction of text, by their names.

A memory could otherwise hide a part of its text, or show it in another order than a program reads it.
"""

import re
import unicodedata

from markupsafe import Markup, escape

# Letters of several scripts, and emoji, need these joiners; they neither hide nor reorder text.
_JOINERS = "\u200c\u200d"
# The categories of control, format and unassigned characters, of surrogates, and of line and paragraph separators.
_MARKED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_SHORT_NAMES = {
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u200b": "ZWSP",
    "\u00ad": "SHY",
    "\ufeff": "BOM",
}
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")


def is_marked(character: str) -> bool:
    """Return whether a character is shown by its name: all that are invisible, except space, line feed and tab."""
    return character not in "\n\t" and character not in _JOINERS and unicodedata.category(character) in _MARKED


def mark_plain(text: str) -> str:
    """Replace each such character by its code point in brackets, for attributes and titles."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(f"\u27e6U+{ord(each):04X}\u27e7" if is_marked(each) else each for each in text)


def mark_html(text: str) -> Markup:
    """Escape a text, and replace each such character by an element that has its name."""
    if _PLAIN.fullmatch(text):
        return escape(text)
    return Markup("").join(_element(each) if is_marked(each) else escape(each) for each in text)


def _element(character: str) -> Markup:
    code = f"U+{ord(character):04X}"
    name = unicodedata.name(character, "control character").lower()
    label = _SHORT_NAMES.get(character, code)
    return Markup('<span class="mark" title="{} {}">{}</span>').format(code, name, label)
