"""Which conversations are distilled when: in the background of the retrieval API, some at a time, one of an agent.

What waits here is bounded, and lost with the process: what is to be done stands on the last turns themselves. A sweep
finds those that nobody here knows of, of this process or another.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.distillation.runs import Distilled, Run
from agentmemory_operator.errors import AgentMemoryError, ModelAnswerInvalid, ModelUnavailable
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.filters import IS_DISTIL_DUE, NOT_DELETED
from agentmemory_operator.memories.rules.record import DISTIL_UNTIL_KEY
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.runtime.metrics_api import ModelMeter
from agentmemory_operator.runtime.tasks import cancel
from agentmemory_operator.spec.effective.settings import AgentSettings

log = logging.getLogger(__name__)

OpenModel = Callable[[AgentSettings], Awaitable[LanguageModel]]
"""Gives the model of an agent that has one."""

# Models of other agents are waited for elsewhere: one that hangs holds up its own agent alone.
RUNS_AT_ONCE = 16
MAX_WAITING = 1_000
# Of one agent; a sweep finds the rest.
MAX_WAITING_OF_ONE = 100
SWEEP_S = 300.0


@dataclass(slots=True)
class DistillationQueue:
    """Carries runs out while `run` does; `offer` may be called at any time."""

    directory: AgentDirectory
    open_model: OpenModel
    remember: Remember
    meter: ModelMeter
    # Last turns that wait, by agent; those of the agent that was served longest ago are first.
    _waiting: OrderedDict[str, OrderedDict[str, None]] = field(default_factory=OrderedDict, init=False)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def waiting(self) -> int:
        """How many runs wait."""
        return sum(map(len, self._waiting.values()))

    def offer(self, slug: str, last: str) -> None:
        """Have a conversation distilled soon; where there is no room, a sweep comes to it later.

        Args:
            last: id of its last turn.
        """
        of_agent = self._waiting.setdefault(slug, OrderedDict())
        if len(of_agent) < MAX_WAITING_OF_ONE and self.waiting < MAX_WAITING:
            of_agent[last] = None
        self._news.set()

    async def run(self, sweep_s: float = SWEEP_S) -> None:
        """Carry out what waits, until cancelled; look for what nobody knows of now and then."""
        sweeping = asyncio.create_task(self._sweep(sweep_s))
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                self._begin()
        finally:
            await cancel(sweeping, *self._running.values())

    def _begin(self) -> None:
        """Begin as many runs as may be under way."""
        for slug in list(self._waiting):
            if len(self._running) >= RUNS_AT_ONCE:
                return
            if slug in self._running:
                continue
            of_agent = self._waiting.pop(slug)
            if not of_agent:
                continue
            last, _ = of_agent.popitem(last=False)
            if of_agent:
                self._waiting[slug] = of_agent
            self._running[slug] = task = asyncio.create_task(self._carry_out(slug, last))
            task.add_done_callback(lambda _, slug=slug: self._ended(slug))  # type: ignore[misc]

    def _ended(self, slug: str) -> None:
        del self._running[slug]
        self._news.set()

    async def _carry_out(self, slug: str, last: str) -> None:
        outcome = "failed"
        try:
            agent = await self.directory.open(slug)
            if agent.settings.language_model is None:
                outcome = "no_model"
                return
            model = await self.open_model(agent.settings)
            run = Run(agent, model, self.remember, last)
            try:
                outcome = await self._outcome_of(run)
            finally:
                self._note(run.done)
        except AgentMemoryError as error:
            log.warning("distillation of a conversation of agent %s is postponed: %s", slug, error)
        finally:
            self.meter.distilled(outcome)

    async def _outcome_of(self, run: Run) -> str:
        try:
            done = await run.carry_out()
        except ModelAnswerInvalid as error:
            ends = "given up" if run.done.is_over else "tried again"
            log.warning("a conversation of agent %s is %s: %s", run.agent.settings.slug, ends, error)
            return "given_up" if run.done.is_over else "invalid_answer"
        except ModelUnavailable as error:
            log.warning("distillation of a conversation of agent %s is postponed: %s", run.agent.settings.slug, error)
            return "model_unavailable"
        return "done" if done.is_over else "elsewhere"

    def _note(self, done: Distilled) -> None:
        for fate, number in (
            ("stored", len(done.stored)),
            ("unsourced", done.unsourced),
            ("malformed", done.malformed),
            ("proposed", done.proposed),
        ):
            self.meter.made(fate, number)
        self.meter.used(done.tokens_in, done.tokens_out)

    async def _sweep(self, sweep_s: float) -> None:
        while True:
            slugs = [settings.slug for settings in self.directory.list() if settings.language_model]
            for slug in slugs:
                await self._find(slug)
                await asyncio.sleep(sweep_s / len(slugs))
            if not slugs:
                await asyncio.sleep(sweep_s)

    async def _find(self, slug: str) -> None:
        """Offer an agent's conversations that nobody is at."""
        try:
            agent = await self.directory.open(slug, reads_ahead=False)
            for last in await due(agent):
                self.offer(slug, last)
        except AgentMemoryError as error:
            log.info("search for conversations of agent %s is postponed: %s", slug, error)


async def due(agent: Agent) -> list[str]:
    """Last turns of some conversations that are to be distilled, and that nobody is at."""
    free = {"must_not": [{"key": DISTIL_UNTIL_KEY, "range": {"gt": agent.clock.now_ms()}}]}
    asked = {"filter": {"must": [IS_DISTIL_DUE, NOT_DELETED, free]}, "limit": MAX_WAITING_OF_ONE, "with_payload": False}
    most = agent.settings.ranking.max_query_limit
    points, _ = await agent.store.scroll(
        agent.alias, asked | ({"limit": min(MAX_WAITING_OF_ONE, most)} if most else {})
    )
    return [point["id"] for point in points]
