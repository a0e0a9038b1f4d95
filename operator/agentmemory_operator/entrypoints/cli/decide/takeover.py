"""`agentmemory takeover`: allow objects to take over collections of a lost cluster or of another object."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.collections.takeover_requests import (
    RefusedAgent,
    allow_takeover,
    filter_rebuilt_cluster,
    find_refused,
)
from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, add_verb, run_on_jobs
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER

COLUMNS = ("NAMESPACE", "NAME", "COLLECTION", "OWNER", "CLUSTER", "UID", "ALLOWED-BY")
LATER = (
    f"Nothing was changed. Add --yes to allow it once no other operator manages these collections: within a "
    f"namespace with the annotation {TAKEOVER}, otherwise in spec.takeovers of the connection."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOptions:
    """Transfer collections of a lost cluster, or of another object, to their new AgentMemory objects."""

    name: Annotated[str | None, typer.Argument(help="Name of the AgentMemory.")] = None
    every: Annotated[
        bool, typer.Option("--all", help="Transfer to every AgentMemory that the old cluster had under the same name.")
    ] = False
    cluster_id: Annotated[
        str | None, typer.Option(help="uid of the old cluster's kube-system namespace; required with --all.")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Make the transfer. Default: only list it.")] = False


def add_takeover(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `takeover` to a command line."""
    add_verb(cli, "takeover", TakeoverOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: TakeoverOptions, location: JobsLocation) -> None:
    if options.every == bool(options.name):
        raise typer.BadParameter("give either NAME or --all")
    if options.every and not options.cluster_id:
        raise typer.BadParameter("--all needs --cluster-id: the cluster whose collections are taken over")
    selected = run_on_jobs(open_jobs, location, partial(_take_over, options, location.namespace))
    show([_section(selected, is_done=options.yes)], Console())


async def _take_over(
    options: TakeoverOptions, option_namespace: str | None, objects: JobObjects, namespace: str
) -> list[RefusedAgent]:
    """Return the selected objects; allow their takeover if --yes is given.

    Args:
        option_namespace: Namespace of the command line. With --all, None selects all namespaces.

    Raises:
        NotFound: If the named object is not blocked by a collection of another owner.
    """
    memories, _ = await objects.list_objects("AgentMemory")
    refused = list(find_refused(memories, await _connections(objects)))
    if options.name:
        selected = [memory for memory in refused if memory.name == options.name and memory.namespace == namespace]
        selected = [memory for memory in selected if options.cluster_id in (None, memory.owner.get("clusterId"))]
        if not selected:
            full_name = f"{namespace}/{options.name}"
            raise NotFound(f"AgentMemory {full_name} is not blocked by such a collection: see its conditions")
    else:
        selected = filter_rebuilt_cluster(refused, options.cluster_id or "")
        selected = [memory for memory in selected if option_namespace in (None, memory.namespace)]
    if options.yes:
        await allow_takeover(selected, objects, cluster_id=options.cluster_id)
    return selected


async def _connections(objects: JobObjects) -> list[Json]:
    """Return all connections, or none if they cannot be listed: then only takeovers within a namespace work."""
    try:
        return (await objects.list_objects("QdrantConnection"))[0]
    except TransientError:
        return []


def _section(refused: Sequence[RefusedAgent], *, is_done: bool) -> Section:
    rows = tuple((item.namespace, item.name, item.alias, *_owner_columns(item)) for item in refused)
    section = Section("", columns=COLUMNS if rows else (), rows=rows)
    if not rows:
        return replace(section, heading="No AgentMemory is blocked by a collection of that cluster.")
    done = f"{len(rows)} allowed; the operator takes the collections over."
    return replace(section, notes=(done if is_done else LATER,))


def _owner_columns(refused: RefusedAgent) -> tuple[str, str, str, str]:
    """Return the collection's owner, its cluster and uid, and the object that allows the takeover."""
    owner = refused.owner
    owner_name = "/".join(filter(None, (owner.get("namespace"), owner.get("name"))))
    grantor = f"{refused.connection.namespace}/{refused.connection.name}" if refused.connection else "the object"
    return owner_name, owner.get("clusterId", ""), owner.get("uid", ""), grantor
