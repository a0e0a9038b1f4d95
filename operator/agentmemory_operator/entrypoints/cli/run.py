"""One way to run a verb of the command line to its end.

Before what ends something for ever there is a question: asked on a terminal, answered by --yes where there is none.
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
UNANSWERED = 2


def run_verb(verb: Awaitable[T]) -> T:
    """Run a verb and return what it gives; what a person can mend becomes one line and exit status 1."""
    with ending_in_one_line(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_awaited(verb))


@contextmanager
def ending_in_one_line() -> Iterator[None]:
    """End the command with one line and exit status 1 where a person can mend what is wrong."""
    try:
        yield
    except (AgentMemoryError, SettingInvalid, OSError) as exc:
        typer.echo(f"agentmemory: {printable_lines(str(exc))}", err=True)
        raise typer.Exit(1) from exc


async def _awaited(verb: Awaitable[T]) -> T:
    return await verb


def check_answerable(question: str, *, yes: bool) -> None:
    """Pass when somebody can be asked, or has said yes; call it before anything is read or written.

    Raises:
        typer.Exit: with status 2, as for an option that is missing.
    """
    # None where it was closed; input from a pipe is nobody's answer.
    if yes or (sys.stdin is not None and sys.stdin.isatty()):
        return
    typer.echo(
        f"agentmemory: {question} Standard input is not a terminal, so nothing was done: add --yes",
        err=True,
    )
    raise typer.Exit(UNANSWERED)


def confirm(question: str, *, yes: bool, err: bool = False) -> None:
    """Ask, unless somebody has said yes; any other answer than yes ends the verb with exit status 1.

    Args:
        err: ask on standard error, because programs read the output.
    """
    check_answerable(question, yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=err)
