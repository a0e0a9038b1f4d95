"""`agentmemory restore`: restore the memories of an agent, and roll a restore back."""

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import (
    POLL_S,
    JobsLocation,
    Output,
    Wait,
    add_verb,
    create,
    new_object,
    print_message,
    print_object,
    reread,
    run_on_jobs,
    timestamped_name,
    title_of,
)
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.restores.restore_all import CONCURRENCY, RestoreAll, RestoredAgent
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
)
from agentmemory_operator.spec.kinds.agent_memory import ROLLBACK, Metadata
from agentmemory_operator.spec.times import render_time

UNCHANGED_RESULT_S = 10.0


class Mode(StrEnum):
    """Modes of a restore, as in `spec.mode` of a MemoryRestore.

    Swap restores into a new collection and then moves the alias. InPlace overwrites the existing collection.
    """

    SWAP = "Swap"
    IN_PLACE = "InPlace"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Restore an agent from a snapshot, roll back its last restore, or restore all lost agents with --all."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory; omitted with --all.")] = ""
    snapshot: Annotated[str | None, typer.Option("--from", help="MemorySnapshot to restore.")] = None
    into: Annotated[str | None, typer.Option(help="Restore into this other AgentMemory, as a clone.")] = None
    mode: Annotated[Mode | None, typer.Option(help="How to replace the memories. Default: Swap.")] = None
    restore_name: Annotated[str | None, typer.Option("--name", help="Name of the MemoryRestore.")] = None
    all: Annotated[bool, typer.Option("--all", help="All agents of --connection that lost their collection.")] = False
    connection: Annotated[str | None, typer.Option(help="QdrantConnection of the agents; only with --all.")] = None
    latest_verified: Annotated[
        bool,
        typer.Option(
            "--latest-verified", help="Restore each agent from its latest verified snapshot; only with --all."
        ),
    ] = False
    at_once: Annotated[
        int | None,
        typer.Option(min=1, max=64, help=f"Maximum restores at once; only with --all. Default: {CONCURRENCY}."),
    ] = None
    rollback: Annotated[bool, typer.Option("--rollback", help="Roll back the last restore into the AgentMemory.")] = (
        False
    )
    wait: Wait = False
    output: Output = TableJsonOrYaml.TABLE

    @property
    def target(self) -> str:
        """Name of the AgentMemory that the snapshot is restored into."""
        return self.into or self.name

    def document(self, namespace: str) -> Json:
        """Build the MemoryRestore manifest from the options."""
        mode = {"mode": str(self.mode)} if self.mode else {}
        spec = {"target": {"name": self.target}, "source": {"snapshotRef": {"name": self.snapshot}}} | mode
        return new_object(MEMORY_RESTORE, namespace, self.restore_name or timestamped_name(self.target), spec=spec)


