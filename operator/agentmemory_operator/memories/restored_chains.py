"""Repair the chains of a collection whose contents were replaced by a snapshot.

The contents are those of the restored snapshot, or of the safety snapshot from before an in-place restore. No pending
version in them was acknowledged when the snapshot was created, and its writer may have received an error since. So each
pending version is undone before any client can read the contents. A pending deletion is completed, so that the deleted
memory stays deleted.

A write in flight during the replacement compares revisions of the old contents, which may match the new ones. The fence
reports an unknown outcome to its writer. Such a write leaves one end of a link:

| in the collection | from | becomes |
|---|---|---|
| a version with a successor that is missing or deleted | a late link | linked to the next live version, or the head |
| a version with a predecessor that has no successor | a late step 3, or a late unlink | linked from that predecessor |

Each change is a compare-and-set. It may be repeated, and may run concurrently with writers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.chains import SWEEP_PAGE, abandon, complete, find_next_live, link, read_rows, relink
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, NOT_PENDING, Condition, Filter
from agentmemory_operator.memories.rules.ids import is_id
from agentmemory_operator.memories.rules.links import LINK_KEYS, neighbours, predecessors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload
from agentmemory_operator.ports.base import Json

_IS_LINKED: Condition = {"should": [{"must_not": [{"is_empty": {"key": key}}]} for key in LINK_KEYS]}
_UNFINISHED: Filter = {"must": [IS_PENDING]}
_LINKED: Filter = {"must": [NOT_DELETED, NOT_PENDING, _IS_LINKED]}

_Row = Mapping[str, Any]


async def repair_chains(agent: Agent) -> None:
    """Undo every pending version, complete every pending deletion, and repair links with one end.

    Raises:
        StoreUnavailable, OutcomeUnknown: If Qdrant is unavailable or writers interfere. Call again.
    """
    async for points in read_pages(agent, _page(_UNFINISHED)):
        for row in _readable(points):
            await (complete if TOMBSTONE_KEY in row else abandon)(agent, row)
    await repair_links(agent)


async def repair_links(agent: Agent) -> None:
    """Repair links of which a late write left one end. Skips pending rows.

    Raises:
        StoreUnavailable, OutcomeUnknown: If Qdrant is unavailable or writers interfere. Call again.
    """
    async for points in read_pages(agent, _page(_LINKED)):
        rows = _readable(points)
        near = await read_rows(agent, sorted({id_ for row in rows for id_ in neighbours(row)}))
        for row in rows:
            await _repair_successor(agent, row, near)
            for predecessor_id in predecessors(row):
                old = near.get(predecessor_id)
                if old is None or old.get("supersededById") or old.get("pending"):
                    continue
                if TOMBSTONE_KEY not in old or predecessor_id == row.get("identityId"):
                    await link(agent, old, row)


async def _repair_successor(agent: Agent, row: Payload, near: Mapping[str, _Row]) -> None:
    successor_id = row.get("supersededById")
    if successor_id is None:
        return
    successor = near.get(successor_id)
    is_dangling = successor is None or (TOMBSTONE_KEY in successor and not successor.get("pending"))
    if is_dangling:
        await relink(agent, row, await find_next_live(agent, row, row.get("identityId")))


def _readable(points: Sequence[Json]) -> list[Payload]:
    """Select rows with a revision and valid links: a snapshot may contain points that other tools wrote."""
    return [point["payload"] for point in points if _is_readable(point["payload"])]


def _is_readable(row: _Row) -> bool:
    predecessor_ids = row.get("supersedesIds") or []
    if not isinstance(predecessor_ids, list) or not isinstance(row.get("rev"), int):
        return False
    links = (row.get("supersedesId"), row.get("supersededById"), *predecessor_ids)
    return all(isinstance(id_, str) and is_id(id_) for id_ in (row.get("id"), *filter(None, links)))


def _page(filter_: Filter) -> dict[str, Any]:
    return {"filter": filter_, "limit": SWEEP_PAGE, "with_payload": True}
