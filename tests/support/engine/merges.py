"""Merge memories in tests, like a consolidation does."""

from typing import Any

from agentmemory_operator.memories.draft import MemoryDraft, drafts_of
from agentmemory_operator.memories.incoming import IncomingMemory, clean
from agentmemory_operator.memories.predecessors import merge
from tests.support.engine.agents import World, vector_of


async def merged(world: World, content: str, *ids: str, **more: Any) -> str | None:
    """Merge memories into one; return its id, or None if the merge was abandoned."""
    said: dict[str, Any] = {"user_id": "u", "vector": vector_of(content), "idempotency_key": content} | more
    (draft,) = await drafts_of(world.agent, await clean(world.agent, [IncomingMemory(content=content, **said)]))
    assert isinstance(draft, MemoryDraft)
    row = await merge(world.agent, draft, ids, {})
    return row["id"] if row else None
