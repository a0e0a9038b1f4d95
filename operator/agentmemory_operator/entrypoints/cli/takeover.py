"""`agentmemory takeover`: let objects have collections that another cluster, or another object, left behind."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.collections.takeover import Refused, allow_takeover, of_rebuilt_cluster, refused_in
from agentmemory_operator.entrypoints.cli.run import run_verb
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import AgentMemories
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER

OpenObjects = Callable[[], AbstractAsyncContextManager[AgentMemories]]
COLUMNS = ("NAMESPACE", "NAME", "COLLECTION", "OWNER", "CLUSTER", "UID", "ALLOWED-BY")
LATER = (
    f"Nothing was changed. Add --yes to allow it, once no other operator serves these: within a namespace by the"
    f" annotation {TAKEOVER}, else in spec.takeovers of the connection."
)


def add_takeover(cli: typer.Typer, open_objects: OpenObjects) -> None:
    """Add the verb to the command line."""

    @cli.command()
    def takeover(
        name: Annotated[str | None, typer.Argument(help="One AgentMemory.")] = None,
        every: Annotated[bool, typer.Option("--all", help="Every one that the old cluster had by its name.")] = False,
        cluster_id: Annotated[str | None, typer.Option(help="The old cluster: uid of its kube-system.")] = None,
        namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Default: default; all.")] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do it; without it, only list.")] = False,
    ) -> None:
        """Let objects take over collections that a rebuilt cluster, or another object, left behind."""
        if every == bool(name):
            raise typer.BadParameter("give either NAME or --all")
        if every and not cluster_id:
            raise typer.BadParameter("--all needs --cluster-id: whose collections are to be taken over")
        chosen = run_verb(_take_over(open_objects, name, namespace, cluster_id=cluster_id, is_wanted=yes))
        if name and not chosen:
            place = f"{namespace or 'default'}/{name}"
            typer.echo(f"agentmemory: AgentMemory {place} is refused no such collection: see its conditions", err=True)
            raise typer.Exit(1)
        show([_section(chosen, is_done=yes)], Console())


async def _take_over(
    open_objects: OpenObjects, name: str | None, namespace: str | None, *, cluster_id: str | None, is_wanted: bool
) -> list[Refused]:
    """The objects that the command line names, annotated if asked for."""
    async with open_objects() as objects:
        memories, _ = await objects.list_objects("AgentMemory")
        refused = list(refused_in(memories, await _connections(objects)))
        place = namespace or ("default" if name else None)
        if name:
            chosen = [one for one in refused if one.name == name and cluster_id in (None, one.owner.get("clusterId"))]
        else:
            chosen = of_rebuilt_cluster(refused, cluster_id or "")
        chosen = [one for one in chosen if place in (None, one.namespace)]
        if is_wanted:
            await allow_takeover(chosen, objects, cluster_id=cluster_id)
    return chosen


async def _connections(objects: AgentMemories) -> list[Json]:
    """The connections, none where the caller may not read them: then nothing of theirs can be allowed."""
    try:
        return (await objects.list_objects("QdrantConnection"))[0]
    except TransientError:
        return []


def _section(refused: Sequence[Refused], *, is_done: bool) -> Section:
    rows = tuple((one.namespace, one.name, one.alias, *_told(one)) for one in refused)
    section = Section("", columns=COLUMNS if rows else (), rows=rows)
    if not rows:
        return replace(section, heading="No AgentMemory is refused a collection of that cluster.")
    done = f"{len(rows)} allowed; the operator takes the collections over."
    return replace(section, notes=(done if is_done else LATER,))


def _told(refused: Refused) -> tuple[str, str, str, str]:
    """Whose it is, of which cluster, and who allows it."""
    owner = refused.owner
    named = "/".join(filter(None, (owner.get("namespace"), owner.get("name"))))
    by = f"{refused.connection.namespace}/{refused.connection.name}" if refused.connection else "the object"
    return named, owner.get("clusterId", ""), owner.get("uid", ""), by
