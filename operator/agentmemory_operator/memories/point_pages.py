"""Rows of an agent: the payloads of its points, tombstones and pending ones included, read and changed one by one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories.rules.filters import Condition, Filter, equals, only
from agentmemory_operator.memories.rules.record import (
    ERASURE_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    Payload,
    erasure_trace,
)
from agentmemory_operator.memories.zoned import whole
from agentmemory_operator.ports.base import Json

T = TypeVar("T")

# Each attempt but the first means that somebody deleted one of a page's memories between two moments of one call.
MAX_ATTEMPTS = 10


async def read_row(agent: Agent, memory_id: str) -> Payload | None:
    """A point's payload; None when there is no such point."""
    points = await agent.store.retrieve(agent.alias, [memory_id])
    payload: Payload | None = points[0]["payload"] if points else None
    return payload


async def change_row(
    agent: Agent, row: Mapping[str, Any], changes: Mapping[str, Any], *conditions: Condition, now_ms: int
) -> None:
    """Change a row if it still is as it was read, and the conditions hold; the caller reads back.

    Raises:
        KeysUnavailable: what would change is sealed, and the row is locked.
    """
    payload = {**whole(row, dict(changes)), "rev": row["rev"] + 1, "updatedAt": now_ms}
    unchanged = only(row["id"], equals("rev", row["rev"]), *conditions)
    await agent.store.set_payload(agent.alias, payload, unchanged, strong=True)


def upsert_where(point: Json, unchanged: Filter) -> Json:
    """The operation that puts a point in the place of what lies there, if that is as it was read.

    Vectors of the collection that the point leaves out have to be deleted in the same batch: `replacing` does so for
    a living point, `tombstone_writes.emptying` for a tombstone.
    """
    return {"upsert": {"points": [point], "update_filter": unchanged, "update_mode": "update_only"}}


def replacing(agent: Agent, point: Json, unchanged: Filter, *, replaced: Payload | None = None) -> list[Json]:
    """The operations that put a living point in the place of what lies there, if that is as it was read.

    What the new one leaves out of the collection's vectors is deleted by name before: Qdrant 1.18 keeps it where a
    snapshot is being made. That what lies there loses it first does no harm: nobody searches for it.

    Args:
        replaced: What lies there. If that is the tombstone of an erasure, its trace is kept in a point of its own: by
            it a restored copy loses what was erased under this id.
    """
    if replaced and ERASURE_KEY in replaced:
        trace = erasure_trace(
            replaced["id"], replaced[ERASURE_KEY], replaced[TOMBSTONE_KEY], now_ms=agent.clock.now_ms()
        )
        kept = {
            "upsert": {"points": [{"id": trace["id"], "vector": {}, "payload": trace}], "update_mode": "insert_only"}
        }
        # Later than the erasure, whatever the clocks: so the trace never names the new memory.
        stored = max(point["payload"][STORED_KEY], replaced[TOMBSTONE_KEY] + 1)
        later = point | {"payload": point["payload"] | {STORED_KEY: stored}}
        return [kept, *replacing(agent, later, unchanged)]
    vector = point["vector"]
    left_out = [name for name in agent.vectors if name not in (vector if isinstance(vector, dict) else ("",))]
    upsert = upsert_where(point, unchanged)
    return [{"delete_vectors": {"filter": unchanged, "vector": left_out}}, upsert] if left_out else [upsert]


async def replace_row(agent: Agent, point: Json, unchanged: Filter, *, replaced: Payload) -> None:
    """Put a living point in the place of a row, if that is as it was read; the caller reads back."""
    await agent.store.batch(agent.alias, replacing(agent, point, unchanged, replaced=replaced), strong=True)


async def read_pages(agent: Agent, body: Json) -> AsyncIterator[list[Json]]:
    """Yield the points of a scroll, page by page, none larger than the engine's strict mode allows."""
    most = agent.settings.ranking.max_query_limit
    page = body | ({"limit": min(body["limit"], most)} if most else {})
    while True:
        points, following = await agent.store.scroll(agent.alias, page)
        yield points
        if following is None:
            return
        page = page | {"offset": following}


async def read_memories(agent: Agent, body: Json) -> tuple[list[Json], Any]:
    """A page of a scroll whose filter lets no tombstones through, and the next page's offset.

    Raises:
        StoreUnavailable: as `read_whole`.
    """
    keys = body["with_payload"]
    asked = body | {"with_payload": [*keys, TOMBSTONE_KEY]} if isinstance(keys, list) else body
    return await read_whole(lambda: agent.store.scroll(agent.alias, asked), lambda page: page[0])


async def read_whole(read: Callable[[], Awaitable[T]], points_of: Callable[[T], Sequence[Json]]) -> T:
    """What is read, without tombstones, which no filter here lets through.

    The engine finds the points of a search first and reads their payloads then, with nothing between that keeps others
    from deleting one; of lists it promises no more.

    Raises:
        StoreUnavailable: memories were deleted in between time and again.
    """
    for _ in range(MAX_ATTEMPTS):
        found = await read()
        if not any(TOMBSTONE_KEY in point["payload"] for point in points_of(found)):
            return found
    raise StoreUnavailable("memories are being deleted concurrently: retry")
