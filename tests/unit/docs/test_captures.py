"""Drawings of terminals in docs/captures."""

import xml.etree.ElementTree as ET

from docs.captures.demo import MAX_LINES, drawing_of
from docs.captures.drawing import WIDTH, terminal
from docs.site.links import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def texts_of(drawing: str) -> list[str]:
    """Return the lines of a drawing below its title."""
    return [text.text or "" for text in ET.fromstring(drawing).iter(f"{SVG}text")][1:]


def test_lines_are_escaped_and_cut() -> None:
    shown = texts_of(terminal("$ cat <a & b>\n\n" + "x" * (WIDTH + 5), title="t"))

    assert shown == ["$ cat <a & b>", "x" * WIDTH]


def test_long_scenes_are_cut_and_all_fit() -> None:
    scenes = [f"{number} of 3  Scene\n" + "line\n" * count for number, count in enumerate((2, 100, 3), 1)]
    shown = texts_of(drawing_of("\n".join(scenes)))

    assert len(shown) < MAX_LINES
    assert [line for line in shown if line.endswith("Scene")] == [f"{number} of 3  Scene" for number in (1, 2, 3)]
    assert shown.count("…") == 1


def test_demo_drawing_is_of_the_capture() -> None:
    captures = ROOT / "docs" / "captures"
    text = (captures / "demo.txt").read_text().removeprefix("$ make demo\n\n")

    assert (captures / "demo.svg").read_text() == drawing_of(text)
