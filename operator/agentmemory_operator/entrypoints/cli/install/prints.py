"""Commands that only print, and need no dependencies."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.cli.program import COMPLETE, PROGRAM


class Shell(StrEnum):
    """Shells with completion support."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def add_printers(cli: typer.Typer) -> None:
    """Add `completion` and `version` to a command line."""

    @cli.command()
    def completion(
        shell: Annotated[Shell, typer.Argument(help="Shell to complete in.")],
        program: Annotated[str, typer.Option(help="Name by which the command is called.")] = PROGRAM,
    ) -> None:
        """Print a shell completion script: source <(agentmemory completion bash)."""
        typer.echo(get_completion_script(prog_name=program, complete_var=COMPLETE, shell=shell))

    @cli.command()
    def version() -> None:
        """Print the version."""
        typer.echo(__version__)
