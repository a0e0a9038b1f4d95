"""Plan the effects of a model's findings about a batch. Pure: the executor makes no decisions.

| finding | effect |
|---|---|
| a fact made from two or more memories | stored; supersedes the sources that may be superseded, cites the others |
| a fact with a number, name or date that no source contains | proposed: it needs an approval |
| a contradiction | a memory of an event, with high importance, that cites the memories |
| a connection | stored on both memories |
| a category | set if there was none, or `general` |
| an entity | stored on the memories and facts that name it; its other names become aliases |
| an alias, a relation | stored for the user, if memories contain both names |
| any or none | all memories of the batch are marked as read: no later run reads them again |

A description with a number, name or date that no source contains is dropped, because an instruction in a memory may
have caused it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.consolidation.rules.accepted_names import NO_NAMES, select_names
from agentmemory_operator.consolidation.rules.model_findings import (
    ExtractedFact,
    ExtractedRelation,
    ModelFindings,
    ModelNote,
)
from agentmemory_operator.entities.rules.lists import EntityLists
from agentmemory_operator.memories.rules.entities import Entity
from agentmemory_operator.spec.memory_types import MemoryType

Row = Mapping[str, Any]

# Types about events and decisions, whose memories are cited but not superseded.
CITED_TYPES = frozenset({"event", "decision", "episodic"})
KNOWLEDGE_TYPES = ("fact", "semantic")
EVENT_TYPES = ("event", "episodic")
GENERAL = "general"
MAX_CONNECTIONS = 20

CONTRADICTION = "These memories contradict each other"
CONNECTION = "These memories belong together"

FindUngrounded = Callable[[str, Sequence[str]], Sequence[str]]
"""Returns the numbers, names and dates of a text that none of the source texts contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact to store.

    Attributes:
        content: Text of the fact.
        sources: Ids of the memories it was made from.
        replaced: Ids of the sources that it supersedes. Empty to supersede none.
        importance: Highest importance of the sources, 0 to 1.
        missing: Numbers, names and dates that no source contains. If there are any, the fact needs an approval.
        domain: Domain that all sources share, else `general` if the type requires one, else None.
        knowledge_category: Category that all sources share, or None.
        entities: Name and kind of each entity that it names.
        collapses: True if it was made from the versions of one memory, and becomes the newest version.
    """

    content: str
    type: str
    sources: tuple[str, ...]
    replaced: tuple[str, ...]
    importance: float
    missing: tuple[str, ...] = ()
    domain: str | None = None
    knowledge_category: str | None = None
    entities: tuple[tuple[str, str], ...] = ()
    collapses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Memory to store about a contradiction.

    Attributes:
        type: Memory type, for events.
        sources: Ids of the memories that contradict each other, sorted.
        event_type: Kind of event. None if the type lists none.
    """

    content: str
    type: str
    sources: tuple[str, ...]
    event_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Planned effects for one batch.

    Attributes:
        user_id: User who owns the memories.
        proposed: Facts that need an approval.
        contradictions: Memories about contradictions.
        connections: By memory id: ids of connected memories, each with a description.
        categories: Category by memory id.
        entities: Entities by id of the memory that names them.
        aliases: Pairs of name and alias.
        relations: Triples of source, relation and target.
        memory_ids: Ids of all memories of the batch.
        dropped: Number of ids in the answer that are not in the batch.
    """

    user_id: str
    facts: tuple[Fact, ...] = ()
    proposed: tuple[Fact, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    categories: Mapping[str, str] = field(default_factory=dict)
    entities: Mapping[str, tuple[Entity, ...]] = field(default_factory=dict)
    aliases: tuple[tuple[str, str], ...] = ()
    relations: tuple[ExtractedRelation, ...] = ()
    memory_ids: tuple[str, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class AgentTypes:
    """Memory types of an agent.

    Attributes:
        types: Types with their rules. Empty if any type is accepted.
        default: Type of memories without a type.
    """

    types: tuple[MemoryType, ...]
    default: str

    def find(self, name: str) -> MemoryType | None:
        """Return the type with this name, or None."""
        return next((type_ for type_ in self.types if type_.name == name), None)

    def fact_type(self, rows: Sequence[Row]) -> str:
        """Return the type of a fact made from some memories.

        That is their common type if its memories may be superseded. Otherwise it is the first of `fact`, `semantic` and
        the default type that the agent has; `fact` if it accepts any type.
        """
        types: set[str] = {row["type"] for row in rows}
        if len(types) == 1 and (type_ := types.pop()) not in CITED_TYPES and self.is_supersedable(type_):
            return type_
        return self._first(KNOWLEDGE_TYPES)

    def event_type(self) -> str:
        """Return the type for events: the first of `event`, `episodic` and the default type that the agent has.

        It is `event` if the agent accepts any type.
        """
        return self._first(EVENT_TYPES)

    def is_supersedable(self, name: str) -> bool:
        """Return whether memories of a type may be superseded and outlive their session. True for an unlisted type."""
        kind = self.find(name)
        return kind is None or not (kind.immutable or kind.ends_with_session)

    def _first(self, names: Sequence[str]) -> str:
        return next((name for name in names if self.find(name)), self.default if self.types else names[0])


def may_be_superseded(row: Row, kinds: AgentTypes) -> bool:
    """Return whether a fact may supersede a memory. Otherwise it cites the memory.

    A memory with an identity is not superseded: its next version is the next memory stored under its key or subject.
    Neither is a pinned or locked memory.
    """
    if row["type"] in CITED_TYPES or not kinds.is_supersedable(row["type"]):
        return False
    return not (row.get("identityId") or row.get("pinned") or row.get("locked"))


def plan_batch(
    rows: Sequence[Row],
    findings: ModelFindings,
    kinds: AgentTypes,
    ungrounded: FindUngrounded,
    lists: EntityLists | None,
) -> BatchPlan:
    """Build the plan for a batch.

    Args:
        rows: Memories of the batch, all of one user; at least one.
        findings: Findings with memory ids.
        kinds: Memory types of the agent.
        ungrounded: Returns the numbers, names and dates of a text that its sources do not contain.
        lists: Lists of the agent, with the words that are not names. None if the agent has no entities.
    """
    by_id = {row["id"]: row for row in rows}
    names = select_names(by_id, findings, lists) if lists else NO_NAMES
    facts = [
        replace(fact, entities=names.find_in(fact.content)) for fact in _facts(by_id, findings.facts, kinds, ungrounded)
    ]
    return BatchPlan(
        user_id=rows[0]["userId"],
        facts=tuple(fact for fact in facts if not fact.missing),
        proposed=tuple(fact for fact in facts if fact.missing),
        contradictions=tuple(_contradiction(by_id, note, kinds, ungrounded) for note in findings.contradictions),
        connections=_connections(by_id, findings.connections, ungrounded),
        categories={
            id_: category
            for id_, category in findings.categories.items()
            if by_id[id_].get("knowledgeCategory") in (None, GENERAL)
        },
        entities=names.by_memory,
        aliases=names.aliases,
        relations=names.relations,
        memory_ids=tuple(by_id),
        dropped=findings.dropped,
    )


def _facts(
    by_id: Mapping[str, Row], extracted: Sequence[ExtractedFact], kinds: AgentTypes, ungrounded: FindUngrounded
) -> Iterator[Fact]:
    """Yield the facts. Only the first fact made from a memory supersedes it, if it may; further ones cite it."""
    superseded_ids: set[str] = set()
    for fact in extracted:
        rows = [by_id[id_] for id_ in fact.sources]
        missing = tuple(ungrounded(fact.content, [row["content"] for row in rows]))
        replaceable = [row["id"] for row in rows if may_be_superseded(row, kinds) and row["id"] not in superseded_ids]
        type_ = kinds.fact_type(rows)
        superseded_ids.update(replaceable)
        yield Fact(
            content=fact.content,
            type=type_,
            sources=fact.sources,
            replaced=tuple(replaceable),
            importance=max(row.get("importance", 0.5) for row in rows),
            missing=missing,
            domain=_domain(rows, kinds.find(type_)),
            knowledge_category=_same(rows, "knowledgeCategory"),
        )


def _contradiction(
    by_id: Mapping[str, Row], note: ModelNote, kinds: AgentTypes, ungrounded: FindUngrounded
) -> Contradiction:
    type_ = kinds.event_type()
    kind = kinds.find(type_)
    description = _grounded(note, by_id, ungrounded)
    events = kind.event_types if kind else ()
    return Contradiction(
        content=f"{CONTRADICTION}: {description}" if description else f"{CONTRADICTION}.",
        type=type_,
        sources=tuple(sorted(note.ids)),
        event_type="system_event" if "system_event" in events else next(iter(events), None),
    )


def _connections(
    by_id: Mapping[str, Row], notes: Sequence[ModelNote], ungrounded: FindUngrounded
) -> dict[str, dict[str, str]]:
    connected: dict[str, dict[str, str]] = {}
    for note in notes:
        description = _grounded(note, by_id, ungrounded) or f"{CONNECTION}."
        for memory_id, other_id in (note.ids, note.ids[::-1]):
            descriptions = connected.setdefault(memory_id, {})
            if len(descriptions) < MAX_CONNECTIONS:
                descriptions.setdefault(other_id, description)
    return connected


def _grounded(note: ModelNote, by_id: Mapping[str, Row], ungrounded: FindUngrounded) -> str:
    """Return a description, or '' if it has parts without a source."""
    return "" if ungrounded(note.description, [by_id[id_]["content"] for id_ in note.ids]) else note.description


def _domain(rows: Sequence[Row], kind: MemoryType | None) -> str | None:
    domain = _same(rows, "domain")
    return domain or (GENERAL if kind and "domain" in kind.required else None)


def _same(rows: Sequence[Row], key: str) -> str | None:
    values = {row.get(key) for row in rows}
    return values.pop() if len(values) == 1 else None
