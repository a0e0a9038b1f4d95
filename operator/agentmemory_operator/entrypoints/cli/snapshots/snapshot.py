"""`agentmemory snapshot`: create, list, verify and delete snapshots of an agent."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.connections.resolve import connection_of
from agentmemory_operator.controllers.rules.status_words import describe_locations
from agentmemory_operator.entrypoints.cli.composition import OpenJobs, SnapshotAccess
from agentmemory_operator.entrypoints.cli.job_commands import (
    POLL_S,
    JobsLocation,
    Output,
    Wait,
    add_verb,
    create,
    follow,
    new_object,
    print_message,
    print_object,
    run_on_jobs,
    status_of,
    timestamped_name,
    title_of,
)
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml, print_document
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.run import Yes, confirm
from agentmemory_operator.entrypoints.cli.snapshots.download import add_download
from agentmemory_operator.entrypoints.cli.snapshots.listing import (
    SnapshotList,
    snapshot_sections,
    snapshots_document,
)
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.errors import AgentMemoryError, NotFound, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT
from agentmemory_operator.runtime.tasks import read_through_outage
from agentmemory_operator.snapshots.rules.retention_verdicts import judge_documents
from agentmemory_operator.snapshots.rules.steps import FINALIZER, has_succeeded
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, VERIFY_REQUESTED_AT, AgentMemory, Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.times import render_time

# Seconds for which a deletion waits until the operator has added the finalizer, and until object and files are deleted.
FINALIZER_TIMEOUT_S, DELETION_TIMEOUT_S = 30.0, 330.0

Name = Annotated[str, typer.Argument(help="Name of the AgentMemory.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Delete a snapshot and its files on the server and in S3, regardless of its deletionPolicy."""

    name: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Name of the MemorySnapshot.")]
    yes: Yes = False


def add_delete(snapshots: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `delete` to the group `snapshot`."""
    add_verb(snapshots, "delete", DeleteOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: DeleteOptions, location: JobsLocation) -> None:
    found = run_on_jobs(open_jobs, location, partial(_find, options))
    locations = describe_locations(found.get("status") or {})
    confirm(f"Delete {title_of(found)} and its bytes ({locations})?", yes=options.yes)
    notice = "interrupted: the deletion may continue; `kubectl get msnap` shows whether the object is still there"
    run_on_jobs(open_jobs, location, partial(_delete, found), interrupt_message=notice)
    typer.echo(f"deleted {title_of(found)} and its bytes ({locations})")


async def _find(options: DeleteOptions, objects: JobObjects, namespace: str) -> Json:
    return await objects.read_object(MEMORY_SNAPSHOT, namespace, options.name)


async def _delete(found: Json, objects: JobObjects, _: str) -> None:
    metadata = Metadata.model_validate(found["metadata"])
    if has_succeeded(found.get("status") or {}):
        # Confirm, and wait for the operator's finalizer: without it the object would be deleted without its files.
        await objects.annotate(MEMORY_SNAPSHOT, metadata, {CONFIRM_DELETE: metadata.name})
        await _until(
            lambda now: now is None or FINALIZER in (now["metadata"].get("finalizers") or ()),
            objects,
            metadata,
            within_s=FINALIZER_TIMEOUT_S,
            otherwise="was not deleted: no operator acted on it. Is one running, and does it watch this namespace?",
        )
    await objects.delete_object(MEMORY_SNAPSHOT, metadata)
    await _until(
        lambda now: now is None or now["metadata"].get("uid") != metadata.uid,
        objects,
        metadata,
        within_s=DELETION_TIMEOUT_S,
        otherwise="is still being deleted: see its events",
    )


async def _until(
    is_met: Callable[[Json | None], bool], objects: JobObjects, metadata: Metadata, *, within_s: float, otherwise: str
) -> None:
    """Wait until a condition holds for the object, which is None once it is deleted.

    Raises:
        AgentMemoryError: If the condition does not hold within `within_s` seconds. The message ends with `otherwise`.
        TransientError: As in `job_commands.py: reread`.
    """
    deadline_s = time.monotonic() + within_s
    read = partial(objects.read_object, MEMORY_SNAPSHOT, metadata.namespace, metadata.name)
    while True:
        try:
            document = await read_through_outage(read, poll_s=POLL_S, report=partial(typer.echo, err=True))
        except NotFound:
            document = None
        if is_met(document):
            return
        if time.monotonic() > deadline_s:
            raise AgentMemoryError(f"{MEMORY_SNAPSHOT} {metadata.namespace}/{metadata.name} {otherwise}")
        await asyncio.sleep(POLL_S)


class Verify(StrEnum):
    """Verification levels: `Full` restores and compares, `Checksum` reads the bytes, `None` trusts the server."""

    FULL = "Full"
    CHECKSUM = "Checksum"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """Create a snapshot of an agent now."""

    name: Name
    snapshot_name: Annotated[str | None, typer.Option("--name", help="Name of the MemorySnapshot.")] = None
    verify: Annotated[Verify | None, typer.Option(help="Verification. Default: Full.")] = None
    wait: Wait = False
    output: Output = TableJsonOrYaml.TABLE

    def document(self, namespace: str) -> Json:
        """Build the MemorySnapshot manifest from the options."""
        spec = {"agentMemoryRef": {"name": self.name}} | ({"verify": str(self.verify)} if self.verify else {})
        return new_object(MEMORY_SNAPSHOT, namespace, self.snapshot_name or timestamped_name(self.name), spec=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """List an agent's snapshots, newest first."""

    name: Name
    output: Output = TableJsonOrYaml.TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Verify an existing snapshot again."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory.")]
    snapshot: Annotated[str, typer.Argument(help="Name of the MemorySnapshot.")]
    wait: Wait = False
    output: Output = TableJsonOrYaml.TABLE


