"""One run: choose batches, ask the model about each, carry out what its answer comes to, within limits.

Nothing is held while the model is asked: what changes meanwhile is found when the answer is carried out, because each
memory is changed only as it was read.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.carry_out import Tally, carry_out, intended
from agentmemory_operator.consolidation.rules.answer import SCHEMA, TASK, findings_of
from agentmemory_operator.consolidation.rules.choice import (
    CANDIDATE_KEYS,
    batches,
    candidates,
    is_candidate,
    within,
)
from agentmemory_operator.consolidation.rules.grounding import unfounded
from agentmemory_operator.consolidation.rules.material import instruct, wrap
from agentmemory_operator.consolidation.rules.plan import BatchPlan, Kinds, Row, plan_batch
from agentmemory_operator.errors import ModelAnswerInvalid
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.spec.effective.consolidation import RunLimits
from agentmemory_operator.spec.times import render_time

MILLION = 1_000_000
ANSWER_TOKENS = 4_000
"""Of one answer at most."""
_CHARS_A_TOKEN = 3

PAGE = 1_000
MOST_CANDIDATES = 10_000
"""Memories that are looked at to choose batches; the others come in later runs."""
RUN_S = 1_800.0
"""Seconds after which a run asks for no further batch."""

OpenNow = Callable[[], Awaitable[Agent]]
"""Gives the agent as it now is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a run is to do.

    Attributes:
        id: the same in each attempt.
        before_ms: memories from before, Unix milliseconds.
        types: those that are looked at; none is all.
        least: of a user; fewer are left for another time.
        is_dry: nothing is changed.
    """

    id: str
    before_ms: int
    types: tuple[str, ...] = ()
    least: int = 2
    limits: RunLimits = field(default_factory=RunLimits)
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def plus(self, tokens_in: int, tokens_out: int) -> "Used":
        """With one call more."""
        return Used(self.calls + 1, self.tokens_in + tokens_in, self.tokens_out + tokens_out)

    def spent(self, limits: RunLimits) -> float | None:
        """What that cost; None where no price is known."""
        if limits.input_price is None and limits.output_price is None:
            return None
        return (self.tokens_in * (limits.input_price or 0) + self.tokens_out * (limits.output_price or 0)) / MILLION


@dataclass(slots=True)
class RunReport:
    """What a run came to so far.

    Attributes:
        read: memories that the model was shown.
        left: batches that a limit left for the next run.
        invalid: answers that could not be used; their memories are read again by the next run.
        dropped: Parts of answers that were left out: ids that the model was not shown, and items of a wrong form.
        stopped_by: the limit that ended it.
    """

    tally: Tally = field(default_factory=Counter)
    used: Used = field(default_factory=Used)
    read: int = 0
    batches: int = 0
    left: int = 0
    invalid: int = 0
    dropped: int = 0
    stopped_by: str | None = None


class Consolidation:
    """Makes fewer and better memories of many.

    Args:
        open_agent: gives the agent, before each batch and again before its answer is carried out.
        applying: entered while memories are changed.
    """

    def __init__(
        self,
        open_agent: OpenNow,
        model: LanguageModel,
        *,
        applying: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._open_agent = open_agent
        self._model = model
        self._applying = applying

    async def run(self, order: RunOrder, report: RunReport) -> None:
        """Consolidate what is due; `report` tells how far it came, also where it fails.

        Raises:
            ModelUnavailable, SpecInvalid: the model cannot be asked; batches before are carried out.
            TransientError: Qdrant or the embedder is away.
        """
        ends_s = asyncio.get_running_loop().time() + RUN_S
        chosen = await _choose(await self._open_agent(), order)
        for place, ids in enumerate(chosen):
            report.left = len(chosen) - place
            if asyncio.get_running_loop().time() > ends_s:
                report.stopped_by = "time"
            elif rows := await _read(await self._open_agent(), ids, order):
                await self._consolidate(rows, order, report)
            if report.stopped_by:
                return
        report.left = 0

    async def _consolidate(self, rows: Sequence[Row], order: RunOrder, report: RunReport) -> None:
        shown = {f"m{number}": row for number, row in enumerate(rows, 1)}
        material = wrap([_shown(name, row) for name, row in shown.items()], secrets.token_hex(8))
        instructions = instruct(TASK, material, SCHEMA)
        report.stopped_by = exceeded(report.used, order.limits, chars=len(material.text) + len(instructions))
        if report.stopped_by:
            return
        try:
            done = await self._model.complete(instructions, material.text, SCHEMA, ANSWER_TOKENS)
        except ModelAnswerInvalid as exc:
            report.used = report.used.plus(exc.tokens_in, exc.tokens_out)
            report.invalid += 1
            return
        report.used = report.used.plus(done.tokens_in, done.tokens_out)
        report.read += len(rows)
        report.batches += 1
        with self._applying():
            agent = await self._open_agent()
            plan = plan_of(agent, shown, done.answer)
            report.dropped += plan.dropped + done.dropped
            report.tally += intended(plan) if order.is_dry else await carry_out(agent, plan, order.id)


def plan_of(agent: Agent, shown: dict[str, Row], answer: dict[str, Any]) -> BatchPlan:
    """What is done about an answer.

    Args:
        shown: memories by the names that the model knows them by.
    """
    said = findings_of(answer, shown.keys())
    named = said.under({name: row["id"] for name, row in shown.items()})
    kinds = Kinds(agent.settings.ranking.types, agent.settings.ranking.default_type)
    return plan_batch(list(shown.values()), named, kinds, unfounded, agent.entity_lists)


async def _choose(agent: Agent, order: RunOrder) -> list[list[str]]:
    found: list[Row] = []
    body = {
        "filter": candidates(order.before_ms, order.types),
        "limit": PAGE,
        "with_payload": list(CANDIDATE_KEYS),
        "with_vector": False,
    }
    async for points in read_pages(agent, body):
        found += [point["payload"] for point in points if point["payload"].keys() >= set(CANDIDATE_KEYS)]
        if len(found) >= MOST_CANDIDATES:
            break
    return list(batches(found[:MOST_CANDIDATES], least=order.least))


async def _read(agent: Agent, ids: Sequence[str], order: RunOrder) -> list[Row]:
    """The memories of a batch that still are candidates, in order; none where they are too few by now."""
    points = {point["id"]: point["payload"] for point in await agent.store.retrieve(agent.alias, ids)}
    rows = [points[id_] for id_ in ids if id_ in points and is_candidate(points[id_])]
    return within(rows) if len(rows) >= order.least else []


def _shown(name: str, row: Row) -> dict[str, Any]:
    """What a model is shown of a memory."""
    said = {key: row[key] for key in ("type", "content", "subject", "domain", "category") if row.get(key)}
    return {"id": name, "at": render_time(row["createdAt"])} | said


def exceeded(used: Used, limits: RunLimits, *, chars: int) -> str | None:
    """Which limit the next call could exceed, by its name in the spec; None where none.

    Args:
        chars: that the model is to read.
    """
    then = used.plus(chars // _CHARS_A_TOKEN + 1, ANSWER_TOKENS)
    if then.calls > limits.calls:
        return "calls"
    if then.tokens_in + then.tokens_out > limits.tokens:
        return "tokens"
    spent = then.spent(limits)
    return "spend" if limits.spend is not None and spent is not None and spent > limits.spend else None