def add_restore(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `restore` to a command line."""
    add_verb(cli, "restore", RestoreOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: RestoreOptions, location: JobsLocation) -> None:
    if options.all:
        excluded = (options.name, options.snapshot, options.into, options.mode, options.restore_name, options.rollback)
        has_output = options.output is not TableJsonOrYaml.TABLE
        if any(excluded) or has_output or options.connection is None or not options.latest_verified:
            raise typer.BadParameter(
                "--all takes --connection NAME and --latest-verified, and no AgentMemory, --from, --rollback or -o"
            )
        run_on_jobs(
            open_jobs, location, partial(_restore_all, options), interrupt_message="run the command again to continue"
        )
        return
    if not options.name or options.connection or options.latest_verified or options.at_once is not None:
        raise typer.BadParameter("give an AgentMemory, or --all --connection NAME --latest-verified [--at-once N]")
    if options.rollback:
        if any((options.snapshot, options.into, options.mode, options.restore_name)):
            raise typer.BadParameter("--rollback cannot be combined with --from and its options: remove them")
        print_object(run_on_jobs(open_jobs, location, partial(_roll_back, options)), options.output)
        return
    if options.snapshot is None:
        raise typer.BadParameter(
            f"give --from SNAPSHOT (`{called_as()} snapshot list {options.name}` shows them), or --rollback"
        )
    notice = "the restore continues; see `kubectl get mrest`. Use --rollback once it is done"
    document = run_on_jobs(open_jobs, location, partial(_restore, options), interrupt_message=notice)
    print_object(document, options.output)


async def _restore_all(options: RestoreOptions, objects: JobObjects, namespace: str) -> None:
    done: list[RestoredAgent] = []

    def show(result: RestoredAgent) -> None:
        done.append(result)
        outcome = "restored" if result.is_restored else "NOT restored"
        typer.echo(f"{len(done)} of {len(agents)}: {result.agent} {outcome}: {result.message}")

    connection = Key(QDRANT_CONNECTION, namespace, options.connection or "")
    restore_all = RestoreAll(
        objects=objects, connection=connection, report=show, concurrency=options.at_once or CONCURRENCY, poll_s=POLL_S
    )
    agents = await restore_all.find()
    typer.echo(f"{len(agents)} agents of {connection} have lost their collections; others are not changed")
    await restore_all.run(agents)
    if failed := [result.agent for result in done if not result.is_restored]:
        raise AgentMemoryError(f"{len(failed)} of {len(agents)} agents were not restored: {', '.join(sorted(failed))}")


async def _restore(options: RestoreOptions, objects: JobObjects, namespace: str) -> Json:
    source = await objects.read_object(MEMORY_SNAPSHOT, namespace, options.snapshot or "")
    await objects.read_object(AGENT_MEMORY, namespace, options.target)
    owner = source["spec"]["agentMemoryRef"]["name"]
    if owner != options.name:
        raise AgentMemoryError(
            f"{title_of(source)} is of {owner}, not of {options.name}: choose one of `{called_as()} snapshot list "
            f"{options.name}`, or to clone it run `{called_as()} restore {owner} --from {options.snapshot} --into "
            f"{options.target}`"
        )
    return await create(objects, options.document(namespace), options.output, should_wait=options.wait)


async def _roll_back(options: RestoreOptions, objects: JobObjects, namespace: str) -> Json:
    found = find_last_restore(await objects.list_in(MEMORY_RESTORE, namespace), options.name)
    if found is None:
        raise AgentMemoryError(
            f"no restore into {namespace}/{options.name} can be rolled back: none has succeeded, or the collection that"
            f" it replaced has been removed; restore a snapshot instead"
        )
    metadata = Metadata.model_validate(found["metadata"])
    await objects.annotate(MEMORY_RESTORE, metadata, {ROLLBACK: render_time(SystemClock().now_ms())})
    print_message(f"requested the rollback of {title_of(found)}", options.output)
    return await _wait_rolled_back(options, objects, found) if options.wait else found


async def _wait_rolled_back(options: RestoreOptions, objects: JobObjects, before: Json) -> Json:
    started_s = time.monotonic()
    while True:
        current = await reread(objects, before)
        condition = rollback_condition(current)
        # Accept an unchanged result only after a while, because it may be that of an earlier request.
        if condition and (condition != rollback_condition(before) or time.monotonic() - started_s > UNCHANGED_RESULT_S):
            break
        await asyncio.sleep(POLL_S)
    if condition["status"] != "True":
        raise AgentMemoryError(f"it was not rolled back ({condition['reason']}): {condition['message']}")
    print_message(condition["message"], options.output)
    return current


def find_last_restore(documents: list[Json], target: str) -> Json | None:
    """Return the most recent restore into an AgentMemory that can be rolled back, or None."""
    candidates = [found for found in documents if found["spec"]["target"]["name"] == target and _can_roll_back(found)]
    return max(candidates, key=lambda found: str(found["status"].get("endTime", "")), default=None)


def _can_roll_back(document: Json) -> bool:
    status = document.get("status") or {}
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or []}
    previous = status.get("previousCollection") or {}
    is_replaced = bool(previous.get("physical")) and "removedTime" not in previous
    # Look for a safety snapshot too, which contains the former content after a restore in place.
    has_former_content = is_replaced or bool((status.get("safetySnapshot") or {}).get("name"))
    return conditions.get("Succeeded") == "True" and conditions.get("RolledBack") != "True" and has_former_content


def rollback_condition(document: Json) -> Json | None:
    """Return the condition RolledBack, which gives the result of a rollback, or None if no rollback has ended."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == "RolledBack"), None)
