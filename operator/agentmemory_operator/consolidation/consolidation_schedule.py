"""Schedule consolidations of AgentMemory objects, and run scheduled and requested actions.

1. Each status write calls `ConsolidationSchedule.plan_next`, which plans the next action: a scheduled run, or the
   action that an annotation of the object requests.
2. When the action is due, it runs in the queue of consolidations, so a model that hangs does not delay passes.
3. A pass writes the result into `status.lastConsolidation`.

The status and marks on the memories are the only stored state. A restarted operator starts the same action again, with
the same run id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.rules.status import (
    LAST_FIELD,
    NEEDS_MODEL,
    Action,
    ConsolidationState,
    Failure,
    PendingAction,
    last_status,
    next_action,
    render_counts,
    with_consolidation,
    without_consolidation,
)
from agentmemory_operator.consolidation.run import Consolidation, ModelUsage, OpenAgent, RunParameters, RunReport
from agentmemory_operator.consolidation.undo import UndoReport, approve, reject, undo
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, ModelUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.runtime.jobs import RunSchedule
from agentmemory_operator.runtime.metrics import MetricSet
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable
from agentmemory_operator.spec.effective.consolidation import ConsolidationSettings, effective_consolidation
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.times import render_second

log = logging.getLogger(__name__)

MAX_CONCURRENT_CONSOLIDATIONS = 4
MAX_ACTION_S = 7_000.0
DAY_MS = 86_400_000
# Histogram buckets in seconds, from a run without candidates to a run with many slow answers.
DURATION_BUCKETS_S = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)

OpenStore = Callable[[AgentMemory], AbstractAsyncContextManager[OpenAgent]]
"""Opens a context with a function that opens the agent with its embedder.

If the server accepts tokens, the store is limited to the agent's points.
"""
OpenModel = Callable[[AgentMemory, ConsolidationSettings], Awaitable[LanguageModel]]


class ConsolidationMeter(MetricSet):
    """Prometheus metrics of consolidations."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = self.add_counter(
            "agentmemory_consolidations_total", "Consolidations by action and result.", "action", "outcome"
        )
        self._results = self.add_counter(
            "agentmemory_consolidation_results_total", "Results of consolidations by kind.", "result"
        )
        self._tokens = self.add_counter(
            "agentmemory_consolidation_tokens_total", "Tokens that language models read and wrote.", "direction"
        )
        self._calls = self.add_counter(
            "agentmemory_consolidation_calls_total", "Requests to language models.", "outcome"
        )
        self._durations = self.add_histogram(
            "agentmemory_consolidation_duration_seconds",
            "Duration of consolidations in seconds.",
            buckets=DURATION_BUCKETS_S,
        )

    def count_action(self, action: Action, report: RunReport, duration_ms: float, *, is_failed: bool) -> None:
        """Count an action that was completed or failed, and its model usage. Effects of a dry run are not counted.

        Args:
            duration_ms: Duration in milliseconds.
        """
        outcome = "failed" if is_failed else "limited" if report.stopped_by else "done"
        self._runs.labels(str(action), outcome).inc()
        self._durations.observe(duration_ms / 1000)
        for effect, number in report.tally.items() if action is not Action.DRY_RUN else ():
            self._results.labels(str(effect)).inc(number)
        self._tokens.labels("in").inc(report.usage.tokens_in)
        self._tokens.labels("out").inc(report.usage.tokens_out)
        self._calls.labels("invalid").inc(report.invalid)
        self._calls.labels("used").inc(report.usage.calls - report.invalid)


