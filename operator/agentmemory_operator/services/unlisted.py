"""Memories of types that an object lists no more: counted when that may have changed, not at every pass."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.conditions import Reason, is_true
from agentmemory_operator.domain.effective import effective_types
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.ports import CollectionStore


async def count_unlisted(memory: AgentMemory, observed: Observed, store: CollectionStore) -> Mapping[str, int]:
    """Return how many memories there are of each type that the object does not list.

    New ones are refused, so only a change of the object makes any: it is asked after one, after a failure, and as long
    as there are some.
    """
    types = effective_types(memory)
    is_countable = observed.points > 0 and "type" in dict(observed.collection.indexes)
    if not types or not is_countable or not _is_due(memory.status, memory.metadata.generation):
        return {}
    return await store.count_unlisted(observed.physical, [type_.name for type_ in types])


def _is_due(status: Mapping[str, Any], generation: int) -> bool:
    conditions = status.get("conditions") or []
    is_known = status.get("observedGeneration") == generation and is_true(conditions, "Ready")
    return not is_known or any(condition["reason"] == Reason.TYPE_REMOVED for condition in conditions)
