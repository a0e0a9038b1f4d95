"""List, read, rename and merge the entities of one scope (a user or a shared scope)."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.entities.rules.graph import GraphNode, ScopeGraph
from agentmemory_operator.entities.sheets import change_sheet, check_enabled
from agentmemory_operator.errors import Conflict, FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.rules.entities import EntityKind, fold
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor
from agentmemory_operator.runtime.tasks import run_in_slices

MAX_VIEW_ENTRIES = 100
"""Maximum number of neighbours, and of memories, in a view of one entity."""


@dataclass(frozen=True, slots=True)
class ListedEntity:
    """Entity in a list.

    Attributes:
        kind: Kind of entity. None if no memory names it.
        memories: Number of memories that name it, among the newest 2,000 of the scope.
    """

    name: str
    kind: EntityKind | None
    memories: int


@dataclass(frozen=True, slots=True)
class EntityPage:
    """Page of entities, those with most memories first. `next_cursor` is None on the last page.

    Attributes:
        views: Views of the listed entities, in order; None unless requested.
    """

    results: tuple[ListedEntity, ...]
    next_cursor: str | None
    views: "tuple[EntityView, ...] | None" = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Entity linked to another one.

    Attributes:
        name: Name of the linked entity.
        relation: Type of the relation, or `co_occurrence`.
        strength: Strength of the relation, or number of memories that mention both.
        is_incoming: True if the relation points from the linked entity to the viewed one.
    """

    name: str
    relation: str
    strength: int
    is_incoming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityView:
    """Entity with its aliases, memories and links.

    Attributes:
        kind: Kind of entity. None if no memory names it.
        aliases: Other spellings, sorted.
        memories: Number of memories that name it, among the newest 2,000 of the scope.
        memory_ids: Ids of the newest memories that name it, at most 100.
        neighbours: At most 100 linked entities: those of typed relations, then those mentioned together most often.
    """

    name: str
    kind: EntityKind | None
    aliases: tuple[str, ...]
    memories: int
    memory_ids: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]


async def list_entities(
    graphs: EntityGraphs,
    agent: Agent,
    user_id: str,
    *,
    limit: int,
    cursor: str | None = None,
    has_views: bool = False,
) -> EntityPage:
    """List the entities of a scope, page by page (keyset pagination).

    Args:
        limit: Maximum number of entities.
        cursor: `next_cursor` of the previous page. None for the first page.
        has_views: True to return also the view of each entity, all of one reading of the graph.

    Raises:
        RequestInvalid: If the cursor is not from such a page, or the agent has entities disabled.
        StoreUnavailable: If Qdrant is unavailable.
    """
    graph = await _graph(graphs, agent, user_id)
    after = None if cursor is None else _position_of(cursor)
    positions = sorted((-len(node.memories), key) for key, node in graph.nodes.items())
    remaining = [position for position in positions if after is None or position > after]
    page = [graph.nodes[key] for _, key in remaining[:limit]]
    results = tuple(ListedEntity(node.name, node.kind, len(node.memories)) for node in page)
    views = await run_in_slices(_views(graph, page)) if has_views else None
    return EntityPage(results, encode_cursor(*remaining[limit - 1]) if len(remaining) > limit else None, views)


async def read_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str) -> EntityView:
    """Read one entity of a scope by any of its spellings.

    Raises:
        NotFound: If the scope has no such entity.
        RequestInvalid: If the agent has entities disabled.
        StoreUnavailable: If Qdrant is unavailable.
    """
    graph = await _graph(graphs, agent, user_id)
    return _view(graph, _known(graph, name))


async def rename_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str, new: str) -> EntityView:
    """Give an entity a new name, which no other entity has. The old name becomes an alias.

    Raises:
        NotFound: If the scope has no such entity.
        Conflict: If another entity has the new name, or the scope would exceed the maximum number of aliases.
        RequestInvalid, StoreUnavailable, OutcomeUnknown: See `change_sheet`.
    """
    graph = await _graph(graphs, agent, user_id)
    node, existing = _known(graph, name), graph.find(new)
    if existing is not None and existing is not node:
        raise Conflict(f"{new!r} exists already: send merge_into to merge them")
    await change_sheet(agent, user_id, lambda sheet: sheet.with_renamed(sheet.resolve(node.name), new))
    return await read_entity(graphs, agent, user_id, new)


async def merge_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str, into: str) -> EntityView:
    """Merge an entity into another: its name becomes an alias, and its memories, relations and aliases move.

    Raises:
        NotFound: If the scope has no such entity.
        RequestInvalid: If both are the same entity, the other does not exist, or the agent has entities disabled.
        Conflict, StoreUnavailable, OutcomeUnknown: See `change_sheet`.
    """
    graph = await _graph(graphs, agent, user_id)
    node, target = _known(graph, name), graph.find(into)
    if target is None:
        raise RequestInvalid([FieldError("merge_into", f"this user has no entity {into!r}: send name to rename it")])
    if target is node:
        raise RequestInvalid([FieldError("merge_into", "is the same entity")])
    await change_sheet(agent, user_id, lambda sheet: sheet.with_alias(sheet.resolve(node.name), target.name))
    return await read_entity(graphs, agent, user_id, target.name)


async def _graph(graphs: EntityGraphs, agent: Agent, user_id: str) -> ScopeGraph:
    check_enabled(agent)
    [graph] = await graphs.read(agent, [user_id], is_fresh=True)
    return graph


def _known(graph: ScopeGraph, name: str) -> GraphNode:
    node = graph.find(name)
    if node is None:
        raise NotFound(f"this user has no entity {name[:64]!r}")
    return node


def _views(graph: ScopeGraph, nodes: Sequence[GraphNode]) -> Generator[None, None, tuple[EntityView, ...]]:
    views = []
    for node in nodes:
        views.append(_view(graph, node))
        yield
    return tuple(views)


def _view(graph: ScopeGraph, node: GraphNode) -> EntityView:
    key = fold(node.name)
    aliases = sorted(
        alias.alias for alias in graph.sheet.aliases.values() if fold(alias.name) == key and alias.alias != alias.name
    )
    return EntityView(
        name=node.name,
        kind=node.kind,
        aliases=tuple(aliases),
        memories=len(node.memories),
        memory_ids=tuple(graph.memory_ids[index] for index in node.memories[:MAX_VIEW_ENTRIES]),
        neighbours=tuple(
            Neighbour(graph.nodes[link.target].name, link.relation, link.strength, link.is_incoming)
            for link in islice(graph.links_of(key), MAX_VIEW_ENTRIES)
        ),
    )


def _position_of(cursor: str) -> tuple[int, str]:
    match decode_cursor(cursor):
        case [int(rank), str(key)]:
            return rank, key
    raise RequestInvalid([FieldError("cursor", "is not a next_cursor of this list: start without one")])
