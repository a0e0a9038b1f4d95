"""Queue of distillation runs in the background of the retrieval API: at most 16 at a time, one per agent.

The queue is bounded, and lost when the process exits. The requests themselves are stored: on the row of the last turn
or of a version. A periodic sweep queues the requests without a valid lease, also those of a process that has exited.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.distillation.runs import DistillationResult, DistillationRun
from agentmemory_operator.errors import AgentMemoryError, ModelOutputInvalid, ModelUnavailable
from agentmemory_operator.memories.point_pages import page_limit
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.filters import IS_DISTIL_DUE, NOT_DELETED
from agentmemory_operator.memories.rules.record import DISTIL_UNTIL_KEY
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.runtime.metrics_api import ModelMeter
from agentmemory_operator.runtime.tasks import cancel, start_task
from agentmemory_operator.spec.effective.settings import AgentSettings

log = logging.getLogger(__name__)

OpenModel = Callable[[AgentSettings], Awaitable[LanguageModel]]
"""Opens the language model of an agent that has one."""

# Maximum number of concurrent runs. Each agent has one at most, so a model that hangs delays only its own agent.
MAX_CONCURRENT_RUNS = 16
MAX_QUEUED = 1_000
# Maximum number of queued runs per agent. A sweep finds the others.
MAX_QUEUED_PER_AGENT = 100
SWEEP_S = 300.0


@dataclass(slots=True)
class DistillationQueue:
    """Runs distillations while `run` is active. `enqueue` may be called at any time."""

    directory: AgentDirectory
    open_model: OpenModel
    remember: Remember
    meter: ModelMeter
    # Requesting rows by agent. The agent that was served longest ago is first.
    _waiting: OrderedDict[str, OrderedDict[str, None]] = field(default_factory=OrderedDict, init=False)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def queued_count(self) -> int:
        """Number of queued runs, without those in progress."""
        return sum(map(len, self._waiting.values()))

    def enqueue(self, slug: str, last: str) -> None:
        """Queue a run. If the queue is full, a sweep finds the request later.

        Args:
            last: Id of the row that requests the run.
        """
        of_agent = self._waiting.setdefault(slug, OrderedDict())
        if len(of_agent) < MAX_QUEUED_PER_AGENT and self.queued_count < MAX_QUEUED:
            of_agent[last] = None
        self._news.set()

    async def run(self, sweep_s: float = SWEEP_S) -> None:
        """Start queued runs until cancelled, and sweep for requests that have no valid lease.

        Args:
            sweep_s: Seconds for one sweep over all agents.
        """
        sweeping = start_task(self._sweep(sweep_s), "searching for conversations to distil stopped")
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                self._begin()
        finally:
            await cancel(sweeping, *self._running.values())

    def _begin(self) -> None:
        """Start as many runs as the limits allow."""
        for slug in list(self._waiting):
            if len(self._running) >= MAX_CONCURRENT_RUNS:
                return
            if slug in self._running:
                continue
            of_agent = self._waiting.pop(slug)
            if not of_agent:
                continue
            last, _ = of_agent.popitem(last=False)
            if of_agent:
                self._waiting[slug] = of_agent
            self._running[slug] = task = asyncio.create_task(self._execute(slug, last))
            task.add_done_callback(lambda _, slug=slug: self._ended(slug))  # type: ignore[misc]

    def _ended(self, slug: str) -> None:
        del self._running[slug]
        self._news.set()

    async def _execute(self, slug: str, last: str) -> None:
        outcome = "failed"
        try:
            agent = await self.directory.open(slug)
            if agent.settings.language_model is None:
                outcome = "no_model"
                return
            model = await self.open_model(agent.settings)
            run = DistillationRun(agent, model, self.remember, last)
            try:
                outcome = await self._outcome_of(run)
            finally:
                self._note(run.result)
        except AgentMemoryError as error:
            log.warning("distillation of a conversation of agent %s is postponed: %s", slug, error)
        finally:
            self.meter.count_distillation(outcome)

    async def _outcome_of(self, run: DistillationRun) -> str:
        try:
            result = await run.execute()
        except ModelOutputInvalid as error:
            action = "given up" if run.result.is_completed else "tried again"
            log.warning("a conversation of agent %s is %s: %s", run.agent.settings.slug, action, error)
            return "given_up" if run.result.is_completed else "invalid_answer"
        except ModelUnavailable as error:
            log.warning("distillation of a conversation of agent %s is postponed: %s", run.agent.settings.slug, error)
            return "model_unavailable"
        return "done" if result.is_completed else "elsewhere"

    def _note(self, result: DistillationResult) -> None:
        for outcome, number in (
            ("stored", len(result.stored)),
            ("unsourced", result.unsourced),
            ("malformed", result.malformed),
            ("proposed", result.proposed),
        ):
            self.meter.count_memories(outcome, number)
        self.meter.count_tokens(result.tokens_in, result.tokens_out)

    async def _sweep(self, sweep_s: float) -> None:
        while True:
            slugs = [settings.slug for settings in self.directory.list_settings() if settings.language_model]
            for slug in slugs:
                await self._find(slug)
                await asyncio.sleep(sweep_s / len(slugs))
            if not slugs:
                await asyncio.sleep(sweep_s)

    async def _find(self, slug: str) -> None:
        """Queue the requests of an agent that have no valid lease."""
        try:
            agent = await self.directory.open(slug, renews_lease=False)
            for last in await find_due_rows(agent):
                self.enqueue(slug, last)
        except AgentMemoryError as error:
            log.info("search for conversations of agent %s is postponed: %s", slug, error)
        except Exception:  # one agent must not end the search for all
            log.exception("search for conversations of agent %s failed", slug)


async def find_due_rows(agent: Agent) -> list[str]:
    """Return the ids of the rows that request a run and have no valid lease: at most 100, or fewer by the query limit.

    Raises:
        StoreUnavailable: If Qdrant is unavailable.
    """
    unleased = {"must_not": [{"key": DISTIL_UNTIL_KEY, "range": {"gt": agent.clock.now_ms()}}]}
    body = {
        "filter": {"must": [IS_DISTIL_DUE, NOT_DELETED, unleased]},
        "limit": page_limit(agent, MAX_QUEUED_PER_AGENT),
        "with_payload": False,
    }
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["id"] for point in points]
