"""Draw a terminal as SVG: text in the system's own monospaced font, headings and commands emphasised, no script."""

import re
from collections.abc import Iterator
from html import escape

WIDTH, MARGIN, LINE, BAR = 100, 18, 18, 34
"""Number of columns; pixels of the margin, of a line and of the title bar."""
_CHAR = 7.55
_STYLE = """\
.terminal { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.terminal text { fill: #c9d1d9; white-space: pre; }
.terminal .heading { fill: #79c0ff; font-weight: 700; }
.terminal .command { fill: #7ee787; }
.terminal .aside { fill: #8b949e; }
.terminal .title { fill: #8b949e; text-anchor: middle; }"""


def terminal(text: str, *, title: str) -> str:
    """Return the drawing of a terminal that shows a text; a line longer than `WIDTH` is cut."""
    lines = text.rstrip("\n").split("\n")
    width, height = round(WIDTH * _CHAR + 2 * MARGIN), BAR + LINE * len(lines) + 2 * MARGIN
    dots = "".join(
        f'<circle cx="{MARGIN + 4 + 18 * number}" cy="{BAR / 2 + 3:g}" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="terminal" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#0d1117" stroke="#30363d"/>',
            dots,
            f'<text class="title" x="{width / 2:g}" y="{BAR / 2 + 7:g}">{escape(title)}</text>',
            *_rows(lines),
            "</svg>\n",
        ]
    )


def _rows(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f'x="{MARGIN}" y="{BAR + MARGIN + LINE * number - 5}" xml:space="preserve"'
            yield f"<text{_class_of(line)} {place}>{escape(line[:WIDTH].rstrip(), quote=False)}</text>"


def _class_of(line: str) -> str:
    if re.match(r"\d of \d  \S|(The numbers|Next)$", line):
        return ' class="heading"'
    if line.startswith("$ "):
        return ' class="command"'
    return ' class="aside"' if re.match(r"\s*#|…|took |[─\s-]+$", line) else ""
