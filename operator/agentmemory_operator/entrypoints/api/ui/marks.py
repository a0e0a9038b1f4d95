"""Show control characters, and others that hide or reorder text, by their names.

A memory could otherwise hide a part of its text, or show it in another order than a program reads it.
"""

import re
import unicodedata

from markupsafe import Markup, escape

from agentmemory_operator.spec.canonical_names import CONTROL, INVISIBLE

# Not marked are line feed and tab, and what letters and emoji need: joiners, the selectors of text and emoji style, and
# the blank of Braille.
_NEEDED = r"\t\n\u200c\u200d\u2800\ufe0e\ufe0f\U00013430-\U0001343f"
# Control, invisible and private characters, lone surrogates, separators of lines and paragraphs, and tags.
_MARKED = re.compile(rf"(?![{_NEEDED}])[{CONTROL}{INVISIBLE}\u2028\u2029\ud800-\uf8ff\U000e0000-\U0010ffff]")
MAX_MARKS = 200
"""Marks in one text. An element is 70 times as long as the character that it replaces, so more become U+FFFD."""
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


def mark_plain(text: str) -> str:
    """Replace each such character by its code point in brackets, for attributes and titles."""
    return _MARKED.sub(lambda match: f"\u27e6{_code(match[0])}\u27e7", text)


def mark_html(text: str) -> Markup:
    """Escape a text, and replace each such character by an element that has its name, up to `MAX_MARKS`."""
    # Neither escaping nor an element adds a character that is marked.
    html = _MARKED.sub(_element, str(escape(text)), count=MAX_MARKS)
    return Markup(_MARKED.sub("\ufffd", html))


def _element(match: re.Match[str]) -> str:
    code, character = _code(match[0]), match[0]
    name = unicodedata.name(character, "control character").lower()
    return f'<span class="mark" title="{code} {name}">{_SHORT_NAMES.get(character, code)}</span>'


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
