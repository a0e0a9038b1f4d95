"""The memories that the names of a query lead to, in the scopes that the search includes and in no other."""

from collections.abc import Mapping

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.entities.rules.activation import found_by_query
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.search.rules.hybrid import NOTHING_ALONG
from agentmemory_operator.spec.effective.entities import EntitySettings
from agentmemory_operator.spec.presets.table import Fusion


async def memories_along(
    graphs: EntityGraphs, agent: Agent, request: SearchRequest, fusion: Fusion | None
) -> Mapping[str, float]:
    """Activation by the memory's id, the most activated first; none where the search does not follow entities.

    Args:
        fusion: how the search ranks by words too; entities are followed where it fuses.

    Raises:
        StoreUnavailable: Qdrant is away.
    """
    settings, lists = agent.settings.entities or EntitySettings(), agent.entity_lists
    if lists is None or request.query is None or fusion is None or fusion.method == "None":
        return NOTHING_ALONG
    found = await graphs.of(agent, request.selection.owners)
    return found_by_query(found, request.query, lists, settings.spreading)
