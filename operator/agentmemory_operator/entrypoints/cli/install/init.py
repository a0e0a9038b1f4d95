"""`agentmemory init`: write manifests to start with, for a cluster or for `agentmemory dev`."""

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from agentmemory_operator.adapters.folder.atomic_files import create_file
from agentmemory_operator.adapters.folder.manifests import SUFFIXES
from agentmemory_operator.controllers.rules.starter_manifests import CONNECTION_FILE, render_connection, render_memory
from agentmemory_operator.entrypoints.cli.look.preset import PresetName
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.run import exit_on_error
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.kinds.cel.agent_memory import MAX_SLUG_CHARS
from agentmemory_operator.spec.naming import alias_of, find_slug
from agentmemory_operator.spec.presets import DEFAULT_PRESET

FIRST_PRESET = PresetName(DEFAULT_PRESET)
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add_init(cli: typer.Typer) -> None:
    """Add `init` to a command line."""

    @cli.command("init")
    def init(
        name: Annotated[str, typer.Argument(help="Name of the agent and its AgentMemory.")],
        preset: Annotated[PresetName, typer.Option(help="Preset of the agent.")] = FIRST_PRESET,
        into: Annotated[
            Path | None, typer.Option(file_okay=False, help="Folder to write to; created if missing. Default: NAME.")
        ] = None,
        namespace: Annotated[
            str | None, typer.Option("-n", "--namespace", help="Namespace in the manifests. Default: none.")
        ] = None,
    ) -> None:
        """Write commented manifests of an agent, for a cluster or `dev`; existing files are never overwritten."""
        with exit_on_error():
            check_names(name, namespace)
            folder = into or Path(name)
            written = write_manifests(folder, name, preset.value, namespace)
        for path in written:
            typer.echo(f"wrote {path}")
        typer.echo(f"serve them here:      {called_as()} dev --manifests {shlex.quote(str(folder))}")
        typer.echo(f"apply to a cluster:   kubectl apply -f {shlex.quote(str(folder))}")


def check_names(name: str, namespace: str | None) -> None:
    """Raise unless the names are valid for an object.

    Args:
        namespace: None is valid: the manifests then name no namespace.

    Raises:
        AgentMemoryError: If a name is invalid. The message gives the rule, and for the agent a valid name close to it.
    """
    if len(name) > MAX_SLUG_CHARS or find_slug(alias_of(name)) != name:
        valid_name = re.sub(r"[^a-z0-9]+", "-", name[:200].lower()).strip("-")[:MAX_SLUG_CHARS].strip("-")
        rule = (
            f"{name[:60]!r} cannot be an agent's name: lower case letters, digits and single '-' between them, at most"
        )
        raise AgentMemoryError(f"{rule} {MAX_SLUG_CHARS} characters" + (f", as {valid_name}" if valid_name else ""))
    if namespace is not None and not NAMESPACE.fullmatch(namespace):
        raise AgentMemoryError(
            f"{namespace[:60]!r} cannot be a namespace: lower case letters, digits and '-' between them, at most 63"
        )


def write_manifests(folder: Path, name: str, preset: str, namespace: str | None) -> list[Path]:
    """Write the manifest of an AgentMemory; return the new files. A folder without manifests also gets a connection.

    A folder with other manifests gets no connection: the file would end the connections that `dev` implies for them.

    Args:
        folder: Created if it does not exist.
        namespace: Namespace in the manifests; None omits it.

    Raises:
        AgentMemoryError: If the AgentMemory's file exists, or has the name of the connection's file.
        OSError: If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    connection, memory = folder / CONNECTION_FILE, folder / f"{name}.yaml"
    if memory == connection:
        raise AgentMemoryError(f"{memory.name} is the file of the connection: choose another name")
    if os.path.lexists(memory):
        raise AgentMemoryError(f"{memory} is there already: nothing was written")
    written = [memory]
    if not any(path.suffix in SUFFIXES for path in folder.iterdir()):
        create_file(connection, render_connection(namespace))
        written.insert(0, connection)
    create_file(memory, render_memory(name, preset, namespace))
    return written
