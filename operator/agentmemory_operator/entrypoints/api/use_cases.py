"""What every module of routes needs: the use cases behind them, and how a path names a memory."""

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from agentmemory_operator.domain.identity import is_id
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports import Clock, Reranker
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.directory import AgentDirectory
from agentmemory_operator.services.drafts import Drafting
from agentmemory_operator.services.edits import Edits
from agentmemory_operator.services.erasing import Erasing
from agentmemory_operator.services.exports import Exports
from agentmemory_operator.services.forgetting import Forgetting
from agentmemory_operator.services.hierarchies import Hierarchies
from agentmemory_operator.services.histories import Histories
from agentmemory_operator.services.imports import Imports
from agentmemory_operator.services.items import Items
from agentmemory_operator.services.memories import Memories
from agentmemory_operator.services.metered_reranker import MeteredReranker
from agentmemory_operator.services.recall import Recall
from agentmemory_operator.services.remember import Remember
from agentmemory_operator.services.sessions import Sessions
from agentmemory_operator.services.statistics import Counting
from agentmemory_operator.services.windows import Windows
from agentmemory_operator.services.working import WorkingMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The use cases behind the routes."""

    directory: AgentDirectory
    recall: Recall
    remember: Remember
    memories: Memories
    edits: Edits
    histories: Histories
    hierarchies: Hierarchies
    items: Items
    working: WorkingMemory
    sessions: Sessions
    counting: Counting
    forgetting: Forgetting
    exports: Exports
    imports: Imports
    access_counts: AccessCounts
    meter: ApiMeter = field(default_factory=ApiMeter)


def compose(directory: AgentDirectory, reranker: Reranker, *, clock: Clock, meter: ApiMeter, writer: str) -> Services:
    """Return the use cases over the agents of a directory.

    Args:
        writer: names this process in the access counts that it writes; no other process has it.
    """
    chains, windows = Chains(clock), Windows(clock)
    memories = Memories(clock, chains, windows)
    histories = Histories(clock, memories, chains)
    access_counts = AccessCounts(directory.open, clock, writer=writer)
    working = WorkingMemory(clock, Drafting(clock, windows), chains, access_counts)
    return Services(
        directory=directory,
        recall=Recall(clock, access_counts, MeteredReranker(reranker, meter)),
        remember=Remember(clock, chains, windows),
        memories=memories,
        edits=Edits(clock, memories),
        histories=histories,
        hierarchies=Hierarchies(clock, memories, histories),
        items=Items(clock, windows),
        working=working,
        sessions=Sessions(memories, working),
        counting=Counting(clock),
        forgetting=Forgetting(clock, Erasing(clock, chains, windows, access_counts.forget)),
        exports=Exports(clock, chains),
        imports=Imports(clock, chains, windows),
        access_counts=access_counts,
        meter=meter,
    )


def services_of(request: Request) -> Services:
    """Return the use cases of the application that got the request."""
    return cast(Services, request.app.state.services)


def known_id(sent: str) -> str:
    """Return the id in its stored spelling; what is no id belongs to no memory."""
    if not is_id(sent.lower()):
        raise NotFound(f"there is no memory {sent[:64]!r}: an id is a UUID")
    return sent.lower()
