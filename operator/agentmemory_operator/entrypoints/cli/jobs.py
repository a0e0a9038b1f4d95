"""What the verbs share that have the operator do something once: where the objects are, and waiting with progress."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_progress import JobProgress, outcome_of
from agentmemory_operator.entrypoints.cli.look.status_view import status_document
from agentmemory_operator.entrypoints.cli.options import (
    Context,
    Manifests,
    Namespace,
    TableJsonOrYaml,
    print_document,
    take_options,
)
from agentmemory_operator.entrypoints.cli.run import ending_in_one_line, run_verb
from agentmemory_operator.entrypoints.cli.stacks import Stacks, stacks_of
from agentmemory_operator.errors import AgentMemoryError, NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION

T = TypeVar("T")

POLL_S = 0.5
INTERRUPTED = 130

Output = Annotated[TableJsonOrYaml, typer.Option("-o", "--output", help="Output format.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 if it failed.")]


@dataclass(frozen=True, slots=True)
class JobsPlace:
    """Where the objects are.

    Attributes:
        manifests: a folder in a cluster's place.
        qdrant: URL of the server that stands in for all of the folder's connections, where a stack works on it.
        is_found: nobody named the folder; the stack that runs here has it.
    """

    namespace: str | None
    context: str | None
    manifests: Path | None
    qdrant: str | None = None
    is_found: bool = False

    def __post_init__(self) -> None:
        if self.context and self.manifests:
            raise typer.BadParameter("--manifests replaces the cluster: omit --context")

    @property
    def options(self) -> str:
        """What leads another command of ours to the same place."""
        folder = None if self.is_found else self.manifests
        named = (("-n", self.namespace), ("--context", self.context), ("--manifests", folder))
        return "".join(f" {option} {value}" for option, value in named if value)


def place_of(stacks: Stacks, namespace: str | None, context: str | None, manifests: Path | None) -> JobsPlace:
    """Where the objects are, by what is named; see `stacks`."""
    if manifests is not None:
        place, stack = JobsPlace(namespace, context, manifests), stacks.on(manifests)
        return replace(place, qdrant=stack.qdrant) if stack else place
    with ending_in_one_line():
        stack = None if context else stacks.meant("name one's folder with --manifests")
    if stack is None:
        return JobsPlace(namespace, context, None)
    return JobsPlace(namespace, None, stack.manifests, stack.qdrant, is_found=True)


def add_verb(cli: typer.Typer, name: str, options: type[T], run: Callable[[T, JobsPlace], None]) -> None:
    """Add a verb.

    Args:
        options: a dataclass whose fields are the verb's own options, and whose docstring is its help.
        run: gets them and the place, whose options every such verb has.
    """

    def command(
        *,
        ctx: typer.Context,
        namespace: Namespace = None,
        context: Context = None,
        manifests: Manifests = None,
        **chosen: Any,
    ) -> None:
        place = place_of(stacks_of(ctx), namespace, context, manifests)
        # The stack says where its Qdrant is.
        found = {"qdrant": place.qdrant} if place.qdrant and chosen.get("qdrant", "") is None else {}
        run(options(**chosen | found), place)

    take_options(command, options)
    cli.command(name, help=options.__doc__)(command)


def in_place(
    open_jobs: OpenJobs,
    place: JobsPlace,
    work: Callable[[JobObjects, str], Coroutine[Any, Any, T]],
    *,
    going_on: str = "",
) -> T:
    """What work makes of the objects of a place and a namespace.

    Args:
        going_on: said where Ctrl-C ends only the waiting.
    """

    async def opened() -> T:
        async with open_jobs(place.context, place.manifests) as (objects, default):
            return await work(objects, place.namespace or default)

    try:
        return run_verb(opened())
    except KeyboardInterrupt:
        typer.echo(going_on or "interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def new_object(kind: str, namespace: str, name: str, *, spec: Json) -> Json:
    """An object to be created."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def stamped(name: str) -> str:
    """A name that nothing has yet: with the second."""
    return f"{name}-{datetime.now(UTC).strftime('%Y%m%dt%H%M%Sz')}"


def tell(text: str, output: TableJsonOrYaml) -> None:
    """Print a sentence for people; programs read standard output alone."""
    typer.echo(text, err=output is not TableJsonOrYaml.TABLE)


def print_object(document: Json, output: TableJsonOrYaml) -> None:
    """Print an object for programs; for people nothing is left to say."""
    if output is not TableJsonOrYaml.TABLE:
        print_document(status_document(document) | {"spec": document["spec"]}, output)


async def create(objects: JobObjects, document: Json, output: TableJsonOrYaml, *, waits: bool) -> Json:
    """Create an object; return it as it is kept.

    Args:
        waits: until it has ended, as `follow` does.

    Raises:
        AgentMemoryError: there is one of its name; it was deleted at once; it failed.
    """
    if not await objects.create_object(document):
        raise AgentMemoryError(f"{titled(document)} exists already: choose another --name")
    tell(f"created {titled(document)}", output)
    document = await read_again(objects, document)
    return await follow(objects, document, output) if waits else document


async def follow(
    objects: JobObjects, document: Json, output: TableJsonOrYaml, *, until: Callable[[Json], bool] = lambda _: True
) -> Json:
    """The object once it has ended, showing meanwhile how far it is.

    Args:
        until: what has to hold besides.

    Raises:
        AgentMemoryError: it failed, or was deleted before it finished; says why.
    """
    kind, metadata = document["kind"], document["metadata"]
    with JobProgress(titled(document)) as progress:
        while (outcome := outcome_of(document)) is None or not until(document):
            progress.show(document)
            await asyncio.sleep(POLL_S)
            document = await read_again(objects, document)
        progress.show(document)
    if not outcome.is_good:
        raise AgentMemoryError(f"{kind} {metadata['namespace']}/{metadata['name']} {outcome.told}")
    tell(f"{titled(document)} {outcome.told}", output)
    return document


async def read_again(objects: JobObjects, document: Json, *, gone: str = "was deleted before it finished") -> Json:
    """An object as it now is; as it was while the API server is away.

    Args:
        gone: what is said of one that was deleted.

    Raises:
        AgentMemoryError: it was deleted.
    """
    kind, metadata = document["kind"], document["metadata"]
    try:
        return await objects.read_object(kind, metadata["namespace"], metadata["name"])
    except NotFound as exc:
        raise AgentMemoryError(f"{titled(document)} {gone}") from exc
    except TransientError:
        # It goes on, whether it can be seen or not.
        return document


def status_of(document: Json) -> Json:
    """An object's status, empty before there is one."""
    return document.get("status") or {}


def titled(document: Json) -> str:
    """An object's kind and name."""
    metadata = document["metadata"]
    return f"{document['kind']} {metadata['namespace']}/{metadata['name']}"
