"""What others wrote shows as what it is."""

import pytest

from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.expression.syntax import ExpressionInvalid
from agentmemory_operator.spec.kinds.conditions import ConditionState, merge_conditions
from agentmemory_operator.spec.printable import MAX_QUOTED_CHARS, printable, printable_lines, printable_start

# By what a reader of lines, a terminal or a person would make of them.
DOES_NOT_SHOW = {
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


@pytest.mark.parametrize("char", DOES_NOT_SHOW.values(), ids=DOES_NOT_SHOW)
def test_what_does_not_show_is_written_out(char: str) -> None:
    shown = printable(f"before{char}after")

    assert shown.isprintable()
    assert shown.startswith("before\\")
    assert shown.endswith("after")
    assert printable(shown) == shown
    assert printable_lines(f"before{char}after") == shown


@pytest.mark.parametrize("text", ["", "plain words", "prix: 5 €, naïve, 日本語", "C:\\new", "🙂"])
def test_what_shows_stays(text: str) -> None:
    assert (printable(text), printable_lines(text)) == (text, text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("character 3: odd\n  a + b\n    ^", "character 3: odd\n  a + b\n    ^"),
        ("odd\nStatus: True", "odd\\nStatus: True"),
        ("odd\n Status", "odd\\n Status"),
        ("odd\n\n  Status", "odd\\n\n  Status"),
        ("odd\r\n  Status", "odd\\r\n  Status"),
        ("odd\n  \x1b[2J", "odd\n  \\x1b[2J"),
    ],
)
def test_only_lines_that_are_indented_begin(text: str, shown: str) -> None:
    assert printable_lines(text) == shown
    assert printable_lines(shown) == shown


def test_conditions_and_events_carry_nothing_else() -> None:
    """One that is told again is the same, so that it is not written for ever."""
    words = "refused: \x1b[31m\nReady=True \u202e"
    told = merge_conditions([], [ConditionState("Ready", False, "InvalidSpec", words)], generation=1, now="now")
    again = merge_conditions(told, [ConditionState("Ready", False, "InvalidSpec", words)], generation=1, now="later")

    assert (
        told[0]["message"] == Event("Warning", "InvalidSpec", words).message == r"refused: \x1b[31m\nReady=True \u202e"
    )
    assert again == told


def test_the_caret_stands_under_the_place_though_something_before_it_does_not_show() -> None:
    text = "a \u202e\t+ $"

    _, snippet, caret = str(ExpressionInvalid(text, text.index("$"), "odd")).split("\n")

    assert snippet[caret.index("^")] == "$"
    assert snippet.isprintable()


@pytest.mark.parametrize(
    ("said", "shown"),
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
def test_only_what_shows_is_left_on_one_line(said: str, shown: str) -> None:
    assert printable_start(said) == shown


@pytest.mark.parametrize("said", ["x" * 5_000, "\n" * 5_000 + "x", "\x1b[31m" * 1_000, "a " * 2_500])
def test_there_are_no_more_than_200_characters(said: str) -> None:
    assert len(printable_start(said)) <= MAX_QUOTED_CHARS == 200
