"""`agentmemory approve`: approve the plan of one object, or the plans of all objects for a new preset revision."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.controllers.approve_all import CONCURRENCY, ApprovalResult, ApprovalTarget, BulkApproval
from agentmemory_operator.controllers.rules.approval import (
    PendingApproval,
    approval_annotations,
    describe_pending,
    find_pending_approval,
    is_status_current,
)
from agentmemory_operator.controllers.rules.status_words import describe_costs
from agentmemory_operator.entrypoints.cli.composition import OpenJobs
from agentmemory_operator.entrypoints.cli.job_commands import (
    POLL_S,
    JobsLocation,
    Output,
    add_verb,
    run_on_jobs,
    title_of,
)
from agentmemory_operator.entrypoints.cli.look.status_view import PLAN_COLUMNS, change_rows
from agentmemory_operator.entrypoints.cli.options import TableJsonOrYaml, print_document
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import find_condition
from agentmemory_operator.spec.presets import PRESETS

EVERYWHERE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """Approve a plan that waits for approval, or with --all every such plan of a new preset revision."""

    name: Annotated[str, typer.Argument(help="Name of the AgentMemory; omitted with --all.")] = ""
    digest: Annotated[str | None, typer.Option(help="Approve only the plan with this digest.")] = None
    all: Annotated[bool, typer.Option("--all", help="All objects that wait for a new revision of --preset.")] = False
    preset: Annotated[str | None, typer.Option(help="Preset to approve; only with --all.")] = None
    at_once: Annotated[
        int | None,
        typer.Option(min=1, max=64, help=f"Maximum objects at once; only with --all. Default: {CONCURRENCY}."),
    ] = None
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Continue if an object fails; only with --all.")] = (
        False
    )
    output: Output = TableJsonOrYaml.TABLE


def add_approve(cli: typer.Typer, open_jobs: OpenJobs) -> None:
    """Add `approve` to a command line."""
    add_verb(cli, "approve", Approve, partial(_run, open_jobs))


def _run(jobs: OpenJobs, options: Approve, scope: JobsLocation) -> None:
    if options.all:
        has_output = options.output is not TableJsonOrYaml.TABLE
        if options.name or options.digest or has_output or options.preset not in PRESETS:
            presets = ", ".join(PRESETS)
            raise typer.BadParameter(f"--all takes --preset ({presets}), and no AgentMemory, --digest or -o")
        hint = "approved plans continue; run the command again to wait for them and approve the rest"
        run_on_jobs(jobs, scope, partial(_approve_all, options, scope.namespace or EVERYWHERE), interrupt_message=hint)
        return
    if not options.name or options.preset or options.keep_going or options.at_once is not None:
        raise typer.BadParameter("give an AgentMemory, or --all --preset NAME [--at-once N] [--keep-going]")
    document, pending = run_on_jobs(jobs, scope, partial(_approve, options))
    if options.output is TableJsonOrYaml.TABLE:
        show([_section(document, pending, scope)], Console())
    else:
        print_document(_document(document, pending), options.output)


async def _approve(options: Approve, objects: JobObjects, namespace: str) -> tuple[Json, PendingApproval]:
    document = await objects.read_object(AGENT_MEMORY, namespace, options.name)
    pending = _find_pending(document, options.digest)
    await objects.annotate(
        AGENT_MEMORY, Metadata.model_validate(document["metadata"]), approval_annotations(pending.value)
    )
    return document, pending


def _find_pending(document: Json, digest: str | None) -> PendingApproval:
    """Return the pending approval of an object.

    Args:
        digest: Digest that the plan must have; None allows any.

    Raises:
        AgentMemoryError: If the last edit is not reconciled yet, no plan waits for approval, or the plan that waits
            does not have this `digest`.
    """
    name, pending = title_of(document), find_pending_approval(document)
    if not is_status_current(document):
        raise AgentMemoryError(f"{name}: its last edit is not reconciled yet: run the command again")
    if pending is None:
        in_sync = find_condition(document.get("status"), "InSync")
        state = f"{in_sync.get('reason')}: {in_sync.get('message')}" if in_sync else "it has no collection yet"
        raise AgentMemoryError(f"{name}: no plan is waiting for approval ({state})")
    if digest is not None and digest != pending.value:
        raise AgentMemoryError(
            f"{name}: the plan {digest} is outdated. The current plan is {describe_pending(pending)}. Review "
            f"it ({called_as()} status {document['metadata']['name']}), then approve {pending.value}"
        )
    return pending


def _section(document: Json, pending: PendingApproval, location: JobsLocation) -> Section:
    rows = change_rows(pending.changes)
    costs = describe_costs(pending.costs)
    name = document["metadata"]["name"]
    status_command = f"{called_as()} status {name}{location.options}"
    return Section(
        f"{title_of(document)}: approved {pending.value}",
        "good",
        PLAN_COLUMNS if rows else (),
        rows,
        notes=(f"Costs: {costs}",) if costs else (),
        commands=(f"{called_as()} rebuild {name}{location.options} --watch" if costs else status_command,),
    )


def _document(document: Json, pending: PendingApproval) -> Mapping[str, Any]:
    metadata = document["metadata"]
    agent = {"namespace": metadata["namespace"], "name": metadata["name"]}
    return {"agent": agent, "approved": pending.value, "changes": list(pending.changes), "costs": dict(pending.costs)}


async def _approve_all(options: Approve, namespace: str, objects: JobObjects, _: str) -> None:
    done: list[ApprovalResult] = []

    def begin(target: ApprovalTarget) -> None:
        typer.echo(f"{target}: approved {target.approval_value} ({target.points} points)")

    def print_result(result: ApprovalResult) -> None:
        done.append(result)
        outcome = "done" if result.is_done else "FAILED"
        typer.echo(f"{len(done)} of {len(targets)}: {result.agent} {outcome}: {result.message}")

    preset, concurrency = options.preset or "", options.at_once or CONCURRENCY
    approval = BulkApproval(
        objects=objects,
        preset=preset,
        namespace=namespace,
        report_started=begin,
        report=print_result,
        concurrency=concurrency,
        continues_on_failure=options.keep_going,
        poll_s=POLL_S,
    )
    targets = await approval.find()
    in_progress = sum(target.pending is None for target in targets)
    typer.echo(
        f"{len(targets) - in_progress} AgentMemories wait for approval of a newer revision of preset {preset}, "
        f"{in_progress} are in progress; {concurrency} at a time"
    )
    remaining = await approval.run(targets)
    if failed := [result.agent for result in done if not result.is_done]:
        suffix = (
            f"; {len(remaining)} were not started: fix the failure, or continue with --keep-going" if remaining else ""
        )
        raise AgentMemoryError(f"{len(failed)} of {len(targets)} failed: {', '.join(sorted(failed))}{suffix}")
