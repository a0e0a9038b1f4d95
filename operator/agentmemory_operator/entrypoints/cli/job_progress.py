"""Show the progress of a job from its status: as a bar on a terminal, else as a line per change."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from agentmemory_operator.controllers.rules.status_words import read_stage
from agentmemory_operator.ports.base import Json

# Seconds after which a missing status is reported.
RECONCILE_WARNING_S = 15.0
NOT_RECONCILED = "not reconciled yet: is an operator running, and does it watch this namespace?"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a MemorySnapshot or MemoryRestore.

    Attributes:
        message: Text that follows the object's name in messages.
    """

    has_succeeded: bool
    message: str


def read_outcome(document: Json) -> JobOutcome | None:
    """Return the result of a job, or None if it has not ended. A failed verification counts as a failure."""
    conditions = {item["type"]: item for item in (document.get("status") or {}).get("conditions") or []}
    succeeded, is_running = conditions.get("Succeeded"), conditions.get("Progressing", {}).get("status") == "True"
    if succeeded is None or succeeded["status"] == "Unknown" or is_running:
        return None
    if succeeded["status"] == "False":
        return JobOutcome(False, f"failed ({succeeded['reason']}): {succeeded['message']}")
    verified = conditions.get("Verified")
    if verified is not None and verified["status"] == "False":
        return JobOutcome(False, f"was taken but not verified ({verified['reason']}): {verified['message']}")
    return JobOutcome(True, f"has succeeded ({succeeded['reason']}): {succeeded['message']}")


class JobProgress:
    """Shows the progress of an operation.

    Args:
        title: Name of the operation or its object.
        has_bar: False prints lines even on a terminal, because a bar would overwrite other output.
    """

    def __init__(self, title: str, *, has_bar: bool = True) -> None:
        self._title = title
        self._said = ""
        self._begun = time.monotonic()
        console = Console(stderr=True)
        self._bars = Bars(
            *(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()),
            console=console,
            transient=True,
            disable=not (has_bar and console.is_terminal),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        self._task = self._bars.add_task(self._title, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, document: Json) -> None:
        """Show the progress of a job, or a hint if it has had no status for 15 s."""
        stage = read_stage(document)
        is_not_reconciled = not document.get("status") and time.monotonic() - self._begun > RECONCILE_WARNING_S
        text = NOT_RECONCILED if is_not_reconciled else stage.text
        self.advance(text, stage.done, stage.total)

    def advance(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show a text, with a bar if the total is known. Without a terminal, print the text if it has changed."""
        if not self._bars.disable:
            assert self._task is not None
            description = f"{self._title}: {text}" if text else self._title
            self._bars.update(self._task, description=description, completed=done, total=total or None)
        elif text and text != self._said:
            typer.echo(f"  {text}", err=True)
        self._said = text
