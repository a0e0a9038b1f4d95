"""Make text from outside safe for logs, messages and terminals: one line, without control characters.

Paths, names and messages of servers become part of log lines and statuses. A line feed in them, or a separator that
only some readers treat as one (U+2028, U+0085), would forge a line of the operator. Escape sequences and bidirectional
controls would display other text than is stored.
"""

import re

# Start of a line that the operator adds on purpose, such as the position in an expression.
_INDENTED_BREAK = "\n  "

# Maximum length of a quoted message of a server.
MAX_QUOTED_CHARS = 200

# Escape sequences that move the cursor of a terminal, change its colours or set its title.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")


def printable(text: str) -> str:
    r"""Return the text in one line. Each unprintable character is escaped, as `\n`, `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Escape unprintable characters and line breaks, except a line break before two spaces.

    The operator itself writes such indented lines, for example the position of an error in an expression.
    """
    return text if text.isprintable() else _INDENTED_BREAK.join(map(printable, text.split(_INDENTED_BREAK)))


def printable_start(text: str) -> str:
    """Return the start of a text as one line of at most 200 characters. A longer line is cut and ends with `…`.

    Escape sequences, unprintable characters and runs of whitespace become one space. Only the first 2,000 characters
    are read.
    """
    # Read ten times the limit, which leaves enough after escapes are removed, and bounds the work on a large page.
    stripped = _ESCAPES.sub(" ", text[: 10 * MAX_QUOTED_CHARS])
    line = " ".join("".join(char if char.isprintable() else " " for char in stripped).split())
    return line if len(line) <= MAX_QUOTED_CHARS else line[: MAX_QUOTED_CHARS - 1] + "…"
