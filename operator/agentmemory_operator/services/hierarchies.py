"""Memories below others: the children of a memory, and the tree of all that is below it.

A child names one version of its parent, and stays a child when the parent is superseded: what is below a memory is what
names any of its versions. Only the newest version of a child counts, and each states its parent itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.domain.criteria import FIELDS, AnyOf, Equals
from agentmemory_operator.domain.filters import Selection, equals_any, visible
from agentmemory_operator.domain.records import MemoryRecord, record_of
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.histories import Histories
from agentmemory_operator.services.memories import ListRequest, Memories, Page

_Row = Mapping[str, Any]


@dataclass(slots=True)
class Node:
    """A memory and what is below it, oldest first."""

    record: MemoryRecord
    children: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tree:
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


class Hierarchies:
    """Reads what is below memories."""

    def __init__(self, clock: Clock, memories: Memories, histories: Histories) -> None:
        self._clock = clock
        self._memories = memories
        self._histories = histories

    async def children(
        self, agent: Agent, memory_id: str, *, user_id: str, limit: int, cursor: str | None = None
    ) -> Page:
        """Return a page of the memories right below one, newest first.

        Raises:
            NotFound: unknown, another user's, expired or deleted.
            RequestInvalid: the cursor is not one of this list.
        """
        versions = await self._versions(agent, await self._memories.row(agent, memory_id, user_id=user_id))
        below = AnyOf(tuple(Equals(FIELDS["parent_id"], version) for version in versions))
        selection = Selection(user_id=user_id, criterion=below)
        return await self._memories.list(agent, ListRequest(selection=selection, limit=limit, cursor=cursor))

    async def tree(self, agent: Agent, memory_id: str, request: TreeRequest) -> Tree:
        """Return a memory with what is below it, level by level until there are enough.

        Raises:
            NotFound: unknown, another user's, expired or deleted.
        """
        row = await self._memories.row(agent, memory_id, user_id=request.user_id)
        root = Node(record_of(row))
        # Which node a child belongs to, by each version of that node's memory.
        level = dict.fromkeys(await self._versions(agent, row), root)
        seen, room = set(level), request.limit
        for _ in range(request.depth):
            rows = [each for each in await self._below(agent, level, request, limit=room + 1) if each["id"] not in seen]
            following: dict[str, Node] = {}
            for each in rows[:room]:
                node = Node(record_of(each))
                level[each["parentId"]].children.append(node)
                following |= dict.fromkeys(await self._versions(agent, each), node)
            if len(rows) > room or not following:
                return Tree(root, is_truncated=len(rows) > room)
            seen |= following.keys()
            level, room = following, room - len(rows)
        return Tree(root, is_truncated=bool(await self._below(agent, level, request, limit=1)))

    async def _below(
        self, agent: Agent, parents: Iterable[str], request: TreeRequest, *, limit: int
    ) -> list[dict[str, Any]]:
        """Return the rows that name one of these parents, oldest first, at most `limit` of them."""
        selection = Selection(user_id=request.user_id)
        filter_ = visible(selection, self._clock.now_ms(), agent.settings.ranking.types)
        filter_["must"].append(equals_any("parentId", sorted(parents)))
        body = {"filter": filter_, "limit": limit, "with_payload": True, "with_vector": False}
        points, _ = await agent.store.scroll(agent.alias, body)
        return sorted((point["payload"] for point in points), key=lambda row: (row["createdAt"], row["id"]))

    async def _versions(self, agent: Agent, row: _Row) -> Sequence[str]:
        """Return the ids of all versions of a memory."""
        if not (row.get("supersedesId") or row.get("supersededById")):
            return (row["id"],)
        return await self._histories.ids(agent, row)
