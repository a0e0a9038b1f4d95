"""`agentmemory consolidate`: request a consolidation, undo a run, approve or reject its proposals."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.agents.directory import open_collection
from agentmemory_operator.consolidation.rules.proposals import Proposal
from agentmemory_operator.consolidation.rules.status import (
    LAST_FIELD,
    Action,
    is_run_id,
    render_counts,
    request_annotation,
)
from agentmemory_operator.consolidation.undo import read_proposals
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.entrypoints.cli.endpoints import memory_endpoint, read_memory
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, add_verb, reread, run_on_jobs
from agentmemory_operator.entrypoints.cli.options import Output, QdrantUrl, TableOrJson, print_json
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.run import Yes, confirm
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.spec.effective.consolidation import effective_model
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import CONSOLIDATION_REQUESTED
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.times import render_time

COLUMNS = ("RUN", "USER", "FACT", "NOT IN ITS SOURCES", "SOURCES")
POLL_S = 0.5
FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationOptions:
    """Request a consolidation now, undo a run, or approve or reject its proposals."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory.")]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Call the model and count the results; change nothing.")
    ] = False
    undo: Annotated[str | None, typer.Option("--undo", metavar="RUN", help="Id of the run to undo.")] = None
    proposals: Annotated[
        bool, typer.Option("--proposals", help="List the facts that wait for approval, with their content.")
    ] = False
    approve: Annotated[str | None, typer.Option("--approve", metavar="RUN", help="Store a run's proposed facts.")] = (
        None
    )
    reject: Annotated[str | None, typer.Option("--reject", metavar="RUN", help="Drop a run's proposed facts.")] = None
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 if it failed.")] = False
    yes: Yes = False
    qdrant: QdrantUrl = None
    output: Output = TableOrJson.TABLE

    @property
    def requested_action(self) -> tuple[Action, str | None]:
        """The requested action, and the id of the run that it concerns, if any. RUN if no option selects an action.

        Raises:
            typer.BadParameter: If options exclude each other, or the id is malformed.
        """
        selected = [
            (action, run)
            for action, run in (
                (Action.UNDO, self.undo),
                (Action.APPROVE, self.approve),
                (Action.REJECT, self.reject),
                (Action.DRY_RUN, "" if self.dry_run else None),
            )
            if run is not None
        ]
        if len(selected) + self.proposals > 1 or (self.proposals and self.wait):
            raise typer.BadParameter("give one of --dry-run, --undo, --approve and --reject, or --proposals alone")
        action, run = selected[0] if selected else (Action.RUN, None)
        if run and not is_run_id(run):
            raise typer.BadParameter(f"{run!r} is not a run ID: see status.lastConsolidation or the events")
        return action, run or None


def add_consolidate(cli: typer.Typer, inspection: QdrantAccess) -> None:
    """Add `consolidate` to a command line."""
    add_verb(cli, "consolidate", ConsolidationOptions, partial(_run, inspection))


def _run(inspection: QdrantAccess, options: ConsolidationOptions, location: JobsLocation) -> None:
    action, run = options.requested_action
    if options.proposals:
        is_folder = location.manifests is not None
        _show(
            run_on_jobs(inspection.open_objects, location, partial(_proposals, inspection, options, is_folder)),
            options.output,
        )
        return
    if action is Action.UNDO:
        confirm(f"Undo run {run} of {options.name}? The memories that it merged become active again.", yes=options.yes)
    last = run_on_jobs(inspection.open_objects, location, partial(_ask, options, action, run))
    if last is None:
        status_command = f"`{called_as()} status {options.name}{location.options}`"
        typer.echo(f"requested; see {status_command} for the result")
        return
    if options.output is TableOrJson.JSON:
        print_json(last)
    else:
        typer.echo(
            f"{last.get('action')} {last.get('run')}: {last.get('message') or render_counts(last.get('counts') or {})}"
        )
    if last.get("reason"):
        raise typer.Exit(FAILED)


async def _ask(
    options: ConsolidationOptions, action: Action, run: str | None, objects: JobObjects, namespace: str
) -> Json | None:
    """Request the action. With --wait, return `status.lastConsolidation` once it contains the result, else None.

    Raises:
        SpecInvalid: If the AgentMemory is invalid, or has no language model for a requested run or dry run.
        AgentMemoryError: If it does not exist, or is deleted during the wait.
        TransientError: As in `reread`. The request stays.
    """
    memory = await read_memory(objects, options.name, namespace)
    if action in (Action.RUN, Action.DRY_RUN) and effective_model(memory) is None:
        message = f"spec.consolidation.model: {options.name} has no language model: set one to consolidate memories"
        raise SpecInvalid(Reason.INVALID_SPEC, message)
    value = request_annotation(render_time(SystemClock().now_ms()), action, run)
    await objects.annotate(AGENT_MEMORY, memory.metadata, {CONSOLIDATION_REQUESTED: value})
    document: Json = {"kind": AGENT_MEMORY, "metadata": {"namespace": namespace, "name": options.name}}
    while options.wait:
        document = await reread(objects, document)
        last: Json = (document.get("status") or {}).get(LAST_FIELD) or {}
        if last.get("requested") == value:
            return last
        await asyncio.sleep(POLL_S)
    return None


async def _proposals(
    inspection: QdrantAccess, options: ConsolidationOptions, is_folder: bool, objects: JobObjects, namespace: str
) -> list[Proposal]:
    """Read the proposals from Qdrant, because statuses and events never contain texts of memories."""
    memory = await read_memory(objects, options.name, namespace)
    endpoint = await memory_endpoint(inspection, objects, memory, at=options.qdrant, is_folder=is_folder)
    settings = effective_settings(memory)
    embedder = CallerVectors(settings.embedding.dimensions)
    async with inspection.open_points(endpoint) as store:
        agent = await open_collection(store, settings, embedder, SystemClock(), cluster_id=objects.cluster_id)
        return [proposal async for proposal in read_proposals(agent)]


def _show(proposals: Sequence[Proposal], output: TableOrJson) -> None:
    if output is TableOrJson.JSON:
        print_json(proposals_document(proposals))
        return
    heading = f"{len(proposals)} facts are waiting for approval"
    rows = tuple(
        (
            proposal.run_id,
            proposal.user_id,
            proposal.fact.content,
            ", ".join(proposal.fact.missing),
            str(len(proposal.fact.sources)),
        )
        for proposal in proposals
    )
    show([Section(heading, "busy" if rows else "", columns=COLUMNS if rows else (), rows=rows)], Console())


def proposals_document(proposals: Sequence[Proposal]) -> dict[str, Any]:
    """Render proposals as JSON, with the ids of their sources and of the memories that they would supersede."""
    return {
        "proposals": [
            {
                "id": proposal.id,
                "run": proposal.run_id,
                "user_id": proposal.user_id,
                "type": proposal.fact.type,
                "content": proposal.fact.content,
                "missing": list(proposal.fact.missing),
                "source_ids": list(proposal.fact.sources),
                "supersedes_ids": list(proposal.fact.replaced),
            }
            for proposal in proposals
        ]
    }
