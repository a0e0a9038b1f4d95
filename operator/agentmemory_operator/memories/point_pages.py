"""Read and change rows: the payloads of an agent's points, including tombstones and pending ones."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories.rules.filters import NOT_DELETED, Condition, Filter, equals, point_filter
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.log_times import next_logged_at
from agentmemory_operator.memories.rules.record import (
    EDIT_MARK_KEY,
    ERASURE_KEY,
    LOGGED_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    Payload,
    erasure_trace,
)
from agentmemory_operator.memories.zone_access import with_encrypted_fields
from agentmemory_operator.ports.base import Json

T = TypeVar("T")

# Maximum number of attempts. Each further attempt means that a memory was deleted while a call read its page.
MAX_ATTEMPTS = 10


def page_limit(agent: Agent, limit: int, *, beyond: int = 0) -> int:
    """Return the number of points of a page: `limit`, or less if Qdrant's strict mode has a lower limit.

    Args:
        beyond: Number of points that the query reads in addition to the page.
    """
    max_points = agent.settings.ranking.max_query_limit
    return limit if max_points is None else max(1, min(limit, max_points - beyond))


async def query_all(agent: Agent, bodies: Sequence[Json]) -> list[list[Json]]:
    """Return the points of each query, from one request, or from several if Qdrant's strict mode has a lower limit."""
    limit = agent.settings.ranking.max_batched_searches or max(1, len(bodies))
    parts = [await agent.store.query_batch(agent.alias, part) for part in chunks_of(bodies, limit)]
    return [points for part in parts for points in part]


async def read_row(agent: Agent, memory_id: str) -> Payload | None:
    """Return a point's payload, or None if the point does not exist."""
    points = await agent.store.retrieve(agent.alias, [memory_id])
    payload: Payload | None = points[0]["payload"] if points else None
    return payload


async def change_row(
    agent: Agent, row: Mapping[str, Any], changes: Mapping[str, Any], *conditions: Condition, now_ms: int
) -> None:
    """Merge changes into a row if its `rev` is as read and the conditions hold. Read the row to learn the outcome.

    A change that is logged has a later time in the log than the last one.

    Raises:
        KeysUnavailable: If a changed key is encrypted and the row is locked.
    """
    payload = {**with_encrypted_fields(row, dict(changes)), "rev": row["rev"] + 1, "updatedAt": now_ms}
    if LOGGED_KEY in payload:
        payload[LOGGED_KEY] = next_logged_at(row, payload[LOGGED_KEY])
    unchanged = point_filter(row["id"], equals("rev", row["rev"]), *conditions)
    await agent.store.set_payload(agent.alias, payload, unchanged, strong=True)


def conditional_upsert(point: Json, unchanged: Filter) -> Json:
    """Return the operation that replaces a point if it matches `unchanged`.

    The same batch must delete the vectors that the new point omits: `replacement_operations` does so for live points,
    `tombstone_writes.write_tombstones` for tombstones.
    """
    return {"upsert": {"points": [point], "update_filter": unchanged, "update_mode": "update_only"}}


def rewrite_operations(points: Iterable[Json]) -> list[Json]:
    """Return the operations that replace live points by their next `rev`, one operation for each `rev`."""
    by_rev: defaultdict[int, list[Json]] = defaultdict(list)
    for point in points:
        by_rev[point["payload"]["rev"] - 1].append(point)
    return [
        {
            "upsert": {
                "points": rewritten,
                "update_filter": {"must": [equals("rev", rev), NOT_DELETED]},
                "update_mode": "update_only",
            }
        }
        for rev, rewritten in by_rev.items()
    ]


