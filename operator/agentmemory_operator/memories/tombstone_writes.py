"""Turn points into tombstones, which have neither content nor vectors, each unless it changed since it was read.

This is the one way to empty a point. On Qdrant 1.18 an upsert keeps the vectors that it leaves out where a snapshot of
the collection is being made. So they are also deleted by name, in the same request, from what is a tombstone then; and
what is read afterwards shows that they are gone. What a crash leaves is found by the sweep, by its vectors.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.lifecycle.rules.erasure import IS_TOMBSTONE, Row
from agentmemory_operator.memories.point_pages import read_pages, upsert_where
from agentmemory_operator.memories.rules.filters import NOT_DELETED, Condition, Filter, both, equals, only
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import ERASURE_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.ports.base import Json

BATCH = 100
# Each attempt but the first means that the engine kept vectors that it was told to delete.
MAX_ATTEMPTS = 5
ATTEMPT_S = 0.1

_READ_KEYS = ("id", "rev", "pending", *LINK_KEYS, "identityId", TOMBSTONE_KEY, ERASURE_KEY)
_EMPTY: Filter = {"must": [IS_TOMBSTONE, {"is_empty": {"key": "content"}}]}
# An adopted collection may have a `deletedAt` of its own; it has not our `pending`.
_OURS: Filter = {
    "must": [IS_TOMBSTONE, {"should": [{"key": "pending", "match": {"value": at}} for at in (False, True)]}]
}


@dataclass(frozen=True, slots=True)
class Grave:
    """A tombstone that is to be put in the place of a point.

    Attributes:
        unchanged: the filter of that point as it was read.
    """

    tombstone: Payload
    unchanged: Filter


def grave_of(row: Row, tombstone: Payload, *conditions: Condition) -> Grave:
    """The grave of a row that is to be as it was read, and to meet the conditions."""
    # A point that others have written may have no revision.
    same: Condition = equals("rev", row["rev"]) if row.get("rev") is not None else {"is_empty": {"key": "rev"}}
    return Grave(tombstone, only(row["id"], same, *([] if TOMBSTONE_KEY in row else [NOT_DELETED]), *conditions))


async def entomb(agent: Agent, graves: Sequence[Grave]) -> None:
    """Put tombstones in the place of at most 100 points; `read_emptied` then tells what became of each."""
    points = [{"id": grave.tombstone["id"], "vector": {}, "payload": grave.tombstone} for grave in graves]
    upserts = [upsert_where(point, grave.unchanged) for point, grave in zip(points, graves, strict=True)]
    emptied = emptying(agent.vectors, [grave.tombstone["id"] for grave in graves])
    await agent.store.batch(agent.alias, [*upserts, emptied], strong=True)


async def read_emptied(agent: Agent, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> dict[str, Payload]:
    """Rows by id, once those among them that are tombstones were seen without vectors.

    Raises:
        StoreUnavailable: the engine does not let go of them; the sweep tries again.
    """
    for attempt in range(MAX_ATTEMPTS):
        await asyncio.sleep(ATTEMPT_S * attempt)
        points = await agent.store.retrieve(agent.alias, ids, keys=keys, vectors=True)
        full = [point["id"] for point in points if TOMBSTONE_KEY in point["payload"] and point.get("vector")]
        if not full:
            return {point["id"]: point["payload"] for point in points}
        await agent.store.batch(agent.alias, [emptying(agent.vectors, full)], strong=True)
    raise _kept(len(full))


async def bury(agent: Agent, rows: Sequence[Row], leave: Callable[[Row], Payload]) -> dict[str, Payload]:
    """Turn rows into tombstones; return those of them that are tombstones now, by id.

    Args:
        leave: makes the tombstone of a row.

    Raises:
        StoreUnavailable: see `read_emptied`.
    """
    dead: dict[str, Payload] = {}
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        await entomb(agent, [grave_of(row, leave(row)) for row in part])
        there = await read_emptied(agent, [row["id"] for row in part], keys=_READ_KEYS)
        dead |= {id_: row for id_, row in there.items() if TOMBSTONE_KEY in row}
    return dead


async def empty_all(agent: Agent, among: Filter | None = None, *, most: int | None = None) -> int:
    """Empty tombstones that have vectors; return how many had.

    Args:
        among: the filter of those that are looked at; None is all.
        most: pages of 100 that are looked at; None is all of them.

    Raises:
        StoreUnavailable: see `read_emptied`.
    """
    # By what is indexed: there may be many tombstones, and none of them has vectors.
    has_vector = {"should": [{"has_vector": name} for name in agent.vectors]}
    having = both(_OURS, *(among or {}).get("must", ()), has_vector)
    body = {"filter": having, "limit": BATCH, "with_payload": ["content"], "with_vector": False}
    count = pages = 0
    async for points in read_pages(agent, body):
        if ids := [point["id"] for point in points if "content" not in point["payload"]]:
            await agent.store.batch(agent.alias, [emptying(agent.vectors, ids)], strong=True)
            await read_emptied(agent, ids, keys=[TOMBSTONE_KEY])
        count, pages = count + len(ids), pages + 1
        if pages == most:
            break
    return count


def emptying(vectors: Iterable[str], ids: Sequence[str | int]) -> Json:
    """The operation that takes all vectors from those of some points that are tombstones."""
    return {"delete_vectors": {"filter": both(_EMPTY, {"has_id": list(ids)}), "vector": list(vectors)}}


def _kept(count: int) -> StoreUnavailable:
    return StoreUnavailable(f"Qdrant still has the vectors of {count} deleted memories: retry")
