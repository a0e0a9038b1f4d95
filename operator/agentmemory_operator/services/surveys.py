"""What is looked at of a collection that somebody wants rebuilt, so that the plan can say what it costs."""

from dataclasses import replace

from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.desired import Terms
from agentmemory_operator.domain.planning import Plan, has_rebuild
from agentmemory_operator.domain.rebuild_costs import SAMPLED, Room, Survey
from agentmemory_operator.errors import NotFound, StoreRejected
from agentmemory_operator.ports import CollectionStore


async def surveyed(terms: Terms, plan: Plan, observed: Observed | None, *, store: CollectionStore, room: Room) -> Terms:
    """Return the terms with what the costs of a plan's Rebuild depend on; as they are where it has none.

    Raises:
        StoreUnavailable: the server is away.
    """
    if observed is None or not has_rebuild(plan):
        return terms
    try:
        lengths = await store.content_lengths(observed.physical, SAMPLED)
    except (NotFound, StoreRejected):
        # The costs are an estimate: what the server does not tell of them holds nothing up.
        lengths = ()
    return replace(terms, survey=Survey(tuple(lengths), room))
