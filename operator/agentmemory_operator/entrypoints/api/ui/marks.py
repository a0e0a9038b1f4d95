"""Show control characters, and others that hide or reorder text, by their names.

A memory could otherwise hide a part of its text, or show it in another order than a program reads it.
"""

import re
import unicodedata

from markupsafe import Markup, escape

# Control, format and private characters, lone surrogates, separators of lines and paragraphs, tags, and fillers. Not
# marked are line feed and tab, the joiners that letters and emoji need, and signs of the category Cf that are visible.
_MARKED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\uf8ff\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
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
    """Escape a text, and replace each such character by an element that has its name."""
    # Escaping adds no character that is marked.
    return Markup(_MARKED.sub(_element, str(escape(text))))


def _element(match: re.Match[str]) -> str:
    code, character = _code(match[0]), match[0]
    name = unicodedata.name(character, "control character").lower()
    return f'<span class="mark" title="{code} {name}">{_SHORT_NAMES.get(character, code)}</span>'


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
