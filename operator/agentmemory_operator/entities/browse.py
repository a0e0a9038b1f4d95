"""What is known of a scope's entities, and how a person sets it right: another name for one, or one name for two."""

from dataclasses import dataclass
from itertools import islice

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.graphs import EntityGraphs
from agentmemory_operator.entities.rules.graph import GraphNode, ScopeGraph
from agentmemory_operator.entities.sheets import change_sheet, check_enabled
from agentmemory_operator.errors import Conflict, FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.rules.entities import EntityKind, fold
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor

SHOWN_MAX = 100
"""Neighbours and memories of one name that an answer holds."""


@dataclass(frozen=True, slots=True)
class ListedEntity:
    """A name of a scope and how many of its memories bear it; no kind where none does."""

    name: str
    kind: EntityKind | None
    memories: int


@dataclass(frozen=True, slots=True)
class EntityPage:
    """Names, those of most memories first; `next_cursor` is None on the last page."""

    results: tuple[ListedEntity, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A name that is linked.

    Attributes:
        is_incoming: the relation leads from there to here.
    """

    name: str
    relation: str
    strength: int
    is_incoming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityView:
    """A name with all that hangs on it.

    Attributes:
        memories: how many bear it.
        memory_ids: of these the newest, at most 100.
        neighbours: typed relations first, then by strength, at most 100.
    """

    name: str
    kind: EntityKind | None
    aliases: tuple[str, ...]
    memories: int
    memory_ids: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]


async def list_entities(
    graphs: EntityGraphs, agent: Agent, user_id: str, *, limit: int, cursor: str | None = None
) -> EntityPage:
    """A page of a scope's names.

    Raises:
        RequestInvalid: the cursor is none of ours, or the agent has no entities.
    """
    graph = await _graph(graphs, agent, user_id)
    after = None if cursor is None else _position_of(cursor)
    places = sorted((-len(node.memories), key) for key, node in graph.nodes.items())
    rest = [place for place in places if after is None or place > after]
    page = [graph.nodes[key] for _, key in rest[:limit]]
    results = tuple(ListedEntity(node.name, node.kind, len(node.memories)) for node in page)
    return EntityPage(results, encode_cursor(*rest[limit - 1]) if len(rest) > limit else None)


async def read_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str) -> EntityView:
    """One name of a scope, by any of its spellings.

    Raises:
        NotFound: the scope knows no such name.
        RequestInvalid: the agent has no entities.
    """
    graph = await _graph(graphs, agent, user_id)
    return _view(graph, _known(graph, name))


async def rename_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str, new: str) -> EntityView:
    """Call a name of a scope by another that is not there yet; its former spelling is an alias of it.

    Raises:
        NotFound: the scope knows no such name.
        Conflict: the other name is there, or the scope has as many aliases as one may.
        RequestInvalid, StoreUnavailable, OutcomeUnknown: see `change_sheet`.
    """
    graph = await _graph(graphs, agent, user_id)
    node, there = _known(graph, name), graph.find(new)
    if there is not None and there is not node:
        raise Conflict(f"{new!r} exists already: send merge_into to merge them")
    await change_sheet(agent, user_id, lambda sheet: sheet.renamed(sheet.resolve(node.name), new))
    return await read_entity(graphs, agent, user_id, new)


async def merge_entity(graphs: EntityGraphs, agent: Agent, user_id: str, name: str, into: str) -> EntityView:
    """Take a name of a scope for a spelling of another: its memories, relations and aliases are the other's.

    Raises:
        NotFound: the scope knows no such name.
        RequestInvalid: both are one already, the other is not there, or the agent has no entities.
        Conflict, StoreUnavailable, OutcomeUnknown: see `change_sheet`.
    """
    graph = await _graph(graphs, agent, user_id)
    node, target = _known(graph, name), graph.find(into)
    if target is None:
        raise RequestInvalid([FieldError("merge_into", f"this user has no entity {into!r}: send name to rename it")])
    if target is node:
        raise RequestInvalid([FieldError("merge_into", "is the same entity")])
    await change_sheet(agent, user_id, lambda sheet: sheet.aliased(sheet.resolve(node.name), target.name))
    return await read_entity(graphs, agent, user_id, target.name)


async def _graph(graphs: EntityGraphs, agent: Agent, user_id: str) -> ScopeGraph:
    check_enabled(agent)
    [graph] = await graphs.of(agent, [user_id], is_fresh=True)
    return graph


def _known(graph: ScopeGraph, name: str) -> GraphNode:
    node = graph.find(name)
    if node is None:
        raise NotFound(f"this user has no entity {name[:64]!r}")
    return node


def _view(graph: ScopeGraph, node: GraphNode) -> EntityView:
    key = fold(node.name)
    aliases = sorted(
        one.alias for one in graph.sheet.aliases.values() if fold(one.name) == key and one.alias != one.name
    )
    return EntityView(
        name=node.name,
        kind=node.kind,
        aliases=tuple(aliases),
        memories=len(node.memories),
        memory_ids=tuple(graph.memory_ids[place] for place in node.memories[:SHOWN_MAX]),
        neighbours=tuple(
            Neighbour(graph.nodes[link.target].name, link.relation, link.strength, link.is_incoming)
            for link in islice(graph.links_of(key), SHOWN_MAX)
        ),
    )


def _position_of(cursor: str) -> tuple[int, str]:
    match decode_cursor(cursor):
        case [int(rank), str(key)]:
            return rank, key
    raise _bad_cursor()


def _bad_cursor() -> RequestInvalid:
    return RequestInvalid([FieldError("cursor", "is not a next_cursor of this list: start without one")])
