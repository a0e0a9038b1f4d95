"""Graph of a scope's entities, built from its newest memories and its sheet.

Two names mentioned in the same memory are linked; the strength is the number of such memories. User and author create
no links, because they belong to every memory and would link everything.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.entities.rules.lists import KnownName, NameDictionary, build_dictionary
from agentmemory_operator.entities.rules.sheet import EntitySheet, Relation
from agentmemory_operator.memories.rules.entities import (
    ENTITIES_KEY,
    Entity,
    EntityKind,
    entities_from_payload,
    fold,
    is_specific,
)

CO_OCCURRENCE = "co_occurrence"


@dataclass(slots=True)
class GraphNode:
    """Entity of the scope.

    Attributes:
        kind: Kind of entity. None if no memory names it, only relations.
        memories: Indices in `ScopeGraph.memory_ids` of the memories that name it, newest first.
        mentions: Indices of those memories that mention it in their text.
        relations: Relations that start or end here.
    """

    name: str
    kind: EntityKind | None = None
    memories: list[int] = field(default_factory=list)
    mentions: list[int] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """Link from one entity to another.

    Attributes:
        target: Folded name of the other entity.
        relation: Type of the relation, or `co_occurrence`.
        strength: Strength of the relation, or number of memories that mention both.
        is_incoming: True for a typed relation that leads from the other entity to this entity.
    """

    target: str
    relation: str
    strength: int
    is_incoming: bool = False

    @property
    def is_typed(self) -> bool:
        """True if the link is a stored relation, not a co-occurrence."""
        return self.relation != CO_OCCURRENCE


@dataclass(frozen=True, slots=True)
class ScopeGraph:
    """Entities of one scope and their links.

    Attributes:
        memory_ids: Ids of the newest memories, newest first.
        mentioned: For each memory in this order, the folded names that its text mentions.
        nodes: Entities by folded name, without aliases.
        sheet: Relations and aliases of the scope.
        spellings: Dictionary of all names and aliases.
        size_bytes: Approximate memory use.
    """

    memory_ids: Sequence[str]
    mentioned: Sequence[Sequence[str]]
    nodes: Mapping[str, GraphNode]
    sheet: EntitySheet
    spellings: NameDictionary
    size_bytes: int

    def find(self, name: str) -> GraphNode | None:
        """Return the entity with this name or alias, or None."""
        return self.nodes.get(fold(self.sheet.resolve(name)))

    def links_of(self, key: str) -> Iterator[GraphLink]:
        """Yield the links of an entity, typed relations first, then by the number of memories that mention both.

        Args:
            key: Folded name.
        """
        node = self.nodes[key]
        for relation in node.relations:
            source, target = fold(relation.source), fold(relation.target)
            is_incoming = source != key
            yield GraphLink(source if is_incoming else target, relation.relation, relation.strength, is_incoming)
        co_occurrences = Counter(other for index in node.mentions for other in self.mentioned[index] if other != key)
        for other, count in sorted(co_occurrences.items(), key=lambda pair: (-pair[1], pair[0])):
            yield GraphLink(other, CO_OCCURRENCE, count)


def build_graph(rows: Sequence[Mapping[str, Any]], sheet: EntitySheet) -> Generator[None, None, ScopeGraph]:
    """Build a graph. It is a generator that yields after each memory, so that the caller can divide the work.

    Args:
        rows: Memories with `id` and `entities` as stored, newest first.
    """
    nodes: dict[str, GraphNode] = {}
    mentioned: list[tuple[str, ...]] = []
    for index, row in enumerate(rows):
        entities: dict[str, Entity] = {}
        for entity in entities_from_payload(row.get(ENTITIES_KEY) or ()):
            name = sheet.resolve(entity.name)
            key = fold(name)
            node = nodes.setdefault(key, GraphNode(name))
            node.kind = node.kind if is_specific(node.kind) else entity.kind
            if key not in entities:
                entities[key] = entity
                node.memories.append(index)
                if entity.role == "mentioned":
                    node.mentions.append(index)
        mentioned.append(tuple(key for key, entity in entities.items() if entity.role == "mentioned"))
        yield
    for relation in sheet.relations.values():
        for name in (relation.source, relation.target):
            nodes.setdefault(fold(name), GraphNode(name)).relations.append(relation)
    yield
    spellings = _spellings(nodes, sheet)
    ids = tuple(row["id"] for row in rows)
    return ScopeGraph(ids, mentioned, nodes, sheet, spellings, _size_of(nodes, mentioned, sheet))


def _spellings(nodes: Mapping[str, GraphNode], sheet: EntitySheet) -> NameDictionary:
    found = {key: KnownName(node.name, "phrase") for key, node in nodes.items()}
    for key, alias in sheet.aliases.items():
        if fold(alias.name) in nodes:
            found.setdefault(key, KnownName(alias.name, "phrase"))
    return build_dictionary(found)


# Memory use of the parts, measured with tracemalloc on CPython 3.11, rounded up.
_MEMORY_BYTES, _MENTION_BYTES, _NODE_BYTES, _LINE_BYTES = 200, 24, 1_200, 600


def _size_of(nodes: Mapping[str, GraphNode], mentioned: Sequence[Sequence[str]], sheet: EntitySheet) -> int:
    links = sum(map(len, mentioned))
    lines = len(sheet.relations) + len(sheet.aliases)
    return len(mentioned) * _MEMORY_BYTES + links * _MENTION_BYTES + len(nodes) * _NODE_BYTES + lines * _LINE_BYTES