def add_snapshots(cli: typer.Typer, open_jobs: OpenJobs, downloads: SnapshotAccess) -> None:
    """Add the group `snapshot` with its commands to a command line."""
    snapshots = typer.Typer(no_args_is_help=True, help="Create, list, verify, download and delete snapshots.")
    add_verb(snapshots, "create", CreateOptions, partial(_create, open_jobs))
    add_verb(snapshots, "list", ListOptions, partial(_list, open_jobs))
    add_verb(snapshots, "verify", VerifyOptions, partial(_verify, open_jobs))
    add_download(snapshots, open_jobs, downloads)
    add_delete(snapshots, open_jobs)
    cli.add_typer(snapshots, name="snapshot")


def _create(open_jobs: OpenJobs, options: CreateOptions, location: JobsLocation) -> None:
    async def work(objects: JobObjects, namespace: str) -> Json:
        # Read the agent, to report a mistyped name immediately: the operator would wait for a missing agent.
        await objects.read_object(AGENT_MEMORY, namespace, options.name)
        return await create(objects, options.document(namespace), options.output, should_wait=options.wait)

    list_hint = f"`{called_as()} snapshot list {options.name}{location.options}` shows it"
    document = run_on_jobs(open_jobs, location, work, interrupt_message=f"the snapshot continues; {list_hint}")
    if not options.wait:
        print_message(list_hint, options.output)
    print_object(document, options.output)


def _list(open_jobs: OpenJobs, options: ListOptions, location: JobsLocation) -> None:
    listed = run_on_jobs(open_jobs, location, partial(_listed, options))
    if options.output is TableJsonOrYaml.TABLE:
        show(snapshot_sections(listed), Console())
    else:
        print_document(snapshots_document(listed), options.output)


async def _listed(options: ListOptions, objects: JobObjects, namespace: str) -> SnapshotList:
    found = await objects.list_in(MEMORY_SNAPSHOT, namespace)
    snapshots = [snapshot for snapshot in found if snapshot["spec"]["agentMemoryRef"]["name"] == options.name]
    try:
        memory = parse_agent_memory(await objects.read_object(AGENT_MEMORY, namespace, options.name))
    except NotFound:
        # Return no verdicts without the agent, which snapshots outlive: no retention rule removes them then.
        return SnapshotList(snapshots, {})
    verdicts = judge_documents(
        memory,
        snapshots,
        restores=await objects.list_in(MEMORY_RESTORE, namespace),
        memories=await objects.list_in(AGENT_MEMORY, namespace),
        running=await _running(objects, memory),
        now_ms=SystemClock().now_ms(),
    )
    return SnapshotList(snapshots, verdicts)


async def _running(objects: JobObjects, memory: AgentMemory) -> str | None:
    """Return the Qdrant version in the status of the agent's connection; None without one, or if it is not readable."""
    connection = connection_of(memory)
    try:
        document = await objects.read_object(connection.kind, connection.namespace, connection.name)
    except (NotFound, TransientError):
        return None
    version: str | None = (document.get("status") or {}).get("version")
    return version


def _verify(open_jobs: OpenJobs, options: VerifyOptions, location: JobsLocation) -> None:
    async def work(objects: JobObjects, namespace: str) -> Json:
        document = await objects.read_object(MEMORY_SNAPSHOT, namespace, options.snapshot)
        _check_verifiable(document, options.name)
        request = render_time(SystemClock().now_ms())
        metadata = Metadata.model_validate(document["metadata"])
        await objects.annotate(MEMORY_SNAPSHOT, metadata, {VERIFY_REQUESTED_AT: request})
        print_message(f"verification of {title_of(document)} requested", options.output)
        if not options.wait:
            return document
        return await follow(
            objects, document, options.output, is_complete=lambda now: status_of(now).get("verifyRequest") == request
        )

    result_hint = f"`{called_as()} snapshot list {options.name}{location.options}` shows the result"
    document = run_on_jobs(open_jobs, location, work, interrupt_message=f"the verification continues; {result_hint}")
    if not options.wait:
        print_message(result_hint, options.output)
    print_object(document, options.output)


def _check_verifiable(document: Json, name: str) -> None:
    owner = document["spec"]["agentMemoryRef"]["name"]
    if owner != name:
        raise AgentMemoryError(f"{title_of(document)} is of {owner}, not of {name}")
    if not has_succeeded(status_of(document)):
        raise AgentMemoryError(f"{title_of(document)} was not taken: see its conditions")
