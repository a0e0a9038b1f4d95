"""Merge memories in tests, like a consolidation does."""

from typing import Any

from agentmemory_operator.memories.draft import MemoryDraft, build_drafts
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.predecessors import merge
from tests.support.engine.agents import World, vector_of


async def merge_memories(world: World, content: str, *ids: str, **more: Any) -> str | None:
    """Merge memories into one; return its id, or None if the merge was abandoned."""
    said: dict[str, Any] = {"user_id": "u", "vector": vector_of(content), "idempotency_key": content} | more
    (draft,) = await build_drafts(
        world.agent, await scrub_memories(world.agent, [IncomingMemory(content=content, **said)])
    )
    assert isinstance(draft, MemoryDraft)
    row = await merge(world.agent, draft, ids, {})
    return row["id"] if row else None
