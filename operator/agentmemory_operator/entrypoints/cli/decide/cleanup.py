"""`agentmemory cleanup`: preview the removals of a cleanup with their reasons, or request a cleanup."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.agents.directory import open_collection
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.entrypoints.cli.endpoints import memory_endpoint, read_memory
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, add_verb, run_on_jobs
from agentmemory_operator.entrypoints.cli.options import Output, QdrantUrl, TableOrJson, print_json
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.run import Yes, confirm
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.rules.cleanup_rules import (
    RemovalReason,
    Row,
    build_rules,
    count_limited,
    removal_allowance,
)
from agentmemory_operator.lifecycle.rules.cleanup_status import render_counts
from agentmemory_operator.memories.rules.filters import STORED_FILTER
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import CLEANUP_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.times import render_time

COLUMNS = ("ID", "USER", "TYPE", "CREATED", "REASON")
MAX_LISTED_REMOVALS = 100


@dataclass(frozen=True, slots=True)
class CleanupDraft:
    """Preview of a cleanup.

    Attributes:
        memories: Number of memories of the agent.
        removals: Each memory to remove, with the reason.
        allowed: Number of memories that one run may remove without approval (see `count_limited`).
    """

    memories: int
    removals: tuple[tuple[Row, RemovalReason], ...]
    allowed: int

    @property
    def counts(self) -> Counter[RemovalReason]:
        """Number of removals by reason."""
        return Counter(reason for _, reason in self.removals)

    @property
    def is_withheld(self) -> bool:
        """True if the removals that count towards the limit of one run exceed it. Then the run waits for approval."""
        return count_limited(self.counts) > self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOptions:
    """Request a cleanup now; with --dry-run, list what it would remove and why."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory.")]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed and why; change nothing.")] = (
        False
    )
    yes: Yes = False
    qdrant: QdrantUrl = None
    output: Output = TableOrJson.TABLE


def add_cleanup(cli: typer.Typer, inspection: QdrantAccess) -> None:
    """Add `cleanup` to a command line."""
    add_verb(cli, "cleanup", CleanupOptions, partial(_run, inspection))


def _run(inspection: QdrantAccess, options: CleanupOptions, location: JobsLocation) -> None:
    if not options.dry_run:
        question = f"Run a cleanup of {options.name} now? Removed memories cannot be recovered; --dry-run lists them."
        confirm(question, yes=options.yes)
        run_on_jobs(inspection.open_objects, location, partial(_ask, options.name))
        status_command = f"`{called_as()} status {options.name}{location.options}`"
        typer.echo(f"cleanup requested; see {status_command} for the result")
        return
    is_folder = location.manifests is not None
    draft = run_on_jobs(inspection.open_objects, location, partial(_draft, inspection, options, is_folder))
    if options.output is TableOrJson.JSON:
        print_json(draft_document(draft))
    else:
        show(draft_sections(draft), Console())


async def _ask(name: str, objects: JobObjects, namespace: str) -> None:
    memory = await read_memory(objects, name, namespace)
    annotation = {CLEANUP_REQUESTED_AT: render_time(SystemClock().now_ms())}
    await objects.annotate(AGENT_MEMORY, memory.metadata, annotation)


async def _draft(
    inspection: QdrantAccess, options: CleanupOptions, is_folder: bool, objects: JobObjects, namespace: str
) -> CleanupDraft:
    memory = await read_memory(objects, options.name, namespace)
    endpoint = await memory_endpoint(inspection, objects, memory, at=options.qdrant, is_folder=is_folder)
    cluster_id = await objects.cluster_id()
    async with inspection.open_points(endpoint) as store:
        return await preview_cleanup(memory, store, cluster_id)


async def preview_cleanup(memory: AgentMemory, store: PointStore, cluster_id: str) -> CleanupDraft:
    """Return the memories that a cleanup would remove now. Only reads.

    Args:
        store: Client for the points of the server with the agent's collection.
        cluster_id: Cluster id that the collection's ownership marker must contain.

    Raises:
        TransientError, StoreRejected: As in `open_collection`.
    """

    async def known() -> str:
        return cluster_id

    settings, clock = effective_settings(memory), SystemClock()
    embedder = CallerVectors(settings.embedding.dimensions)
    agent = await open_collection(store, settings, embedder, clock, cluster_id=known)
    rules = build_rules(settings.lifecycle, settings.ranking, clock.now_ms())
    cleanup = Cleanup(clock)
    total = await store.count(settings.alias, STORED_FILTER)
    removals = tuple([entry async for entry in cleanup.preview(agent, rules)])
    return CleanupDraft(total, removals, removal_allowance(total, settings.lifecycle))


def draft_document(draft: CleanupDraft) -> dict[str, Any]:
    """Render a preview as JSON, with all removals."""
    return {
        "memories": draft.memories,
        "would_remove": len(draft.removals),
        "reasons": {str(reason): number for reason, number in sorted(draft.counts.items())},
        "held": draft.is_withheld,
        "removals": [
            dict(zip(("id", "user_id", "type", "created_at", "reason"), row, strict=True)) for row in _rows(draft)
        ],
    }


def draft_sections(draft: CleanupDraft) -> Sequence[Section]:
    """Render a preview as a table of at most 100 removals."""
    rows = tuple(_rows(draft))
    heading = f"{len(rows)} of {draft.memories} memories would be removed" + (
        f": {render_counts(draft.counts)}" if rows else ""
    )
    notes = (
        [f"and {len(rows) - MAX_LISTED_REMOVALS} more; -o json lists all"] if len(rows) > MAX_LISTED_REMOVALS else []
    )
    if draft.is_withheld:
        notes.append(f"More than the limit of {draft.allowed} per run: it would wait for approval.")
    notes.append("Nothing was changed.")
    columns = COLUMNS if rows else ()
    mood = "busy" if draft.is_withheld else ""
    return [Section(heading, mood, columns=columns, rows=rows[:MAX_LISTED_REMOVALS], notes=tuple(notes))]


def _rows(draft: CleanupDraft) -> list[tuple[str, ...]]:
    return [
        (row["id"], row["userId"], row["type"], render_time(row["createdAt"]), str(reason))
        for row, reason in draft.removals
    ]
