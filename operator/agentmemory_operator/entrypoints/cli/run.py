"""Run a command to its end, and ask for confirmation.

Irreversible commands need a confirmation on the terminal, or the option --yes.
"""

import asyncio
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer
import uvloop

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import SettingInvalid
from agentmemory_operator.spec.printable import printable_lines

T = TypeVar("T")

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")]
USAGE_ERROR = 2


def run_command(verb: Awaitable[T]) -> T:
    """Run a command in a new event loop and return its result. Errors are converted by `exit_on_error`."""
    with exit_on_error(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_awaited(verb))


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Convert AgentMemoryError, SettingInvalid and OSError to a message on standard error and exit status 1."""
    try:
        yield
    except (AgentMemoryError, SettingInvalid, OSError) as exc:
        typer.echo(f"agentmemory: {printable_lines(str(exc))}", err=True)
        raise typer.Exit(1) from exc


async def _awaited(verb: Awaitable[T]) -> T:
    return await verb


def check_answerable(question: str, *, yes: bool) -> None:
    """Exit unless a confirmation can be asked for or --yes is given. Call it before anything is read or written.

    Raises:
        typer.Exit: With status 2, as for a missing option.
    """
    # Require a terminal: input from a pipe is no confirmation. sys.stdin is None if it was closed.
    if yes or (sys.stdin is not None and sys.stdin.isatty()):
        return
    typer.echo(f"agentmemory: {question} Standard input is not a terminal, so nothing was done: add --yes", err=True)
    raise typer.Exit(USAGE_ERROR)


def confirm(question: str, *, yes: bool, err: bool = False) -> None:
    """Ask for confirmation unless --yes is given; abort with exit status 1 on no, the default answer, or Ctrl-C.

    Other input than yes or no is asked for again.

    Args:
        err: True to ask on standard error, because programs read the standard output.

    Raises:
        typer.Exit: With status 2, if the question cannot be answered because standard input is no terminal.
        typer.Abort: If the user does not confirm.
    """
    check_answerable(question, yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=err)
