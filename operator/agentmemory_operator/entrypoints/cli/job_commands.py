"""Shared parts of commands on objects: finding their cluster or folder, creating them, and waiting with progress."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_progress import JobProgress, read_outcome
from agentmemory_operator.entrypoints.cli.look.status_view import status_document
from agentmemory_operator.entrypoints.cli.options import (
    Context,
    Manifests,
    Namespace,
    TableJsonOrYaml,
    print_document,
    refuse_empty_values,
    take_options,
)
from agentmemory_operator.entrypoints.cli.run import exit_on_error, run_command
from agentmemory_operator.entrypoints.cli.stacks import Stacks, read_stacks
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.tasks import read_through_outage
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.naming import append_suffix

T = TypeVar("T")

POLL_S = 0.5
# Exit status after Ctrl-C, as of a shell: 128 + SIGINT.
INTERRUPTED = 130

Output = Annotated[TableJsonOrYaml, typer.Option("-o", "--output", help="Output format.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 if it failed.")]


@dataclass(frozen=True, slots=True)
class JobsLocation:
    """Cluster or folder that contains the objects of a command.

    Attributes:
        namespace: Namespace of the command line. None is the default of the cluster's context or of the folder.
        context: kubeconfig context; None is the current one.
        manifests: Folder that replaces a cluster; None for a cluster.
        qdrant: URL of the server that the stack on that folder uses for all connections; None if no stack runs on it.
        is_detected: True if the folder is that of a running stack, and no option names it.
    """

    namespace: str | None
    context: str | None
    manifests: Path | None
    qdrant: str | None = None
    is_detected: bool = False

    def __post_init__(self) -> None:
        if self.context and self.manifests:
            raise typer.BadParameter("--manifests replaces the cluster: omit --context")

    @property
    def options(self) -> str:
        """Options to append to a command so that it refers to the same objects, each after a space; may be empty."""
        folder = None if self.is_detected else self.manifests
        pairs = (("-n", self.namespace), ("--context", self.context), ("--manifests", folder))
        return "".join(f" {option} {value}" for option, value in pairs if value)


def find_jobs_location(
    stacks: Stacks, namespace: str | None, context: str | None, manifests: Path | None
) -> JobsLocation:
    """Return the folder or cluster that the options name, else the folder of the only running stack, else the cluster.

    Args:
        namespace, context, manifests: Values of the options; None for an option that is not given.

    Raises:
        typer.BadParameter: If both --manifests and --context are given.
        typer.Exit: If several stacks run and no option names one.
    """
    if manifests is not None:
        location, stack = JobsLocation(namespace, context, manifests), stacks.find_on(manifests)
        return replace(location, qdrant=stack.qdrant) if stack else location
    with exit_on_error():
        stack = None if context else stacks.find_default("name one's folder with --manifests")
    if stack is None:
        return JobsLocation(namespace, context, None)
    return JobsLocation(namespace, None, stack.manifests, stack.qdrant, is_detected=True)


def add_verb(cli: typer.Typer, name: str, options: type[T], run: Callable[[T, JobsLocation], None]) -> None:
    """Add a command that works on objects.

    Args:
        options: Dataclass with the options of the command as fields, and its help as docstring.
        run: Receives the options and the location. The options for the location are added to every such command.
    """

    def command(
        *,
        ctx: typer.Context,
        namespace: Namespace = None,
        context: Context = None,
        manifests: Manifests = None,
        **arguments: Any,
    ) -> None:
        refuse_empty_values(ctx)
        location = find_jobs_location(read_stacks(ctx), namespace, context, manifests)
        # Pass the URL of the running stack to a command with an option --qdrant, unless the option is given.
        found = {"qdrant": location.qdrant} if location.qdrant and arguments.get("qdrant", "") is None else {}
        run(options(**arguments | found), location)

    take_options(command, options)
    cli.command(name, help=options.__doc__)(command)


def run_on_jobs(
    open_jobs: OpenJobs,
    location: JobsLocation,
    operation: Callable[[JobObjects, str], Coroutine[Any, Any, T]],
    *,
    interrupt_message: str = "",
) -> T:
    """Run an operation on the objects of a location and a namespace; return its result.

    Args:
        operation: Receives the objects, and the namespace of the location or its default.
        interrupt_message: Message to print after Ctrl-C. Default: `interrupted`.

    Raises:
        typer.Exit: With status 1 after an error that `exit_on_error` converts, 130 after Ctrl-C. The message was
            printed.
    """

    async def opened() -> T:
        async with open_jobs(location.context, location.manifests) as (objects, default):
            return await operation(objects, location.namespace or default)

    try:
        return run_command(opened())
    except KeyboardInterrupt:
        typer.echo(interrupt_message or "interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def new_object(kind: str, namespace: str, name: str, *, spec: Json) -> Json:
    """Build the manifest of an object of this operator's API version."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def timestamped_name(name: str) -> str:
    """Append the current UTC time to a name, to the second. A name that would become too long is shortened."""
    return append_suffix(name, f"-{datetime.now(UTC):%Y%m%dt%H%M%Sz}")