def replacement_operations(
    agent: Agent, point: Json, unchanged: Filter, *, replaced: Payload | None = None
) -> list[Json]:
    """Return the operations that replace a stored point by a live one, if it matches `unchanged`.

    Vectors that the new point omits are also deleted by name, because Qdrant 1.18 keeps them while a snapshot is
    created. If Qdrant applies only the first operation of the batch, the stored point must not lose vectors. Therefore
    a point with an edit mark is written first, and `repair._sweep_vectors` deletes the vectors that its zone does not
    allow. A point without a mark replaces a tombstone, or an item whose vector the agent does not use. Then the vectors
    are deleted first, so that the new point inherits none.

    Args:
        replaced: Payload of the stored point. If it is the tombstone of an erasure, a separate trace point records the
            erased id: a copy that is restored later erases that memory again. None writes no trace.
    """
    if replaced and ERASURE_KEY in replaced:
        trace = erasure_trace(
            replaced["id"], replaced[ERASURE_KEY], replaced[TOMBSTONE_KEY], now_ms=agent.clock.now_ms()
        )
        trace_upsert = {
            "upsert": {"points": [{"id": trace["id"], "vector": {}, "payload": trace}], "update_mode": "insert_only"}
        }
        # Set a time after the erasure, despite clock drift, so that the trace never covers the new memory.
        stored = max(point["payload"][STORED_KEY], replaced[TOMBSTONE_KEY] + 1)
        later = point | {"payload": point["payload"] | {STORED_KEY: stored}}
        return [trace_upsert, *replacement_operations(agent, later, unchanged)]
    vector = point["vector"]
    omitted = [name for name in agent.vectors if name not in (vector if isinstance(vector, dict) else ("",))]
    upsert, mark = conditional_upsert(point, unchanged), point["payload"].get(EDIT_MARK_KEY)
    if omitted and mark:
        written = point_filter(point["id"], equals(EDIT_MARK_KEY, mark))
        return [upsert, {"delete_vectors": {"filter": written, "vector": omitted}}]
    return [{"delete_vectors": {"filter": unchanged, "vector": omitted}}, upsert] if omitted else [upsert]


async def replace_row(agent: Agent, point: Json, unchanged: Filter, *, replaced: Payload) -> None:
    """Replace a row by a live point, if it matches `unchanged`. Read the row to learn the outcome.

    The point gets its time in the change log: that of this call, or later than that of the row.
    """
    point["payload"][LOGGED_KEY] = next_logged_at(replaced, agent.clock.now_ms())
    await agent.store.batch(
        agent.alias, replacement_operations(agent, point, unchanged, replaced=replaced), strong=True
    )


async def read_pages(agent: Agent, body: Json) -> AsyncIterator[list[Json]]:
    """Yield the points of a scroll, page by page. The page size respects the limit of Qdrant's strict mode."""
    page = body | {"limit": page_limit(agent, body["limit"])}
    while True:
        points, following = await agent.store.scroll(agent.alias, page)
        yield points
        if following is None:
            return
        page = page | {"offset": following}


async def read_memories(agent: Agent, body: Json) -> tuple[list[Json], Any]:
    """Read one page of a scroll whose filter excludes tombstones; return its points and the offset of the next page.

    Raises:
        StoreUnavailable: As in `read_without_tombstones`.
    """
    keys = body["with_payload"]
    request = body | {"with_payload": [*keys, TOMBSTONE_KEY]} if isinstance(keys, list) else body
    return await read_without_tombstones(lambda: agent.store.scroll(agent.alias, request), lambda page: page[0])


async def read_without_tombstones(read: Callable[[], Awaitable[T]], points_of: Callable[[T], Sequence[Json]]) -> T:
    """Repeat a read until its result has no tombstones. The filter of the read must exclude them.

    Qdrant first matches the points of a search or scroll and then reads their payloads. A memory that is deleted in
    between is returned as a tombstone.

    Raises:
        StoreUnavailable: If memories were deleted during each of 10 attempts.
    """
    for _ in range(MAX_ATTEMPTS):
        found = await read()
        if not any(TOMBSTONE_KEY in point["payload"] for point in points_of(found)):
            return found
    raise StoreUnavailable("memories are being deleted concurrently: retry")
