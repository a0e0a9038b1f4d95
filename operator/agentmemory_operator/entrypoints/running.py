"""One way to run a verb of the command line to its end."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import typer
import uvloop

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import SettingInvalid

T = TypeVar("T")


def run_verb(verb: Awaitable[T]) -> T:
    """Run a verb and return what it gives; what a person can mend becomes one line and exit status 1."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_awaited(verb))
    except (AgentMemoryError, SettingInvalid, OSError) as exc:
        typer.echo(f"agentmemory: {exc}", err=True)
        raise typer.Exit(1) from exc


async def _awaited(verb: Awaitable[T]) -> T:
    return await verb
