"""`agentmemory rebuild`: show the progress of a rebuild, or pause, resume, cancel or roll it back."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildStep
from agentmemory_operator.controllers.rules.status_words import headline
from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.decide.rebuild_view import (
    ReportedRebuild,
    read_rebuild,
    rebuild_document,
    rebuild_sections,
)
from agentmemory_operator.entrypoints.cli.job_commands import (
    POLL_S,
    JobsLocation,
    Output,
    add_verb,
    print_message,
    reread,
    run_on_jobs,
    title_of,
)
from agentmemory_operator.entrypoints.cli.job_progress import JobProgress
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml, print_document
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.run import Yes, confirm
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.spec.kinds.agent_memory import CANCEL_REBUILD, PAUSE_REBUILD, ROLLBACK_REBUILD, Metadata
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState
from agentmemory_operator.spec.times import render_time

# Time in which a running operator should start a requested action, in seconds.
START_TIMEOUT_S = 30.0
DELETED_MESSAGE = "was deleted; its rebuild's target collection is removed too"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """Show a rebuild's progress, or watch, pause, resume, cancel or roll it back."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory.")]
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress until the end; exit 1 if it failed.")] = (
        False
    )
    pause: Annotated[
        bool, typer.Option("--pause", help="Pause the rebuild; the source collection continues to serve.")
    ] = False
    resume: Annotated[bool, typer.Option("--resume", help="Resume a paused rebuild.")] = False
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the rebuild and remove the target collection.")] = (
        False
    )
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Switch back to the previous collection, with all writes since then.")
    ] = False
    yes: Yes = False
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Request the rollback without waiting for its end.")] = (
        False
    )
    output: Output = TableJsonOrYaml.TABLE

    @property
    def actions(self) -> list[str]:
        """Requested actions other than showing the progress."""
        return [name for name in ("pause", "resume", "cancel", "rollback") if getattr(self, name)]


