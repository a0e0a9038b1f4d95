"""Text of other systems, with invisible characters escaped."""

import pytest

from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.expression.syntax import ExpressionInvalid
from agentmemory_operator.spec.kinds.conditions import ConditionState, merge_conditions
from agentmemory_operator.spec.printable import MAX_QUOTED_CHARS, printable, printable_lines, printable_start

# Line breaks, terminal controls and characters without a glyph.
INVISIBLE = {
    "line feed": "\n",
    "carriage return": "\r",
    "form feed": "\f",
    "vertical tab": "\v",
    "file separator": "\x1c",
    "next line": "\x85",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "escape": "\x1b",
    "control sequence introducer": "\x9b",
    "bell": "\a",
    "backspace": "\b",
    "delete": "\x7f",
    "nul": "\0",
    "tab": "\t",
    "right-to-left override": "\u202e",
    "left-to-right isolate": "\u2066",
    "pop isolate": "\u2069",
    "right-to-left mark": "\u200f",
    "arabic letter mark": "\u061c",
    "zero width space": "\u200b",
    "byte order mark": "\ufeff",
    "tag": "\U000e0041",
    "half of a pair": "\ud800",
    "private use": "\ue000",
}


@pytest.mark.parametrize("char", INVISIBLE.values(), ids=INVISIBLE)
def test_invisible_character_is_escaped(char: str) -> None:
    expected = printable(f"before{char}after")

    assert expected.isprintable()
    assert expected.startswith("before\\")
    assert expected.endswith("after")
    assert printable(expected) == expected
    assert printable_lines(f"before{char}after") == expected


@pytest.mark.parametrize("text", ["", "plain words", "prix: 5 €, naïve, 日本語", "C:\\new", "🙂"])
def test_visible_text_is_unchanged(text: str) -> None:
    assert (printable(text), printable_lines(text)) == (text, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("character 3: odd\n  a + b\n    ^", "character 3: odd\n  a + b\n    ^"),
        ("odd\nStatus: True", "odd\\nStatus: True"),
        ("odd\n Status", "odd\\n Status"),
        ("odd\n\n  Status", "odd\\n\n  Status"),
        ("odd\r\n  Status", "odd\\r\n  Status"),
        ("odd\n  \x1b[2J", "odd\n  \\x1b[2J"),
    ],
)
def test_only_indented_lines_are_kept(text: str, expected: str) -> None:
    assert printable_lines(text) == expected
    assert printable_lines(expected) == expected


def test_conditions_and_events_are_escaped() -> None:
    """A repeated message must be equal, or the status would be written endlessly."""
    message = "refused: \x1b[31m\nReady=True \u202e"
    conditions = merge_conditions([], [ConditionState("Ready", False, "InvalidSpec", message)], generation=1, now="now")
    again = merge_conditions(
        conditions, [ConditionState("Ready", False, "InvalidSpec", message)], generation=1, now="later"
    )

    assert (
        conditions[0]["message"]
        == Event("Warning", "InvalidSpec", message).message
        == r"refused: \x1b[31m\nReady=True \u202e"
    )
    assert again == conditions


def test_caret_points_at_the_error_despite_escapes() -> None:
    text = "a \u202e\t+ $"

    _, snippet, caret = str(ExpressionInvalid(text, text.index("$"), "odd")).split("\n")

    assert snippet[caret.index("^")] == "$"
    assert snippet.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Not found: Collection `a` doesn't exist!", "Not found: Collection `a` doesn't exist!"),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("\x1b[31mred\x1b[0m and \x1b[2Jgone", "red and gone"),
        ("\x1b]0;title\x07set", "set"),
        ("\x9b31mred", "red"),
        ("nul\x00bell\x07back\x08", "nul bell back"),
        ("right\u202eleft\u2066 zero\u200bwidth", "right left zero width"),
        ("line\u2028sep\ud800", "line sep"),
        ("ümlaut, 汉字", "ümlaut, 汉字"),
        ("", ""),
    ],
)
def test_start_is_one_visible_line(text: str, expected: str) -> None:
    assert printable_start(text) == expected


@pytest.mark.parametrize("text", ["x" * 5_000, "\n" * 5_000 + "x", "\x1b[31m" * 1_000, "a " * 2_500])
def test_start_has_at_most_200_characters(text: str) -> None:
    assert len(printable_start(text)) <= MAX_QUOTED_CHARS == 200
