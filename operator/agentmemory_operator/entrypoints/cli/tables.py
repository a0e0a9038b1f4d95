"""Sections of a command's output, and their rendering: coloured on a terminal, plain text for a pipe or file."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentmemory_operator.spec.printable import printable, printable_lines

MARGIN = "  "
GAP = "   "
# Characters; a truncated column that would be narrower is printed below its row.
MIN_CUT_WIDTH = 24
MOODS = {"good": "green", "busy": "yellow", "bad": "bold red", "quiet": "dim", "": ""}


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with a table, notes and commands. Empty parts are omitted.

    Attributes:
        mood: Key of `MOODS`; colours the heading on a terminal.
        columns: Column headings; empty prints none.
        cut: Heading of the column that is truncated to the width of a terminal. Other columns are wrapped, except the
            first one of a table with headings.
        commands: Lines to copy; never wrapped.
    """

    heading: str
    mood: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    cut: str | None = None

    def __post_init__(self) -> None:
        """Escape control characters in heading, cells and notes: memories and messages are untrusted input."""
        rows = tuple(tuple(map(printable_lines, row)) for row in self.rows)
        escaped = {"heading": printable(self.heading), "rows": rows, "notes": tuple(map(printable_lines, self.notes))}
        for name, value in escaped.items():
            object.__setattr__(self, name, value)


def plain(sections: Sequence[Section]) -> str:
    """Render sections as plain text with aligned columns, without wrapping."""
    return "\n\n".join("\n".join(_plain_lines(section)) for section in sections) + "\n"


def _plain_lines(section: Section) -> list[str]:
    lines = [section.heading] if section.heading else []
    margin = MARGIN if lines else ""
    grid = [*([section.columns] if section.columns else []), *section.rows]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for row in grid:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(margin + GAP.join(padded).rstrip())
    return lines + [margin + text for text in (*section.notes, *section.commands)]


def show(sections: Sequence[Section], console: Console) -> None:
    """Print sections: with colours and wrapped columns on a terminal, else as `plain` renders them."""
    if not console.is_terminal:
        console.file.write(plain(sections))
        return
    for number, section in enumerate(sections):
        if number:
            console.print()
        _show(section, console)


def _width_for_cut(section: Section, width: int) -> int | None:
    """Return how many characters the other columns leave for the truncated one; None if no column is truncated.

    The number may be negative. Without a limit on the truncated column, rich would shrink the other columns to nothing,
    because they can be wrapped.
    """
    if section.cut is None or not section.rows:
        return None
    others = [column for column in zip(section.columns, *section.rows, strict=True) if column[0] != section.cut]
    return width - sum(max(map(cell_len, column)) + len(GAP) for column in others)


def _show_stacked(section: Section, console: Console) -> None:
    """Print each row without the truncated column, whose cell follows on the next line. For narrow terminals."""
    index = section.columns.index(section.cut or "")
    columns, *rows = ((*row[:index], *row[index + 1 :]) for row in (section.columns, *section.rows))
    heading, *lines = _plain_lines(Section("", columns=columns, rows=tuple(rows)))
    console.print(Text(MARGIN + heading, style="bold"), soft_wrap=True)
    for line, row in zip(lines, section.rows, strict=True):
        console.print(Text(MARGIN + line), soft_wrap=True)
        console.print(Padding(Text(row[index], no_wrap=True, overflow="ellipsis"), (0, 2 * len(MARGIN))))


def _table(section: Section, cut_width: int | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=bool(section.columns), pad_edge=False, show_edge=False)
    for index, heading in enumerate(section.columns or section.rows[0]):
        # Users copy names from the first column, so it is never wrapped.
        is_name, is_cut = index == 0 and bool(section.columns), heading == section.cut
        table.add_column(
            Text(heading),
            overflow="ellipsis" if is_cut else "fold",
            no_wrap=is_name or is_cut,
            max_width=cut_width if is_cut else None,
            min_width=max(cell_len(row[0]) for row in section.rows) if is_name else None,
        )
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table


def _show(section: Section, console: Console) -> None:
    if section.heading:
        console.print(Text(section.heading, style=MOODS[section.mood] or "bold"))
    cut_width = _width_for_cut(section, console.width - 2 * len(MARGIN))
    if cut_width is not None and cut_width < MIN_CUT_WIDTH:
        _show_stacked(section, console)
    elif section.rows:
        console.print(Padding(_table(section, cut_width), (0, len(MARGIN))))
    for note in section.notes:
        console.print(Padding(Text(note), (0, len(MARGIN))))
    for command in section.commands:
        console.print(Text(MARGIN + command, style="cyan"), soft_wrap=True)