def add_rebuild(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `rebuild` to a command line."""
    add_verb(cli, "rebuild", RebuildOptions, partial(_run, open_jobs))


def _run(open_jobs: OpenJobs, options: RebuildOptions, location: JobsLocation) -> None:
    if len(options.actions) > 1:
        raise typer.BadParameter(f"give one of {', '.join(f'--{name}' for name in options.actions)}")
    notice = f"the rebuild continues; `{called_as()} rebuild {options.name}{location.options}` shows it"
    if options.rollback:
        _confirm(run_on_jobs(open_jobs, location, partial(_describe_rollback, options)), options)
    document = run_on_jobs(open_jobs, location, partial(_act, options), interrupt_message=notice)
    _print(document, options, location)


def _print(document: Json, options: RebuildOptions, location: JobsLocation) -> None:
    now_ms = SystemClock().now_ms()
    if options.output is not TableJsonOrYaml.TABLE:
        print_document(rebuild_document(document, now_ms=now_ms), options.output)
    elif not options.actions:
        show(rebuild_sections(document, now_ms=now_ms, options=location.options), Console())


def _confirm(effect: str, options: RebuildOptions) -> None:
    """Print the effect of a rollback, and ask for confirmation unless --yes is given."""
    if options.yes:
        print_message(effect, options.output)
    confirm(f"{effect} Continue?", yes=options.yes, err=options.output is not TableJsonOrYaml.TABLE)


async def _read(options: RebuildOptions, objects: JobObjects, namespace: str) -> Json:
    return await objects.read_object(AGENT_MEMORY, namespace, options.name)


async def _describe_rollback(options: RebuildOptions, objects: JobObjects, namespace: str) -> str:
    """Describe the effect of a rollback.

    Raises:
        AgentMemoryError: If the rebuild cannot be rolled back.
    """
    document = await _read(options, objects, namespace)
    rebuild = read_rebuild(document)
    _check_rollback(document, rebuild)
    return (
        f"{title_of(document)}: {rebuild.previous} becomes live again instead of {rebuild.live}, with everything"
        f" written since then. Searches and writes continue."
    )


def _check_rollback(document: Json, rebuild: ReportedRebuild) -> None:
    name, end_ms = title_of(document), rebuild.retention_end_ms
    if rebuild.is_in_progress:
        raise AgentMemoryError(
            f"{name}: a {rebuild.status.get('kind', 'rebuild')} is in progress: --cancel stops it before the switch"
        )
    if rebuild.status.get("kind") == RebuildKind.ROLLBACK and rebuild.live:
        raise AgentMemoryError(
            f"{name} is already rolled back: {rebuild.live} is live. Approve the pending plan to go forward again"
        )
    if rebuild.previous is None:
        raise AgentMemoryError(f"{name} has no previous collection: no rebuild has completed, or it is no longer kept")
    if end_ms is not None and end_ms < SystemClock().now_ms():
        raise AgentMemoryError(
            f"{name}: {rebuild.previous} was kept until {render_time(end_ms)} (spec.keepPreviousHours). Restore a"
            f" snapshot instead: {called_as()} restore {document['metadata']['name']} --from SNAPSHOT"
        )


async def _act(options: RebuildOptions, objects: JobObjects, namespace: str) -> Json:
    document = await _read(options, objects, namespace)
    if not options.actions:
        return await _follow(objects, document, options) if _is_watched(options, document) else document
    annotations, message = _ACTIONS[options.actions[0]](document, read_rebuild(document))
    await objects.annotate(AGENT_MEMORY, Metadata.model_validate(document["metadata"]), annotations)
    print_message(f"{title_of(document)}: {message}", options.output)
    if options.watch or (options.rollback and not options.no_wait):
        return await _follow(objects, document, options)
    return await _read(options, objects, namespace)


def _is_watched(options: RebuildOptions, document: Json) -> bool:
    """Return whether --watch is given and a rebuild is in progress or planned."""
    rebuild = read_rebuild(document)
    return options.watch and (rebuild.is_in_progress or rebuild.planned_digest is not None)


Action = Callable[[Json, ReportedRebuild], tuple[Mapping[str, str | None], str]]
"""Returns the annotations to set (None removes one), and the message to print."""


def _pause(document: Json, rebuild: ReportedRebuild) -> tuple[Mapping[str, str | None], str]:
    _check_before_move(document, rebuild, "paused")
    message = f"pause requested; {rebuild.status['source']} keeps serving, --resume continues"
    return {PAUSE_REBUILD: render_time(SystemClock().now_ms())}, message


def _resume(document: Json, rebuild: ReportedRebuild) -> tuple[Mapping[str, str | None], str]:
    if PAUSE_REBUILD not in rebuild.annotations:
        raise AgentMemoryError(f"{title_of(document)} is not paused: it has no annotation {PAUSE_REBUILD}")
    return {PAUSE_REBUILD: None}, "goes on"


def _cancel(document: Json, rebuild: ReportedRebuild) -> tuple[Mapping[str, str | None], str]:
    _check_before_move(document, rebuild, "cancelled")
    status = rebuild.status
    message = (
        f"cancellation of plan {status['digest']} requested: {status['target']} is removed, {status['source']} keeps"
        f" serving"
    )
    return {CANCEL_REBUILD: status["digest"], PAUSE_REBUILD: None}, message


def _roll_back(document: Json, rebuild: ReportedRebuild) -> tuple[Mapping[str, str | None], str]:
    _check_rollback(document, rebuild)
    return {ROLLBACK_REBUILD: rebuild.live}, f"rollback to {rebuild.previous} requested"


_ACTIONS: Mapping[str, Action] = {"pause": _pause, "resume": _resume, "cancel": _cancel, "rollback": _roll_back}


def _check_before_move(document: Json, rebuild: ReportedRebuild, done: str) -> None:
    name = title_of(document)
    if not rebuild.is_in_progress:
        raise AgentMemoryError(f"{name}: no rebuild in progress that can be {done}")
    if not rebuild.status.keys() >= {"digest", "source", "target"}:
        raise AgentMemoryError(
            f"{name}: its rebuild has not started yet: {rebuild.status.get('message', 'it is queued')}"
        )
    if rebuild.is_moved:
        raise AgentMemoryError(
            f"{name}: the alias already points to {rebuild.status['target']}; the remaining steps cannot be {done} and "
            f"complete automatically. Use --rollback afterwards"
        )


async def _follow(objects: JobObjects, before: Json, options: RebuildOptions) -> Json:
    """Poll the object until its rebuild ends, showing the progress; return the final object.

    Raises:
        AgentMemoryError: If the rebuild did not start or did not end in the expected state (Stopped after --cancel,
            else Done), or the object was deleted.
        TransientError: As in `reread`. The rebuild continues.
    """
    started_s, document, initial = time.monotonic(), before, read_rebuild(before)
    with JobProgress(title_of(before)) as progress:
        while not _has_ended(now := read_rebuild(document), initial):
            is_overdue = time.monotonic() - started_s > START_TIMEOUT_S
            if not now.is_in_progress and (is_overdue if options.actions else now.planned_digest is None):
                raise AgentMemoryError(f"{title_of(document)}: no rebuild has started: is an operator running?")
            progress.advance(_line(document), *_bar(now))
            await asyncio.sleep(POLL_S)
            document = await reread(objects, document, deleted_message=DELETED_MESSAGE)
    summary = f"{title_of(document)}: {now.status.get('kind')} {headline(now.status)}: {now.status.get('message', '')}"
    if now.status.get("state") != (RebuildState.STOPPED if options.cancel else RebuildState.DONE):
        raise AgentMemoryError(summary)
    print_message(summary, options.output)
    return document


def _has_ended(now: ReportedRebuild, initial: ReportedRebuild) -> bool:
    """Return whether the followed rebuild has ended. A rebuild that had already ended in `initial` does not count."""
    is_new = now.status.get("startTime") != initial.status.get("startTime")
    return bool(now.status) and not now.is_in_progress and (is_new or initial.is_in_progress)


def _line(document: Json) -> str:
    """Describe the progress in one line."""
    rebuild, status = read_rebuild(document), read_rebuild(document).status
    if not rebuild.is_in_progress:
        return (
            f"plan {rebuild.planned_digest} is waiting for approval: {_pending_reason(document)}"
            if rebuild.is_withheld
            else "waits for the operator"
        )
    text = headline(status)
    if status.get("step") == RebuildStep.COPY and status.get("total"):
        text += f": {status.get('copied', 0):,} of {status['total']:,} points"
    return f"{text}: {status['message']}" if status.get("message") else text


def _pending_reason(document: Json) -> str:
    status = document.get("status") or {}
    found: Json = next((item for item in status.get("conditions") or [] if item["type"] == "InSync"), {})
    return str(found.get("reason", "AwaitingApproval"))


def _bar(rebuild: ReportedRebuild) -> tuple[int, int]:
    status = rebuild.status
    is_copying = status.get("step") == RebuildStep.COPY
    return (status.get("copied") or 0, status.get("total") or 0) if is_copying else (0, 0)
