"""`agentmemory snapshot delete`: delete a MemorySnapshot and its files wherever they are stored."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import POLL_S, JobsPlace, add_verb, run_in_place, title_of
from agentmemory_operator.entrypoints.cli.run import Yes, confirm
from agentmemory_operator.entrypoints.cli.snapshots.listing import describe_locations
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT
from agentmemory_operator.snapshots.rules.steps import FINALIZER, has_succeeded
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, Metadata

# Time in which a running operator should add the finalizer. Deleting the files of a copy may take longer.
FINALIZER_TIMEOUT_S, DELETION_TIMEOUT_S = 30.0, 330.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Delete a snapshot and its files on the server and in S3, regardless of its deletionPolicy."""

    name: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Name of the MemorySnapshot.")]
    yes: Yes = False


def add_delete(snapshots: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `delete` to the group `snapshot`."""
    add_verb(snapshots, "delete", DeleteOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: DeleteOptions, location: JobsPlace) -> None:
    found = run_in_place(open_jobs, location, partial(_find, options))
    locations = describe_locations(found.get("status") or {})
    confirm(f"Delete {title_of(found)} and its bytes ({locations})?", yes=options.yes)
    notice = "interrupted: the deletion may continue; `kubectl get msnap` shows whether the object is still there"
    run_in_place(open_jobs, location, partial(_delete, found), interrupt_message=notice)
    typer.echo(f"deleted {title_of(found)} and its bytes ({locations})")


async def _find(options: DeleteOptions, objects: JobObjects, namespace: str) -> Json:
    return await objects.read_object(MEMORY_SNAPSHOT, namespace, options.name)


async def _delete(found: Json, objects: JobObjects, _: str) -> None:
    metadata = Metadata.model_validate(found["metadata"])
    if has_succeeded(found.get("status") or {}):
        # Without the operator's finalizer, the object would be deleted without its files.
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
    """Wait until a condition holds for the object, which is None once it is deleted."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            document = await objects.read_object(MEMORY_SNAPSHOT, metadata.namespace, metadata.name)
        except NotFound:
            document = None
        if is_met(document):
            return
        if time.monotonic() > deadline_s:
            raise AgentMemoryError(f"{MEMORY_SNAPSHOT} {metadata.namespace}/{metadata.name} {otherwise}")
        await asyncio.sleep(POLL_S)
