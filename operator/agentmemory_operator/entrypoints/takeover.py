"""`agentmemory takeover`: let objects have collections that another cluster, or another object, left behind."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.domain.resources import TAKEOVER
from agentmemory_operator.entrypoints.running import run_verb
from agentmemory_operator.entrypoints.tables import Section, show
from agentmemory_operator.ports import AgentMemories
from agentmemory_operator.services.takeover import Refused, allow_takeover, of_rebuilt_cluster, refused_in

OpenObjects = Callable[[], AbstractAsyncContextManager[AgentMemories]]
COLUMNS = ("NAMESPACE", "NAME", "COLLECTION", "OWNER", "CLUSTER", "UID")
LATER = f"Nothing was changed. Add --yes to set the annotation {TAKEOVER}, once no other operator serves these."


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
    """Return the objects that are meant, annotated where that is wanted."""
    async with open_objects() as objects:
        documents, _ = await objects.list_objects("AgentMemory")
        refused = list(refused_in(documents))
        place = namespace or ("default" if name else None)
        if name:
            chosen = [one for one in refused if one.metadata.name == name and cluster_id in (None, one.cluster_id)]
        else:
            chosen = of_rebuilt_cluster(refused, cluster_id or "")
        chosen = [one for one in chosen if place in (None, one.metadata.namespace)]
        if is_wanted:
            await allow_takeover(chosen, objects)
    return chosen


def _section(refused: Sequence[Refused], *, is_done: bool) -> Section:
    rows = tuple(
        (one.metadata.namespace, one.metadata.name, one.alias, f"{one.namespace}/{one.name}", one.cluster_id, one.uid)
        for one in refused
    )
    section = Section("", columns=COLUMNS if rows else (), rows=rows)
    if not rows:
        return replace(section, heading="No AgentMemory is refused a collection of that cluster.")
    done = f"{len(rows)} annotated; the operator takes the collections over."
    return replace(section, notes=(done if is_done else LATER,))
