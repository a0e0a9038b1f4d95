"""Characters that hide or reorder text are shown by their names."""

import sys
import unicodedata

import pytest

from agentmemory_operator.entrypoints.api.ui.marks import MAX_MARKS, mark_html, mark_plain

# Signs of the category Cf that are visible: of Arabic, Syriac, Kaithi and Egyptian.
VISIBLE = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
ALLOWED = {ord("\n"), ord("\t"), 0x200C, 0x200D, *VISIBLE}


def test_each_invisible_character_is_marked() -> None:
    categories = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    hidden = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in categories and code not in ALLOWED
    ]

    assert [hex(code) for code in hidden if mark_plain(chr(code)) == chr(code)] == []


def test_no_letter_or_sign_is_marked() -> None:
    codes = (code for code in range(0xD800) if unicodedata.category(chr(code))[0] in "LNPS")
    fillers = {0x115F, 0x1160, 0x3164}

    assert [hex(code) for code in codes if mark_plain(chr(code)) != chr(code) and code not in fillers] == []


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a<b>&\"'", "a&lt;b&gt;&amp;&#34;&#39;"),
        ("\u202e", '<span class="mark" title="U+202E right-to-left override">RLO</span>'),
        ("\x00", '<span class="mark" title="U+0000 control character">U+0000</span>'),
        ("line\n\ttab", "line\n\ttab"),
    ],
)
def test_texts_are_escaped_and_marked(text: str, html: str) -> None:
    assert mark_html(text) == html


@pytest.mark.parametrize("character", ["\u034f", "\u17b4", "\ufe00", "\U000e0100"])
def test_characters_that_show_nothing_are_marked(character: str) -> None:
    assert mark_plain(f"a{character}b") != f"a{character}b"


def test_a_text_has_a_bounded_number_of_marks() -> None:
    html = mark_html("\u202e" * 10_000)

    assert (html.count("<span"), html.count("\ufffd")) == (MAX_MARKS, 10_000 - MAX_MARKS)
