"""Replace points by tombstones, without content or vectors, each only if it is unchanged since it was read.

All code empties points through this module. On Qdrant 1.18 an upsert keeps the vectors that it omits while a snapshot
of the collection is created. Therefore the same request also deletes them by name, from points that are tombstones by
then. A read afterwards confirms that they are deleted. The sweep finds tombstones that a crash left with vectors.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.lifecycle.rules.erasure import IS_TOMBSTONE, Row
from agentmemory_operator.memories.point_pages import conditional_upsert, read_pages
from agentmemory_operator.memories.rules.filters import NOT_DELETED, Condition, Filter, equals, narrow, point_filter
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.log_times import next_logged_at
from agentmemory_operator.memories.rules.record import ERASURE_KEY, LOGGED_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.ports.base import Json

BATCH = 100
# Maximum number of attempts. Each further attempt means that Qdrant kept vectors that a request had deleted.
MAX_ATTEMPTS = 5
ATTEMPT_S = 0.1

_READ_KEYS = ("id", "rev", "pending", *LINK_KEYS, "identityId", TOMBSTONE_KEY, ERASURE_KEY)
_EMPTY: Filter = {"must": [IS_TOMBSTONE, {"is_empty": {"key": "content"}}]}
# Selects only tombstones of this project. Points of another tool may have a `deletedAt`, but no boolean `pending`.
_OURS: Filter = {
    "must": [IS_TOMBSTONE, {"should": [{"key": "pending", "match": {"value": at}} for at in (False, True)]}]
}


@dataclass(frozen=True, slots=True)
class TombstoneWrite:
    """A tombstone, and the precondition for writing it over a point.

    Attributes:
        unchanged: Filter that matches the point as it was read.
    """

    tombstone: Payload
    unchanged: Filter


def tombstone_write(row: Row, tombstone: Payload, *conditions: Condition) -> TombstoneWrite:
    """Return the write of a tombstone over a row that must be unchanged and meet the conditions.

    A tombstone that is logged has a later time in the log than the row.
    """
    if LOGGED_KEY in tombstone:
        tombstone = tombstone | {LOGGED_KEY: next_logged_at(row, tombstone[LOGGED_KEY])}
    # Match a missing revision too, because a point that another tool wrote may have none.
    same_revision: Condition = equals("rev", row["rev"]) if row.get("rev") is not None else {"is_empty": {"key": "rev"}}
    return TombstoneWrite(
        tombstone, point_filter(row["id"], same_revision, *([] if TOMBSTONE_KEY in row else [NOT_DELETED]), *conditions)
    )


async def write_tombstones(agent: Agent, writes: Sequence[TombstoneWrite]) -> None:
    """Write tombstones over at most 100 points. Call `read_confirmed` to find out which writes took effect."""
    points = [{"id": grave.tombstone["id"], "vector": {}, "payload": grave.tombstone} for grave in writes]
    upserts = [conditional_upsert(point, grave.unchanged) for point, grave in zip(points, writes, strict=True)]
    emptied = delete_vectors_operation(agent.vectors, [grave.tombstone["id"] for grave in writes])
    await agent.store.batch(agent.alias, [*upserts, emptied], strong=True)


async def read_confirmed(agent: Agent, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> dict[str, Payload]:
    """Read rows by id, after confirming that the tombstones among them have no vectors. Deletes remaining vectors.

    Args:
        keys: Payload keys to read, which must include `TOMBSTONE_KEY`; None reads all.

    Raises:
        StoreUnavailable: If Qdrant still has vectors after 5 attempts; the sweep tries again.
    """
    for attempt in range(MAX_ATTEMPTS):
        await asyncio.sleep(ATTEMPT_S * attempt)
        points = await agent.store.retrieve(agent.alias, ids, keys=keys, vectors=True)
        unemptied = [point["id"] for point in points if TOMBSTONE_KEY in point["payload"] and point.get("vector")]
        if not unemptied:
            return {point["id"]: point["payload"] for point in points}
        await agent.store.batch(agent.alias, [delete_vectors_operation(agent.vectors, unemptied)], strong=True)
    raise StoreUnavailable(f"Qdrant still has the vectors of {len(unemptied)} deleted memories: retry")


async def tombstone_rows(agent: Agent, rows: Sequence[Row], leave: Callable[[Row], Payload]) -> dict[str, Payload]:
    """Replace rows by tombstones; return the rows that are tombstones now, by id, with the keys in `_READ_KEYS`.

    Args:
        leave: Returns the tombstone of a row.

    Raises:
        StoreUnavailable, OutcomeUnknown: If some rows may have been replaced. A repeated call replaces the rest.
    """
    tombstones: dict[str, Payload] = {}
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        await write_tombstones(agent, [tombstone_write(row, leave(row)) for row in part])
        stored = await read_confirmed(agent, [row["id"] for row in part], keys=_READ_KEYS)
        tombstones |= {id_: row for id_, row in stored.items() if TOMBSTONE_KEY in row}
    return tombstones


async def delete_remaining_vectors(agent: Agent, within: Filter | None = None, *, max_pages: int | None = None) -> int:
    """Delete the vectors of tombstones without content that still have some; return the number of these tombstones.

    Args:
        within: Filter of the points to check, of which only `must` is used; None checks all.
        max_pages: Maximum number of pages of 100 tombstones; None is no limit.

    Raises:
        StoreUnavailable: As in `read_confirmed`.
    """
    # Filter by `has_vector`, which is indexed, because there may be many tombstones, most of them without vectors.
    has_vector = {"should": [{"has_vector": name} for name in agent.vectors]}
    unemptied = narrow(_OURS, *(within or {}).get("must", ()), has_vector)
    body = {"filter": unemptied, "limit": BATCH, "with_payload": ["content"], "with_vector": False}
    count = pages = 0
    async for points in read_pages(agent, body):
        if ids := [point["id"] for point in points if "content" not in point["payload"]]:
            await agent.store.batch(agent.alias, [delete_vectors_operation(agent.vectors, ids)], strong=True)
            await read_confirmed(agent, ids, keys=[TOMBSTONE_KEY])
        count, pages = count + len(ids), pages + 1
        if pages == max_pages:
            break
    return count


def delete_vectors_operation(vectors: Iterable[str], ids: Sequence[str | int]) -> Json:
    """Return the operation that deletes these vectors of those points that are tombstones without content.

    Other points keep their vectors.
    """
    return {"delete_vectors": {"filter": narrow(_EMPTY, {"has_id": list(ids)}), "vector": list(vectors)}}