@dataclass(slots=True)
class ConsolidationSchedule:
    """Schedules and runs consolidations of all objects, at most 4 of one namespace at a time.

    Attributes:
        open_store: Opens access to the points of an agent.
        open_model: Opens the language model of an object.
        request: Requests a pass over an object.
        is_rebuilding: Returns whether an object's collection is being rebuilt. No memories are changed then.
    """

    table: ObjectTable
    open_store: OpenStore
    open_model: OpenModel
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    is_rebuilding: Callable[[Key], bool] = lambda key: False
    meter: ConsolidationMeter = field(init=False, default_factory=ConsolidationMeter)
    schedule: RunSchedule = field(init=False)

    def __post_init__(self) -> None:
        parts = self.table, self.clock, self.is_rebuilding, self.request
        self.schedule = RunSchedule(
            *parts, LAST_FIELD, due_ms=_due_ms, run=self._run, share=MAX_CONCURRENT_CONSOLIDATIONS
        )

    def plan_next(self, key: Key, document: Json, status: Json) -> Json:
        """Plan the next action of an object; return its status with the fields about consolidation.

        If the object is invalid, nothing is planned and `status` is returned unchanged. If it is suspended, nothing is
        planned. If it is being deleted, or has neither consolidation nor an earlier result, nothing is planned and the
        fields are removed.

        Args:
            document: The object with its previous status.
            status: New status, without these fields.
        """
        try:
            memory = self.table.parse(document)
        except SpecInvalid:
            return status
        settings, last = effective_consolidation(memory), self.schedule.last_result(key, memory)
        if (settings is None and not last) or memory.metadata.deletion_timestamp:
            return without_consolidation(status)
        pending = None if memory.spec.suspend else next_action(memory, settings, last)
        if pending:
            self.schedule.plan(key, pending.due_ms)
        return with_consolidation(
            status,
            ConsolidationState(last, pending.due_ms if pending else None, settings.fault if settings else None),
            old=document.get("status") or {},
            generation=memory.metadata.generation,
            now=render_second(self.clock.now_ms() / 1000),
        )

    async def _run(self, key: Key, memory: AgentMemory, last: Json) -> None:
        settings = effective_consolidation(memory)
        if pending := next_action(memory, settings, last):
            await self._execute(key, memory, settings, pending)

    async def _execute(
        self, key: Key, memory: AgentMemory, settings: ConsolidationSettings | None, pending: PendingAction
    ) -> None:
        """Carry out an action, record its result, and post an event. An error is recorded as the result.

        Raises:
            TransientError: If the action failed before any model call, except for ModelUnavailable; or LeadershipLost.
        """
        started_ms, report, undo_report, failure = self.clock.now_ms(), RunReport(), UndoReport(), None
        try:
            async with asyncio.timeout(MAX_ACTION_S), self.open_store(memory) as open_agent:
                if pending.action in NEEDS_MODEL and settings is not None:
                    await self._consolidate(key, memory, settings, pending, open_agent, report)
                else:
                    with self.schedule.block_rebuild(key):
                        await _decide(await open_agent(), pending, report, undo_report)
        except LeadershipLost:
            raise
        except TimeoutError:
            report.stopped_by = "time"
        except TransientError as exc:
            # Let the run be repeated automatically, which costs nothing if no model call was made.
            if not report.usage.calls and not isinstance(exc, ModelUnavailable):
                raise
            failure = Failure(reason_of(exc)[0], str(exc))
        except AgentMemoryError as exc:
            failure = Failure(reason_of(exc)[0], str(exc))
        took_ms = self.clock.now_ms() - started_ms
        result = _result_fields(report, undo_report, settings)
        status = last_status(pending, result, failure, started_ms=started_ms, duration_ms=took_ms)
        self.schedule.record_result(key, memory, status)
        self.meter.count_action(pending.action, report, took_ms, is_failed=failure is not None)
        if event := _event(pending, status):
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("%s of %s: %s", pending.action, key, failure.reason if failure else render_counts(result["counts"]))

    async def _consolidate(
        self,
        key: Key,
        memory: AgentMemory,
        settings: ConsolidationSettings,
        pending: PendingAction,
        open_agent: OpenAgent,
        report: RunReport,
    ) -> None:
        terms = settings.terms
        order = RunParameters(
            id=pending.run,
            before_ms=self.clock.now_ms() - round(terms.older_than_days * DAY_MS),
            types=terms.types,
            min_candidates=terms.min_memories,
            limits=settings.limits,
            is_dry=pending.action is Action.DRY_RUN,
        )
        model = await self.open_model(memory, settings)
        await Consolidation(open_agent, model, applying=partial(self.schedule.block_rebuild, key)).run(order, report)


def _due_ms(memory: AgentMemory, last: Json) -> int | None:
    pending = next_action(memory, effective_consolidation(memory), last)
    return pending.due_ms if pending else None


async def _decide(agent: Agent, pending: PendingAction, report: RunReport, undo_report: UndoReport) -> None:
    """Undo a run, or approve or reject its proposals; add the result to `report` or `undo_report`."""
    match pending.action:
        case Action.APPROVE:
            report.tally += await approve(agent, pending.run)
        case Action.REJECT:
            report.tally += await reject(agent, pending.run)
        case _:
            await undo(agent, pending.run, undo_report)


def _result_fields(run: RunReport, undo: UndoReport, settings: ConsolidationSettings | None) -> Json:
    counts = {str(effect): number for effect, number in run.tally.items()}
    counts |= {"read": run.read, "dropped": run.dropped, "invalid": run.invalid, "left": run.remaining_batches}
    counts |= {name: number for name, number in asdict(undo).items() if name in ("reactivated", "kept", "elsewhere")}
    usage: ModelUsage = run.usage
    fields: Json = {"counts": {name: number for name, number in counts.items() if number}, "stoppedBy": run.stopped_by}
    if usage.calls:
        fields |= {"calls": usage.calls, "tokensIn": usage.tokens_in, "tokensOut": usage.tokens_out}
        fields["spent"] = usage.cost(settings.limits) if settings else None
    return fields


def _event(pending: PendingAction, status: Json) -> Event | None:
    tally = status.get("counts") or {}
    if reason := status.get("reason"):
        return Event("Warning", "ConsolidationFailed", f"{pending.action} {pending.run}: {reason}: {status['message']}")
    if pending.action is Action.RUN and tally.get("proposed"):
        message = (
            f"run {pending.run}: {render_counts(tally)}. Proposed facts wait for approval: `agentmemory consolidate"
            f" NAME --proposals` shows it, --approve {pending.run} or --reject {pending.run} decides"
        )
        return Event("Warning", "ConsolidationProposed", message)
    return Event("Normal", "Consolidated", f"{pending.action} {pending.run}: {render_counts(tally)}") if tally else None
