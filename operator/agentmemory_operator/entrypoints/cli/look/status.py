"""`agentmemory status`: show one AgentMemory."""

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, Output, add_verb, run_on_jobs
from agentmemory_operator.entrypoints.cli.look.status_view import status_document, status_sections
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml, print_document
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """Show an AgentMemory: conditions, held plan with the suggested fix, and collection."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory.")]
    full: Annotated[bool, typer.Option("--full", help="Show the settings in force too.")] = False
    output: Output = TableJsonOrYaml.TABLE


def add_status(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `status` to a command line."""
    add_verb(cli, "status", StatusOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: StatusOptions, scope: JobsLocation) -> None:
    document = run_on_jobs(open_jobs, scope, partial(_read, options.name))
    if options.output is TableJsonOrYaml.TABLE:
        show(status_sections(document, options=scope.options, kubectl=_kubectl(scope), is_full=options.full), Console())
    else:
        print_document(status_document(document), options.output)


async def _read(name: str, objects: JobObjects, namespace: str) -> Json:
    return await objects.read_object(AGENT_MEMORY, namespace, name)


def _kubectl(location: JobsLocation) -> str | None:
    """Return the kubectl command for the cluster; None for a manifest folder."""
    if location.manifests:
        return None
    return f"kubectl --context {shlex.quote(location.context)}" if location.context else "kubectl"
