"""Text that shows as what it is: nothing in it moves a cursor, ends a line or turns the direction of reading.

What others wrote (a path, a name, a server's words) is part of what we log and tell. A line feed in it would make a
line of its own, which reads as one of ours; so would what only some readers take for a line's end (U+2028, U+0085), and
an escape sequence or a bidirectional control would show other words than there are.
"""

import re

# Before the further lines that we tell on purpose, as the place in an expression.
_OWN_LINE = "\n  "

# Of a server's words.
MOST_CHARS = 200

# What moves a terminal's cursor or changes its colours, and what names a window.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")


def printable(text: str) -> str:
    r"""The text in one line: each character that does not show, but a blank, as `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """The text with its line breaks escaped, except those before an indented line, which are ours."""
    return text if text.isprintable() else _OWN_LINE.join(map(printable, text.split(_OWN_LINE)))


def printable_start(text: str) -> str:
    """At most 200 characters of a text on one line, those alone that show."""
    # Ten times as many hold whatever is left of them, and a page is not gone through.
    shown = _ESCAPES.sub(" ", text[: 10 * MOST_CHARS])
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in shown).split())
    return line if len(line) <= MOST_CHARS else line[: MOST_CHARS - 1] + "…"
