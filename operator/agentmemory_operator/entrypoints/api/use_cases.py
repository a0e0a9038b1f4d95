"""The use cases that the routes call, and helpers of the route modules."""

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from agentmemory_operator.agents.agent_objects import AgentObjects
from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.distillation.run_queue import DistillationQueue, OpenModel
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.errors import NotFound
from agentmemory_operator.lifecycle.erase import Eraser
from agentmemory_operator.lifecycle.forget import ForgetUseCase
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.item_store import Items
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.ids import is_id
from agentmemory_operator.memories.working_memory import WorkingMemory
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.search.context import ContextService
from agentmemory_operator.search.results import MeteredReranker, OpenReranker
from agentmemory_operator.search.rules.context_budget import TextMeasure
from agentmemory_operator.search.search import SearchService
from agentmemory_operator.webhooks.receive import HookVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Use cases that the route functions call. All requests of a process share them."""

    directory: AgentDirectory
    recall: SearchService
    contexts: ContextService
    remember: Remember
    items: Items
    working: WorkingMemory
    forget: ForgetUseCase
    access_counts: AccessCounts
    graphs: EntityGraphs
    hooks: HookVerifier
    distillation: DistillationQueue
    objects: AgentObjects
    meter: ApiMeter = field(default_factory=ApiMeter)


def build_services(  # noqa: PLR0913 # the dependencies of the use cases
    directory: AgentDirectory,
    open_reranker: OpenReranker,
    hooks: HookVerifier,
    open_model: OpenModel,
    measure: TextMeasure,
    *,
    objects: AgentObjects,
    meter: ApiMeter,
    writer: str,
) -> Services:
    """Build the use cases for the agents of a directory.

    Args:
        open_reranker: Returns the reranker of an agent that has one.
        open_model: Opens the language model of an agent that has one.
        measure: Tokenizer of contexts.
        writer: Unique name of this process in the access counts that it writes.
    """
    clock, graphs = hooks.clock, EntityGraphs()
    access_counts = AccessCounts(directory.open, clock, writer=writer)
    remember = Remember(meter.models.count_long_chain)
    recall = SearchService(
        clock, access_counts, lambda settings: MeteredReranker(open_reranker(settings), meter), graphs
    )
    return Services(
        directory=directory,
        recall=recall,
        contexts=ContextService(clock, access_counts, recall, measure),
        graphs=graphs,
        remember=remember,
        items=Items(clock),
        working=WorkingMemory(access_counts),
        forget=ForgetUseCase(clock, Eraser(clock, access_counts.forget)),
        access_counts=access_counts,
        hooks=hooks,
        objects=objects,
        distillation=DistillationQueue(directory, open_model, remember, meter.models),
        meter=meter,
    )


def services_of(request: Request) -> Services:
    """Return the use cases of the application that handles the request."""
    return cast(Services, request.app.state.services)


async def open_agent(request: Request, agent: str) -> Agent:
    """Open an agent for one use. Errors are those of `AgentDirectory.open`."""
    return await services_of(request).directory.open(agent)


def parse_id(sent: str) -> str:
    """Return the id in its stored spelling.

    Raises:
        NotFound: If it is not a UUID, and therefore no memory's id.
    """
    if not is_id(sent.lower()):
        raise NotFound(f"there is no memory {sent[:64]!r}: an ID is a UUID")
    return sent.lower()
