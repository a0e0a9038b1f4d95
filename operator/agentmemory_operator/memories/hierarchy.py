"""Memories below others: the children of a memory, and the tree of all that is below it.

A child names one version of its parent, and stays a child when the parent is superseded: what is below a memory is what
names any of its versions. Only the newest version of a child counts, and each states its parent itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.history import version_ids
from agentmemory_operator.memories.point_pages import read_memories, read_row
from agentmemory_operator.memories.rules.criteria import FIELDS, AnyOf, Equals
from agentmemory_operator.memories.rules.expiry import EXPIRY_KEYS, is_expired
from agentmemory_operator.memories.rules.filters import Selection, equals_any, visible
from agentmemory_operator.memories.rules.record import SHOWN, TOMBSTONE_KEY, MemoryRecord, Payload, record_of
from agentmemory_operator.memories.stored import ListRequest, MemoryPage, list_page, own_row
from agentmemory_operator.spec.memory_types import MemoryType

_Row = Mapping[str, Any]


@dataclass(slots=True)
class Node:
    """A memory and what is below it, oldest first."""

    record: MemoryRecord
    children: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """A memory with all that is below it; truncated: there is more, deeper or beside."""

    root: Node
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRequest:
    """How much of a tree to read.

    Attributes:
        depth: levels below the memory, 1..32.
        limit: memories below it, 1..1,000.
    """

    user_id: str
    depth: int
    limit: int


async def list_children(
    agent: Agent, memory_id: str, *, user_id: str, limit: int, cursor: str | None = None
) -> MemoryPage:
    """A page of the memories right below one, newest first.

    Raises:
        NotFound: unknown, another user's, expired or deleted.
        RequestInvalid: the cursor is not one of this list.
    """
    versions = await _versions(agent, await own_row(agent, memory_id, user_id=user_id))
    below = AnyOf(tuple(Equals(FIELDS["parent_id"], version) for version in versions))
    selection = Selection(user_id=user_id, criterion=below)
    return await list_page(agent, ListRequest(selection=selection, limit=limit, cursor=cursor))


async def tree_below(agent: Agent, memory_id: str, request: TreeRequest) -> MemoryTree:
    """A memory with what is below it, level by level until there are enough.

    Raises:
        NotFound: unknown, another user's, expired or deleted.
    """
    row = await own_row(agent, memory_id, user_id=request.user_id)
    root = Node(record_of(row))
    # Which node a child belongs to, by each version of that node's memory.
    level = dict.fromkeys(await _versions(agent, row), root)
    seen, room = set(level), request.limit
    for _ in range(request.depth):
        rows = [each for each in await _below(agent, level, request, limit=room + 1) if each["id"] not in seen]
        following: dict[str, Node] = {}
        for each in rows[:room]:
            node = Node(record_of(each))
            level[each["parentId"]].children.append(node)
            following |= dict.fromkeys(await _versions(agent, each), node)
        if len(rows) > room or not following:
            return MemoryTree(root, is_truncated=len(rows) > room)
        seen |= following.keys()
        level, room = following, room - len(rows)
    return MemoryTree(root, is_truncated=bool(await _below(agent, level, request, limit=1)))


async def _below(agent: Agent, parents: Iterable[str], request: TreeRequest, *, limit: int) -> list[dict[str, Any]]:
    """The rows that name one of these parents, oldest first, at most `limit` of them."""
    selection = Selection(user_id=request.user_id)
    filter_ = visible(selection, agent.clock.now_ms(), agent.settings.ranking.endings)
    filter_["must"].append(equals_any("parentId", sorted(parents)))
    body = {"filter": filter_, "limit": limit, "with_payload": SHOWN, "with_vector": False}
    points, _ = await read_memories(agent, body)
    return sorted((point["payload"] for point in points), key=lambda row: (row["createdAt"], row["id"]))


async def _versions(agent: Agent, row: _Row) -> Sequence[str]:
    """The ids of all versions of a memory."""
    if not (row.get("supersedesId") or row.get("supersededById")):
        return (row["id"],)
    return await version_ids(agent, row)


# Levels, and versions of one memory, that are looked through for a circle.
MOST_STEPS = 1_000

_KEYS = ("userId", "pending", TOMBSTONE_KEY, *EXPIRY_KEYS)


async def missing_parents(
    agent: Agent, children: Mapping[int, tuple[str, str]], now_ms: int
) -> dict[int, AgentMemoryError]:
    """NotFound for each child whose parent is no memory of its user, by place.

    Args:
        children: user and parent by place.
    """
    wanted = sorted({parent for _, parent in children.values()})
    points = await agent.store.retrieve(agent.alias, wanted, keys=_KEYS) if wanted else []
    rows = {point["id"]: point["payload"] for point in points}
    return {
        place: NotFound(f"parent_id: this user has no memory {parent}")
        for place, (user, parent) in children.items()
        if not _is_there(rows.get(parent), user, agent.settings.ranking.endings, now_ms=now_ms)
    }


async def check_hierarchy(agent: Agent, record: MemoryRecord) -> None:
    """Refuse a parent that is what the memory supersedes, or is below it.

    Raises:
        RequestInvalid: it says which of the two.
    """
    own, parent = record.supersedes_id, record.parent_id
    if own is None or parent is None:
        return
    level = await _level_above(agent, parent, own)
    if level is not None:
        raise _circle(record, is_direct=level == 0)


async def check_parent(agent: Agent, parent_id: str, *, own_id: str, user_id: str) -> None:
    """Refuse a parent of an item that is no memory of its user, the item itself, or below it.

    Raises:
        NotFound, RequestInvalid: which of them.
    """
    if own_id == parent_id:
        raise RequestInvalid(
            [FieldError("parent_id", f"{parent_id} is the item itself: a memory cannot be its own parent")]
        )
    missing = await missing_parents(agent, {0: (user_id, parent_id)}, agent.clock.now_ms())
    if missing:
        raise missing[0]
    if await _level_above(agent, parent_id, own_id) is not None:
        message = f"{parent_id} is below the item: the hierarchy would have a cycle"
        raise RequestInvalid([FieldError("parent_id", message)])


async def _level_above(agent: Agent, parent_id: str, own_id: str) -> int | None:
    """How many levels above a parent a memory is met; None where it is not."""
    parent: str | None = parent_id
    for level in range(MOST_STEPS):
        head = await _head_of(agent, parent) if parent else None
        if head is None:
            return None
        if own_id in (parent, head["id"]):
            return level
        parent = head.get("parentId")
    raise RequestInvalid([FieldError("parent_id", f"{parent_id} is more than {MOST_STEPS:,} levels deep")])


async def _head_of(agent: Agent, memory_id: str) -> Payload | None:
    """The newest version of a memory."""
    row = await read_row(agent, memory_id)
    for _ in range(MOST_STEPS):
        next_id = row.get("supersededById") if row else None
        successor = await read_row(agent, next_id) if next_id else None
        if successor is None:
            break
        row = successor
    return row


def _circle(record: MemoryRecord, *, is_direct: bool) -> RequestInvalid:
    reason = "a memory cannot be its own parent" if is_direct else "the hierarchy would have a cycle"
    relation = "the memory" if is_direct else "below the memory"
    message = f"{record.parent_id} is {relation} that this one supersedes ({record.supersedes_id}): {reason}"
    return RequestInvalid([FieldError("parent_id", message)])


def _is_there(row: Payload | None, user_id: str, types: tuple[MemoryType, ...], *, now_ms: int) -> bool:
    if row is None or TOMBSTONE_KEY in row or row.get("pending"):
        return False
    return bool(row["userId"] == user_id and not is_expired(row, types, now_ms))
