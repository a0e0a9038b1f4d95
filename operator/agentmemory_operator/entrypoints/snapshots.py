"""`agentmemory snapshot`: make snapshots of an agent and see what there is."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from agentmemory_operator.entrypoints.downloads import Downloads, add_download
from agentmemory_operator.entrypoints.inspection import TableJsonOrYaml, print_json
from agentmemory_operator.entrypoints.jobs import (
    OpenJobs,
    Place,
    Wait,
    add_verb,
    create,
    follow,
    in_place,
    new_object,
    stamped,
)
from agentmemory_operator.entrypoints.snapshot_deletion import add_delete
from agentmemory_operator.entrypoints.snapshot_lists import snapshot_sections, snapshots_document
from agentmemory_operator.entrypoints.tables import show
from agentmemory_operator.ports import Json
from agentmemory_operator.ports.jobs import JobObjects
from agentmemory_operator.services.objects import AGENT_MEMORY, MEMORY_SNAPSHOT

Name = Annotated[str, typer.Argument(help="Of the AgentMemory.")]


class Verify(StrEnum):
    """How a snapshot is proven."""

    FULL = "Full"
    CHECKSUM = "Checksum"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make a snapshot of an agent's memories now."""

    name: Name
    snapshot_name: Annotated[str | None, typer.Option("--name", help="Of the MemorySnapshot.")] = None
    verify: Annotated[Verify | None, typer.Option(help="How it is proven. Default: Full.")] = None
    wait: Wait = False

    def document(self, namespace: str) -> Json:
        """Return the MemorySnapshot."""
        spec = {"agentMemoryRef": {"name": self.name}} | ({"verify": str(self.verify)} if self.verify else {})
        return new_object(MEMORY_SNAPSHOT, namespace, self.snapshot_name or stamped(self.name), spec=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List an agent's snapshots, newest first."""

    name: Name
    output: Annotated[TableJsonOrYaml, typer.Option("-o", "--output")] = TableJsonOrYaml.TABLE


def add_snapshots(cli: typer.Typer, open_jobs: OpenJobs, downloads: Downloads) -> None:
    """Add the verbs to the command line."""
    snapshots = typer.Typer(no_args_is_help=True, help="Make snapshots of an agent's memories, and see what there is.")
    add_verb(snapshots, "create", Create, partial(_create, open_jobs))
    add_verb(snapshots, "list", List, partial(_list, open_jobs))
    add_download(snapshots, open_jobs, downloads)
    add_delete(snapshots, open_jobs)
    cli.add_typer(snapshots, name="snapshot")


def _create(open_jobs: OpenJobs, asked: Create, place: Place) -> None:
    async def work(objects: JobObjects, namespace: str) -> None:
        # The operator would wait for it; whoever mistypes a name is told at once.
        await objects.read_object(AGENT_MEMORY, namespace, asked.name)
        document = asked.document(namespace)
        await create(objects, document)
        if asked.wait:
            await follow(objects, document)

    see = f"`agentmemory snapshot list {asked.name}{place.options}` shows it"
    in_place(open_jobs, place, work, going_on=f"the snapshot goes on; {see}")
    if not asked.wait:
        typer.echo(see)


def _list(open_jobs: OpenJobs, asked: List, place: Place) -> None:
    async def work(objects: JobObjects, namespace: str) -> list[Json]:
        found = await objects.list_in(MEMORY_SNAPSHOT, namespace)
        return [one for one in found if one["spec"]["agentMemoryRef"]["name"] == asked.name]

    found = in_place(open_jobs, place, work)
    if asked.output is TableJsonOrYaml.TABLE:
        show(snapshot_sections(found), Console())
    else:
        print_document(snapshots_document(found), asked.output)


def print_document(document: Any, output: TableJsonOrYaml) -> None:
    """Print a document for programs."""
    if output is TableJsonOrYaml.JSON:
        print_json(document)
    else:
        typer.echo(yaml.safe_dump(document, sort_keys=False, width=120), nl=False)
