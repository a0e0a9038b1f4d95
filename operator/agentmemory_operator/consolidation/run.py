"""One consolidation run: choose batches, ask the model about each, and carry out its accepted findings, within limits.

1. Select up to 10,000 candidates, and group them into batches of one user each.
2. Before each model call, stop if the call could exceed a limit of the run.
3. Send the batch to the model. Nothing is locked during the call.
4. Open the agent again, plan, and carry out the plan by conditional writes, which skip memories that change then.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.plan_executor import Tally, execute_plan, planned_effects
from agentmemory_operator.consolidation.rules.batch_plan import AgentTypes, BatchPlan, Row, plan_batch
from agentmemory_operator.consolidation.rules.batch_selection import (
    CANDIDATE_KEYS,
    candidate_filter,
    is_candidate,
    limit_rows,
    split_batches,
)
from agentmemory_operator.consolidation.rules.grounding import find_ungrounded
from agentmemory_operator.consolidation.rules.model_findings import SCHEMA, TASK, parse_findings
from agentmemory_operator.consolidation.rules.prompt_material import build_instructions, render_material
from agentmemory_operator.errors import ModelOutputInvalid
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.spec.effective.consolidation import RunLimits
from agentmemory_operator.spec.times import render_time

MILLION = 1_000_000
MAX_ANSWER_TOKENS = 4_000
"""Maximum tokens of one answer. The check of a run's limits assumes that each answer has as many."""
_CHARS_A_TOKEN = 3

PAGE = 1_000
MAX_CANDIDATES = 10_000
"""Maximum number of memories considered for batches; later runs read the others."""
MAX_RUN_S = 1_800.0
"""Seconds after which a run starts no further batch."""

