"""Hierarchies of memories: the children of a memory, and the tree below it.

A child stores the id of one version of its parent. It stays a child when that version is superseded: the children of a
memory are those of all its versions. Each version of a child stores its own parent; only the parent that the head
stores is used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.history import read_version_ids
from agentmemory_operator.memories.point_pages import read_memories, read_row
from agentmemory_operator.memories.rules.criteria import FIELDS, AnyOf, Equals
from agentmemory_operator.memories.rules.expiry import EXPIRY_KEYS, is_expired
from agentmemory_operator.memories.rules.filters import Selection, equals_any, visible_filter
from agentmemory_operator.memories.rules.record import PUBLIC_PAYLOAD, TOMBSTONE_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.memories.stored_memories import ListRequest, MemoryPage, list_page, read_own_row
from agentmemory_operator.spec.memory_types import MemoryType

_Row = Mapping[str, Any]


@dataclass(slots=True)
class Node:
    """A memory with the nodes below it, oldest first."""

    record: MemoryRecord
    children: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """A memory with the tree below it.

    Attributes:
        is_truncated: True if memories are missing because of the depth or the limit.
    """

    root: Node
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRequest:
    """Owner and maximum size of the tree to read.

    Attributes:
        depth: Maximum number of levels below the memory, 1..32.
        limit: Maximum number of memories below it, 1..1,000.
    """

    user_id: str
    depth: int
    limit: int


async def list_children(
    agent: Agent, memory_id: str, *, user_id: str, limit: int, cursor: str | None = None
) -> MemoryPage:
    """Return a page of the direct children of a memory, newest first.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
        RequestInvalid: If the cursor does not belong to this list.
    """
    versions = await _versions(agent, await read_own_row(agent, memory_id, user_id=user_id))
    criterion = AnyOf(tuple(Equals(FIELDS["parent_id"], version) for version in versions))
    selection = Selection(user_id=user_id, criterion=criterion)
    return await list_page(agent, ListRequest(selection=selection, limit=limit, cursor=cursor))


async def read_tree(agent: Agent, memory_id: str, request: TreeRequest) -> MemoryTree:
    """Read a memory and the tree below it, level by level up to the limits.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
    """
    row = await read_own_row(agent, memory_id, user_id=request.user_id)
    root = Node(record_of(row))
    # Parent node by the id of each version of its memory.
    level = dict.fromkeys(await _versions(agent, row), root)
    visited, budget = set(level), request.limit
    for _ in range(request.depth):
        rows = await _below(agent, level, request, visited=visited, limit=budget + 1)
        following: dict[str, Node] = {}
        for child in rows[:budget]:
            node = Node(record_of(child))
            level[child["parentId"]].children.append(node)
            following |= dict.fromkeys(await _versions(agent, child), node)
        if len(rows) > budget or not following:
            return MemoryTree(root, is_truncated=len(rows) > budget)
        visited |= following.keys()
        level, budget = following, budget - len(rows)
    return MemoryTree(root, is_truncated=bool(await _below(agent, level, request, visited=visited, limit=1)))


async def _below(
    agent: Agent, parents: Iterable[str], request: TreeRequest, *, visited: Iterable[str], limit: int
) -> list[dict[str, Any]]:
    """Return up to `limit` rows with one of these parents, oldest first. Of more rows, Qdrant selects any.

    Args:
        visited: Ids of rows to leave out: a cycle leads to them again.
    """
    selection = Selection(user_id=request.user_id)
    filter_ = visible_filter(selection, agent.clock.now_ms(), agent.settings.ranking.endings)
    filter_["must"] += [equals_any("parentId", sorted(parents)), {"must_not": [{"has_id": sorted(visited)}]}]
    body = {"filter": filter_, "limit": limit, "with_payload": PUBLIC_PAYLOAD, "with_vector": False}
    points, _ = await read_memories(agent, body)
    return sorted((point["payload"] for point in points), key=lambda row: (row["createdAt"], row["id"]))


async def _versions(agent: Agent, row: _Row) -> Sequence[str]:
    """Return the ids of the versions of a memory, at most 2,000."""
    if not (row.get("supersedesId") or row.get("supersededById")):
        return (row["id"],)
    return await read_version_ids(agent, row)


# Maximum number of levels, and of versions per memory, in the search for a cycle.
MAX_LEVELS = 1_000

_KEYS = ("userId", "pending", TOMBSTONE_KEY, *EXPIRY_KEYS)


async def find_missing_parents(
    agent: Agent, children: Mapping[int, tuple[str, str]], now_ms: int
) -> dict[int, AgentMemoryError]:
    """Return a NotFound error for each child whose parent is missing, deleted, pending, expired, or of another user.

    Args:
        children: User and parent id, by the child's position in its request; the errors have the same keys.
    """
    parent_ids = sorted({parent for _, parent in children.values()})
    points = await agent.store.retrieve(agent.alias, parent_ids, keys=_KEYS) if parent_ids else []
    rows = {point["id"]: point["payload"] for point in points}
    return {
        index: NotFound(f"parent_id: this user has no memory {parent}")
        for index, (user, parent) in children.items()
        if not _is_visible(rows.get(parent), user, agent.settings.ranking.endings, now_ms=now_ms)
    }


async def check_hierarchy(agent: Agent, record: MemoryRecord) -> None:
    """Raise if the parent of a memory is the memory that it supersedes, or is below that memory.

    Memories without a parent, or that supersede none, always pass.

    Raises:
        RequestInvalid: If the hierarchy would have such a cycle, or the parent is more than 1,000 levels deep.
    """
    superseded_id, parent = record.supersedes_id, record.parent_id
    if superseded_id is None or parent is None:
        return
    level = await _level_above(agent, parent, superseded_id)
    if level is not None:
        raise _cycle_error(record, is_direct=level == 0)


async def check_parent(agent: Agent, parent_id: str, *, own_id: str, user_id: str) -> None:
    """Raise unless an item may have this parent.

    Raises:
        NotFound: If the parent is missing, deleted, pending, expired, or of another user.
        RequestInvalid: If the parent is the item itself, is below it, or is more than 1,000 levels deep.
    """
    if own_id == parent_id:
        raise RequestInvalid(
            [FieldError("parent_id", f"{parent_id} is the item itself: a memory cannot be its own parent")]
        )
    missing = await find_missing_parents(agent, {0: (user_id, parent_id)}, agent.clock.now_ms())
    if missing:
        raise missing[0]
    if await _level_above(agent, parent_id, own_id) is not None:
        message = f"{parent_id} is below the item: the hierarchy would have a cycle"
        raise RequestInvalid([FieldError("parent_id", message)])


async def _level_above(agent: Agent, parent_id: str, memory_id: str) -> int | None:
    """Return how many levels above `parent_id` a memory is, 0 for the parent itself; None if it is not an ancestor.

    Raise RequestInvalid if the chain of parents has more than 1,000 levels.
    """
    parent: str | None = parent_id
    for level in range(MAX_LEVELS):
        head = await _head_of(agent, parent) if parent else None
        if head is None:
            return None
        if memory_id in (parent, head["id"]):
            return level
        parent = head.get("parentId")
    raise RequestInvalid([FieldError("parent_id", f"{parent_id} is more than {MAX_LEVELS:,} levels deep")])


async def _head_of(agent: Agent, memory_id: str) -> Payload | None:
    """Return the last existing version of a memory, after at most 1,000 links; None if the memory does not exist."""
    row = await read_row(agent, memory_id)
    for _ in range(MAX_LEVELS):
        next_id = row.get("supersededById") if row else None
        successor = await read_row(agent, next_id) if next_id else None
        if successor is None:
            break
        row = successor
    return row


def _cycle_error(record: MemoryRecord, *, is_direct: bool) -> RequestInvalid:
    reason = "a memory cannot be its own parent" if is_direct else "the hierarchy would have a cycle"
    relation = "the memory" if is_direct else "below the memory"
    message = f"{record.parent_id} is {relation} that this one supersedes ({record.supersedes_id}): {reason}"
    return RequestInvalid([FieldError("parent_id", message)])


def _is_visible(row: Payload | None, user_id: str, types: tuple[MemoryType, ...], *, now_ms: int) -> bool:
    if row is None or TOMBSTONE_KEY in row or row.get("pending"):
        return False
    return bool(row["userId"] == user_id and not is_expired(row, types, now_ms))
