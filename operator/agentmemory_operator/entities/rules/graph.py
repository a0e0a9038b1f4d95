"""The entities of one scope and what links them: derived from its newest memories, and from its sheet.

Two names that one memory mentions hang together, the more memories the stronger. What every memory of a scope bears,
whose it is and who stored it, links nothing: it would link everything.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.entities.rules.lists import Dictionary, Known, dictionary_over
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
    """A name of the scope.

    Attributes:
        kind: None of a name that no memory bears, which relations or aliases know.
        memories: places of the memories that bear it, the newest first.
        mentions: of these, those whose text mentions it.
        relations: those that begin or end here.
    """

    name: str
    kind: EntityKind | None = None
    memories: list[int] = field(default_factory=list)
    mentions: list[int] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """What leads from one name to another, both folded.

    Attributes:
        is_incoming: it is a typed relation of the other to this one.
    """

    target: str
    relation: str
    strength: int
    is_incoming: bool = False

    @property
    def is_typed(self) -> bool:
        """Whether somebody said what the relation is."""
        return self.relation != CO_OCCURRENCE


@dataclass(frozen=True, slots=True)
class ScopeGraph:
    """The entities of one scope.

    Attributes:
        memory_ids: of the newest memories, the newest first.
        mentioned: by a memory's place, which names its text mentions, folded.
        nodes: by folded name; no alias is one.
        spellings: all names and aliases, to be found in texts.
        size_bytes: about what it takes in memory.
    """

    memory_ids: Sequence[str]
    mentioned: Sequence[Sequence[str]]
    nodes: Mapping[str, GraphNode]
    sheet: EntitySheet
    spellings: Dictionary
    size_bytes: int

    def find(self, name: str) -> GraphNode | None:
        """The node of a name or an alias of it."""
        return self.nodes.get(fold(self.sheet.resolve(name)))

    def links_of(self, key: str) -> Iterator[GraphLink]:
        """Yield what leads away from a name, typed relations first, then by how many memories mention both."""
        node = self.nodes[key]
        for one in node.relations:
            source, target = fold(one.source), fold(one.target)
            is_incoming = source != key
            yield GraphLink(source if is_incoming else target, one.relation, one.strength, is_incoming)
        together = Counter(other for place in node.mentions for other in self.mentioned[place] if other != key)
        for other, count in sorted(together.items(), key=lambda pair: (-pair[1], pair[0])):
            yield GraphLink(other, CO_OCCURRENCE, count)


def graph_of(rows: Sequence[Mapping[str, Any]], sheet: EntitySheet) -> Generator[None, None, ScopeGraph]:
    """The graph of some memories, the newest first, each with `id` and `entities` as they lie on the point."""
    nodes: dict[str, GraphNode] = {}
    mentioned: list[tuple[str, ...]] = []
    for place, row in enumerate(rows):
        named: dict[str, Entity] = {}
        for entity in entities_from_payload(row.get(ENTITIES_KEY) or ()):
            name = sheet.resolve(entity.name)
            key = fold(name)
            node = nodes.setdefault(key, GraphNode(name))
            node.kind = node.kind if is_specific(node.kind) else entity.kind
            if key not in named:
                named[key] = entity
                node.memories.append(place)
                if entity.role == "mentioned":
                    node.mentions.append(place)
        mentioned.append(tuple(key for key, entity in named.items() if entity.role == "mentioned"))
        yield
    for one in sheet.relations.values():
        for name in (one.source, one.target):
            nodes.setdefault(fold(name), GraphNode(name)).relations.append(one)
    yield
    spellings = _spellings(nodes, sheet)
    ids = tuple(row["id"] for row in rows)
    return ScopeGraph(ids, mentioned, nodes, sheet, spellings, _size_of(nodes, mentioned, sheet))


def _spellings(nodes: Mapping[str, GraphNode], sheet: EntitySheet) -> Dictionary:
    found = {key: Known(node.name, "phrase") for key, node in nodes.items()}
    for key, alias in sheet.aliases.items():
        if fold(alias.name) in nodes:
            found.setdefault(key, Known(alias.name, "phrase"))
    return dictionary_over(found)


# What the parts take, as measured with tracemalloc on CPython 3.11, rounded up.
_MEMORY_BYTES, _MENTION_BYTES, _NODE_BYTES, _LINE_BYTES = 200, 24, 1_200, 600


def _size_of(nodes: Mapping[str, GraphNode], mentioned: Sequence[Sequence[str]], sheet: EntitySheet) -> int:
    links = sum(map(len, mentioned))
    lines = len(sheet.relations) + len(sheet.aliases)
    return len(mentioned) * _MEMORY_BYTES + links * _MENTION_BYTES + len(nodes) * _NODE_BYTES + lines * _LINE_BYTES
