"""Text output: the same words in a terminal and in a pipe."""

import io

import pytest
from rich.console import Console

from agentmemory_operator.entrypoints.cli.tables import Section, plain, show

SECTIONS = [
    Section("one: fine", "good", ("NAME", "POINTS"), (("long-name", "7"), ("x", "12")), notes=("a note [b]",)),
    Section("the end", commands=("kubectl get amem",)),
]


def render(*, is_terminal: bool) -> str:
    file = io.StringIO()
    show(SECTIONS, Console(file=file, force_terminal=is_terminal, width=60, legacy_windows=False))
    return file.getvalue()


def test_pipe_output_is_aligned_with_blanks() -> None:
    assert render(is_terminal=False) == (
        "one: fine\n"
        "  NAME        POINTS\n"
        "  long-name   7\n"
        "  x           12\n"
        "  a note [b]\n"
        "\n"
        "the end\n"
        "  kubectl get amem\n"
    )


@pytest.mark.parametrize("text", ["one: fine", "long-name", "12", "a note [b]", "kubectl get amem"])
def test_terminal_shows_the_same_words_in_colour(text: str) -> None:
    output = render(is_terminal=True)

    assert text in output
    assert "\x1b[" in output


def test_command_is_never_wrapped() -> None:
    command = "kubectl " + "x" * 200
    file = io.StringIO()

    show([Section("run", commands=(command,))], Console(file=file, force_terminal=True, width=40))

    assert command in file.getvalue()


def test_section_without_heading_has_no_margin() -> None:
    assert plain([Section("", columns=("A",), rows=(("b",),))]) == "A\nb\n"


ID = "0197f1f0-5d0a-7000-8000-00c0ffee0001"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_terminal_keeps_the_first_column_and_cuts_text(width: int) -> None:
    row = (ID, "0.912", "episodic", "word after word " * 20 + "the end")
    section = Section("", columns=("ID", "SCORE", "TYPE", "CONTENT"), rows=(row,), cut="CONTENT")
    file = io.StringIO()

    show([section], Console(file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False))

    lines = [line for line in file.getvalue().splitlines() if line.strip(" ─")]
    # In a narrow terminal the text has a line of its own, so that every column can be read.
    assert len(lines) == (2 if width == 120 else 3)
    assert lines[1].strip().startswith(ID)
    assert lines[1].split()[:3] == [ID, "0.912", "episodic"]
    assert lines[-1].count("word") >= 2
    assert "…" in lines[-1]
    assert "the end" not in file.getvalue()