OpenAgent = Callable[[], Awaitable[Agent]]
"""Opens the agent in its current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParameters:
    """Parameters of a run.

    Attributes:
        id: Id of the run, the same in each attempt.
        before_ms: Only memories created by then, Unix milliseconds.
        types: Only memories of these types. Empty for all.
        min_candidates: Minimum number of candidates of a user; a user with fewer is skipped.
        limits: Limits on calls, tokens and costs.
        is_dry: True to change nothing.
    """

    id: str
    before_ms: int
    types: tuple[str, ...] = ()
    min_candidates: int = 2
    limits: RunLimits = field(default_factory=RunLimits)
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Model usage of a run.

    Attributes:
        tokens_in: Tokens that the model read.
        tokens_out: Tokens that the model wrote.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def with_call(self, tokens_in: int, tokens_out: int) -> "ModelUsage":
        """Return the usage after one more call."""
        return ModelUsage(self.calls + 1, self.tokens_in + tokens_in, self.tokens_out + tokens_out)

    def cost(self, limits: RunLimits) -> float | None:
        """Return the cost in the currency of the prices, which are for a million tokens.

        A missing price counts as 0. None if both are missing.
        """
        if limits.input_price is None and limits.output_price is None:
            return None
        return (self.tokens_in * (limits.input_price or 0) + self.tokens_out * (limits.output_price or 0)) / MILLION


@dataclass(slots=True)
class RunReport:
    """Progress and result of a run.

    Attributes:
        tally: Effects by kind; of a dry run the planned ones.
        read: Number of memories in batches with a usable answer.
        batches: Number of batches with a usable answer.
        remaining_batches: Number of batches that remain for the next run; during a run, including the current batch.
        invalid: Number of unusable answers. The next run reads their memories again.
        dropped: Number of dropped parts of answers: unknown ids, and items and optional fields that do not match the
            schema.
        stopped_by: Limit that ended the run: calls, tokens, spend or time. None if no limit did.
    """

    tally: Tally = field(default_factory=Counter)
    usage: ModelUsage = field(default_factory=ModelUsage)
    read: int = 0
    batches: int = 0
    remaining_batches: int = 0
    invalid: int = 0
    dropped: int = 0
    stopped_by: str | None = None


class Consolidation:
    """Merges, links and classifies the memories of an agent.

    Args:
        open_agent: Opens the agent: to choose batches, before each batch, and again before its plan is carried out.
        model: Language model that is called for each batch.
        applying: Returns the context in which memories are changed, for example one that blocks a rebuild.
    """

    def __init__(
        self,
        open_agent: OpenAgent,
        model: LanguageModel,
        *,
        applying: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._open_agent = open_agent
        self._model = model
        self._applying = applying

    async def run(self, order: RunParameters, report: RunReport) -> None:
        """Choose batches and process them, until a limit would be exceeded or `MAX_RUN_S` has passed.

        A limit raises no error: `report.stopped_by` names it. `report` is updated even if the run fails.

        Raises:
            ModelUnavailable, SpecInvalid: If the model cannot be called. Earlier batches are completed.
            TransientError: If Qdrant or the embedder is unavailable, or `applying` forbids changes now.
            AgentMemoryError: Errors of `open_agent`.
        """
        ends_s = asyncio.get_running_loop().time() + MAX_RUN_S
        chosen = await _choose(await self._open_agent(), order)
        for index, ids in enumerate(chosen):
            report.remaining_batches = len(chosen) - index
            if asyncio.get_running_loop().time() > ends_s:
                report.stopped_by = "time"
            elif rows := await _read(await self._open_agent(), ids, order):
                await self._consolidate(rows, order, report)
            if report.stopped_by:
                return
        report.remaining_batches = 0

    async def _consolidate(self, rows: Sequence[Row], order: RunParameters, report: RunReport) -> None:
        rows_by_name = {f"m{number}": row for number, row in enumerate(rows, 1)}
        material = render_material([_shown(name, row) for name, row in rows_by_name.items()], secrets.token_hex(8))
        instructions = build_instructions(TASK, material, SCHEMA)
        report.stopped_by = find_exceeded_limit(
            report.usage, order.limits, chars=len(material.text) + len(instructions)
        )
        if report.stopped_by:
            return
        try:
            completion = await self._model.complete(instructions, material.text, SCHEMA, MAX_ANSWER_TOKENS)
        except ModelOutputInvalid as exc:
            report.usage = report.usage.with_call(exc.tokens_in, exc.tokens_out)
            report.invalid += 1
            return
        report.usage = report.usage.with_call(completion.tokens_in, completion.tokens_out)
        report.read += len(rows)
        report.batches += 1
        with self._applying():
            agent = await self._open_agent()
            plan = plan_answer(agent, rows_by_name, completion.answer)
            report.dropped += plan.dropped + completion.dropped
            report.tally += planned_effects(plan) if order.is_dry else await execute_plan(agent, plan, order.id)


def plan_answer(agent: Agent, rows: dict[str, Row], answer: dict[str, Any]) -> BatchPlan:
    """Build the plan for an answer.

    Args:
        rows: Memories by the short names that the model was shown.
        answer: Answer that matches `SCHEMA`.
    """
    findings = parse_findings(answer, rows.keys())
    findings_by_id = findings.with_ids({name: row["id"] for name, row in rows.items()})
    kinds = AgentTypes(agent.settings.ranking.types, agent.settings.ranking.default_type)
    return plan_batch(list(rows.values()), findings_by_id, kinds, find_ungrounded, agent.entity_lists)


async def _choose(agent: Agent, order: RunParameters) -> list[list[str]]:
    candidates: list[Row] = []
    body = {
        "filter": candidate_filter(order.before_ms, order.types),
        "limit": PAGE,
        "with_payload": list(CANDIDATE_KEYS),
        "with_vector": False,
    }
    async for points in read_pages(agent, body):
        candidates += [point["payload"] for point in points if point["payload"].keys() >= set(CANDIDATE_KEYS)]
        if len(candidates) >= MAX_CANDIDATES:
            break
    return list(split_batches(candidates[:MAX_CANDIDATES], min_memories=order.min_candidates))


async def _read(agent: Agent, ids: Sequence[str], order: RunParameters) -> list[Row]:
    """Read the memories of a batch that still are candidates, in order. Empty if too few remain."""
    points = {point["id"]: point["payload"] for point in await agent.store.retrieve(agent.alias, ids)}
    rows = [points[id_] for id_ in ids if id_ in points and is_candidate(points[id_])]
    return limit_rows(rows) if len(rows) >= order.min_candidates else []


def _shown(name: str, row: Row) -> dict[str, Any]:
    """Render a memory for the model."""
    fields = {key: row[key] for key in ("type", "content", "subject", "domain", "category") if row.get(key)}
    return {"id": name, "at": render_time(row["createdAt"])} | fields


def find_exceeded_limit(used: ModelUsage, limits: RunLimits, *, chars: int) -> str | None:
    """Return the limit that the next call could exceed, by its name in the spec, or None.

    Args:
        chars: Number of characters of the model's input.
    """
    usage = used.with_call(chars // _CHARS_A_TOKEN + 1, MAX_ANSWER_TOKENS)
    if usage.calls > limits.calls:
        return "calls"
    if usage.tokens_in + usage.tokens_out > limits.tokens:
        return "tokens"
    spent = usage.cost(limits)
    return "spend" if limits.spend is not None and spent is not None and spent > limits.spend else None