def print_message(text: str, output: TableJsonOrYaml) -> None:
    """Print a message; to standard error if standard output is for programs."""
    typer.echo(text, err=output is not TableJsonOrYaml.TABLE)


def print_object(document: Json, output: TableJsonOrYaml) -> None:
    """Print spec, status and main metadata of an object as JSON or YAML; with table output, do nothing."""
    if output is not TableJsonOrYaml.TABLE:
        print_document(status_document(document) | {"spec": document["spec"]}, output)


async def create(objects: JobObjects, document: Json, output: TableJsonOrYaml, *, should_wait: bool) -> Json:
    """Create an object; return it as stored, or in its final state if `should_wait`.

    Args:
        should_wait: True to wait for its end, as `follow` does.

    Raises:
        AgentMemoryError: If the object cannot be created, its name is in use, or the new object fails or is deleted.
        TransientError: As in `reread`. The object was created.
    """
    if not await objects.create_object(document):
        raise AgentMemoryError(f"{title_of(document)} exists already: choose another --name")
    print_message(f"created {title_of(document)}", output)
    document = await reread(objects, document)
    return await follow(objects, document, output) if should_wait else document


async def follow(
    objects: JobObjects,
    document: Json,
    output: TableJsonOrYaml,
    *,
    is_complete: Callable[[Json], bool] = lambda _: True,
) -> Json:
    """Poll a job until it ends, showing its progress; return the final object.

    Args:
        is_complete: Returns whether an ended job meets an additional condition; by default there is none.

    Raises:
        AgentMemoryError: If it failed, its verification failed, or it was deleted before it ended.
        TransientError: As in `reread`.
    """
    kind, metadata = document["kind"], document["metadata"]
    with JobProgress(title_of(document)) as progress:
        while (outcome := read_outcome(document)) is None or not is_complete(document):
            progress.show(document)
            await asyncio.sleep(POLL_S)
            document = await reread(objects, document)
        progress.show(document)
    if not outcome.has_succeeded:
        raise AgentMemoryError(f"{kind} {metadata['namespace']}/{metadata['name']} {outcome.message}")
    print_message(f"{title_of(document)} {outcome.message}", output)
    return document


async def reread(
    objects: JobObjects, document: Json, *, deleted_message: str = "was deleted before it finished"
) -> Json:
    """Read an object again. While the API server is unavailable, print that once and retry, as `read_through_outage`.

    Args:
        deleted_message: Error message if the object was deleted.

    Raises:
        AgentMemoryError: If the object was deleted.
        TransientError: If the API server is unavailable for longer. The job of the object is not affected.
    """
    metadata = document["metadata"]
    read = partial(objects.read_object, document["kind"], metadata["namespace"], metadata["name"])
    try:
        return await read_through_outage(read, poll_s=POLL_S, report=partial(typer.echo, err=True))
    except NotFound as exc:
        raise AgentMemoryError(f"{title_of(document)} {deleted_message}") from exc


def status_of(document: Json) -> Json:
    """Return the status of an object; empty if it has none yet."""
    return document.get("status") or {}


def title_of(document: Json) -> str:
    """Render kind, namespace and name of an object."""
    metadata = document["metadata"]
    return f"{document['kind']} {metadata['namespace']}/{metadata['name']}"
