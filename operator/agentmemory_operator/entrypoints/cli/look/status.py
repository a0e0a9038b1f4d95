"""`agentmemory status`: list the AgentMemory objects, or show one."""

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, Output, add_verb, run_on_jobs
from agentmemory_operator.entrypoints.cli.look.status_view import agents_section, status_document, status_sections
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml, print_document
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """List the AgentMemory objects, or show one: conditions, collection, and the plan that waits for approval."""

    name: Annotated[str | None, typer.Argument(help="Name of the AgentMemory. Default: list all.")] = None
    full: Annotated[bool, typer.Option("--full", help="Also show the settings in force.")] = False
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="List the AgentMemories of all namespaces.")
    ] = False
    output: Output = TableJsonOrYaml.TABLE


def add_status(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `status` to a command line."""
    add_verb(cli, "status", StatusOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: StatusOptions, scope: JobsLocation) -> None:
    if options.name is None:
        _run_list(open_jobs, options, scope)
        return
    if options.all_namespaces:
        raise typer.BadParameter("-A lists the objects of all namespaces: omit the name")
    document = run_on_jobs(open_jobs, scope, partial(_read, options.name))
    if options.output is TableJsonOrYaml.TABLE:
        show(status_sections(document, options=scope.options, kubectl=_kubectl(scope), is_full=options.full), Console())
    else:
        print_document(status_document(document), options.output)


def _run_list(open_jobs: OpenJobs, options: StatusOptions, scope: JobsLocation) -> None:
    if options.full:
        raise typer.BadParameter("--full needs the name of an AgentMemory")
    if options.all_namespaces and scope.namespace:
        raise typer.BadParameter("-A cannot be combined with -n")
    # A folder has few objects, and its default namespace may have none of them.
    is_everywhere = options.all_namespaces or (scope.manifests is not None and scope.namespace is None)
    documents = run_on_jobs(open_jobs, scope, partial(_list, is_everywhere))
    if options.output is TableJsonOrYaml.TABLE:
        show([agents_section(documents)], Console())
    else:
        print_document({"agents": [status_document(document) for document in documents]}, options.output)


async def _list(is_everywhere: bool, objects: JobObjects, namespace: str) -> list[Json]:
    found = await objects.list_in(AGENT_MEMORY, "" if is_everywhere else namespace)
    return sorted(found, key=lambda document: (document["metadata"]["namespace"], document["metadata"]["name"]))


async def _read(name: str, objects: JobObjects, namespace: str) -> Json:
    return await objects.read_object(AGENT_MEMORY, namespace, name)


def _kubectl(location: JobsLocation) -> str | None:
    """Return the kubectl command for the cluster; None for a manifest folder."""
    if location.manifests:
        return None
    return f"kubectl --context {shlex.quote(location.context)}" if location.context else "kubectl"
