"""Output of the demo: 100 columns wide, escape codes only on a terminal, details only with --details."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

WIDTH = 100
MAX_SHOWN, LOG_LINES = 3, 20

Json = dict[str, Any]

# Print a question mark for a character that the terminal's encoding lacks.
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")
CONSOLE_OPTIONS: dict[str, Any] = {"width": WIDTH, "highlight": False, "markup": False, "emoji": False}
console = Console(**CONSOLE_OPTIONS, force_terminal=sys.stdout.isatty())
details = Console(**CONSOLE_OPTIONS, force_terminal=sys.stdout.isatty(), quiet=True)


def say_in_detail(text: str) -> None:
    """Print a text with --details only."""
    details.print(text)


def say(text: str) -> None:
    """Print a text."""
    console.print(text)


def say_boldly(text: str) -> None:
    """Print a text in bold."""
    console.print(text, style="bold")


def show_scene(number: int, total: int, title: str) -> None:
    """Print the headline of a scene."""
    console.print(f"\n{number} of {total}  {title}", style="bold")
    console.rule(characters="-", style="dim")


def show_manifest(text: str, *, to: Console = console) -> None:
    """Print a manifest without its comments."""
    lines = (line.partition(" #")[0].rstrip() for line in text.splitlines() if not line.lstrip().startswith("#"))
    to.print("\n".join(f"    {line}" for line in lines if line), style="cyan")


def show_settings(rows: Sequence[tuple[str, object, object]]) -> None:
    """Print the required and the actual value of each setting, with --details."""
    table = columns("setting", "asked for", "in Qdrant")
    for label, required, seen in rows:
        table.add_row(label, str(required), str(seen))
    details.print(table)


def show_answers(rows: Sequence[tuple[Json, list[Json], int | None]]) -> None:
    """Print each question with the memory that answers it and its rank, with --details."""
    table = columns("user_id", "question", "answer", "rank")
    table.columns[3].justify = "right"
    for question, found, rank in rows:
        answer = found[rank - 1]["content"] if rank else "NOT FOUND"
        table.add_row(question["user_id"], question["query"], answer, str(rank or "-"))
    details.print(table)


def show_some_answers(rows: Sequence[tuple[Json, list[Json], int | None]]) -> None:
    """Print a few questions, each with the memory that answers it."""
    for question, found, rank in rows[:MAX_SHOWN]:
        console.print(f"  {question['user_id']} asks: {question['query']}", style="bold")
        if rank:
            console.print(Padding(found[rank - 1]["content"], (0, 4)))


def show_ranking(ranking: list[Json], *, before: list[Json] | None = None) -> None:
    """Print the first memories with the terms of their scores, and the memory that was first before.

    Args:
        before: Earlier ranking of the same question; None shows no earlier ranks.
    """
    weights = ranking[0]["explain"]["weights"]
    say("score = " + " + ".join(f"{weight} x {name}" for name, weight in weights.items()))
    say("recency = 0.5 ^ (age / half-life); utility = importance, raised by every retrieval\n")
    ranks = {memory["id"]: rank for rank, memory in enumerate(before or (), start=1)}
    table = columns("rank", "memory", "type", "age,\ndays", "half-\nlife", *weights, "score")
    for column in table.columns[3:]:
        column.justify = "right"
    for rank, memory in enumerate(ranking, start=1):
        if rank <= MAX_SHOWN or ranks.get(memory["id"]) == 1:
            shown = f"{ranks.get(memory['id'], '-')} -> {rank}" if before else str(rank)
            table.add_row(shown, *_cells(memory, tuple(weights)))
    console.print(table)


def _cells(memory: Json, names: tuple[str, ...]) -> list[str]:
    terms = memory["explain"]
    ages = [f"{terms['age_days']:.0f}", f"{terms['half_life_days']:.0f}"]
    return [memory["content"], memory["type"], *ages, *(f"{terms[name]:.3f}" for name in (*names, "score"))]


def show_numbers(numbers: dict[str, str]) -> None:
    """Print the figures of the whole run."""
    say_boldly("\nThe numbers")
    table = columns("", "")
    table.show_header = False
    for name, value in numbers.items():
        table.add_row(name, value)
    console.print(table)


def show_next(rows: Sequence[tuple[str, str]]) -> None:
    """Print commands and pages to go on with."""
    say_boldly("\nNext")
    table = columns("", "")
    table.show_header = False
    for purpose, target in rows:
        table.add_row(purpose, target)
    console.print(table)


def report(failure: Exception, log: Path) -> None:
    """Print the failure, and the end of the stack's log."""
    console.print(f"\nFAILED: {failure or type(failure).__name__}", style="bold red")
    if log.is_file():
        say("\nThe log of the stack ends with:")
        for line in log.read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:]:
            say(f"  {line}")


def columns(*names: str) -> Table:
    """Return an empty table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(name)
    return table
