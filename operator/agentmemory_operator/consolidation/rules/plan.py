"""What is done about what a model said of a batch. Pure: the executor has no decision to make.

| said | done |
|---|---|
| a fact made of two or more | stored; the sources that may be superseded are, the others are cited |
| a fact with a number, name or date that none of its sources has | proposed: a person approves it or not |
| a contradiction | an event of high importance that cites the memories |
| a connection | noted on both memories |
| a category | set where there was none, or `general` |
| an entity | noted on the memories that name it, and on facts that do; its other names are aliases |
| an alias, a relation | noted of the user, where memories have both names |
| nothing | the memory is marked: no later run reads it again |

A description that says what no source says is left out: whoever writes a memory could have written it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.consolidation.rules.answer import Reading, SaidFact, SaidNote, SaidRelation
from agentmemory_operator.consolidation.rules.names import NO_NAMES, names_of
from agentmemory_operator.entities.rules.lists import EntityLists
from agentmemory_operator.memories.rules.entities import Entity
from agentmemory_operator.spec.memory_types import MemoryType

Row = Mapping[str, Any]

# Something that happened or was decided stays as it was said.
CITED_TYPES = frozenset({"event", "decision", "episodic"})
KNOWLEDGE_TYPES = ("fact", "semantic")
EVENT_TYPES = ("event", "episodic")
GENERAL = "general"
HIGH = 0.75
MAX_CONNECTIONS = 20

CONTRADICTION = "These memories contradict each other"
CONNECTION = "These memories belong together"

Ungrounded = Callable[[str, Sequence[str]], Sequence[str]]
"""What a text says (numbers, names, dates) that none of some texts does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact to store.

    Attributes:
        sources: what it was made of.
        replaced: those of them that it supersedes; none lets it stand beside all.
        missing: what none of them says; where there is any, the fact waits for an approval.
        entities: name and kind of those that it names.
        collapses: it is made of the versions of one memory, and becomes the newest of them.
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
    """An event to store."""

    content: str
    type: str
    sources: tuple[str, ...]
    event_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What is done about one batch.

    Attributes:
        connections: by memory: ids of those that it belongs together with, and why.
        categories: by memory.
        entities: by memory: what it names.
        seen: ids of all memories of the batch.
        dropped: how often the model named what is not of the batch.
    """

    user_id: str
    facts: tuple[Fact, ...] = ()
    proposed: tuple[Fact, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    categories: Mapping[str, str] = field(default_factory=dict)
    entities: Mapping[str, tuple[Entity, ...]] = field(default_factory=dict)
    aliases: tuple[tuple[str, str], ...] = ()
    relations: tuple[SaidRelation, ...] = ()
    seen: tuple[str, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Kinds:
    """The types of an agent; none is any type."""

    types: tuple[MemoryType, ...]
    default: str

    def of(self, name: str) -> MemoryType | None:
        """The rules of a type."""
        return next((type_ for type_ in self.types if type_.name == name), None)

    def knowledge(self, rows: Sequence[Row]) -> str:
        """The type of what is made of some memories."""
        same: set[str] = {row["type"] for row in rows}
        if len(same) == 1 and (only := same.pop()) not in CITED_TYPES and self.is_free(only):
            return only
        return self._first(KNOWLEDGE_TYPES)

    def event(self) -> str:
        """The type of what happened."""
        return self._first(EVENT_TYPES)

    def is_free(self, name: str) -> bool:
        """Whether memories of a type may be superseded, and outlive their session."""
        kind = self.of(name)
        return kind is None or not (kind.immutable or kind.lasts_a_session)

    def _first(self, names: Sequence[str]) -> str:
        return next((name for name in names if self.of(name)), self.default if self.types else names[0])


def may_be_superseded(row: Row, kinds: Kinds) -> bool:
    """Whether a fact may take the place of a memory; else it cites it.

    One with a key or subject that its type goes by has its own successor: the next that is stored under it.
    """
    if row["type"] in CITED_TYPES or not kinds.is_free(row["type"]):
        return False
    return not (row.get("identityId") or row.get("pinned") or row.get("locked"))


def plan_batch(
    rows: Sequence[Row], findings: Reading, kinds: Kinds, ungrounded: Ungrounded, lists: EntityLists | None
) -> BatchPlan:
    """What is done about a batch.

    Args:
        rows: the batch, of one user.
        lists: what is no name; None where the agent has no entities.
    """
    by_id = {row["id"]: row for row in rows}
    names = names_of(by_id, findings, lists) if lists else NO_NAMES
    facts = [
        replace(fact, entities=names.named_by(fact.content))
        for fact in _facts(by_id, findings.facts, kinds, ungrounded)
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
        entities=names.of_memories,
        aliases=names.aliases,
        relations=names.relations,
        seen=tuple(by_id),
        dropped=findings.dropped,
    )


def _facts(by_id: Mapping[str, Row], said: Sequence[SaidFact], kinds: Kinds, ungrounded: Ungrounded) -> Iterator[Fact]:
    """Yield the facts; a memory is superseded by the first that was made of it, and cited by the others."""
    taken: set[str] = set()
    for fact in said:
        rows = [by_id[id_] for id_ in fact.sources]
        missing = tuple(ungrounded(fact.content, [row["content"] for row in rows]))
        free = [row["id"] for row in rows if may_be_superseded(row, kinds) and row["id"] not in taken]
        type_ = kinds.knowledge(rows)
        taken.update(free)
        yield Fact(
            content=fact.content,
            type=type_,
            sources=fact.sources,
            replaced=tuple(free),
            importance=max(row.get("importance", 0.5) for row in rows),
            missing=missing,
            domain=_domain(rows, kinds.of(type_)),
            knowledge_category=_same(rows, "knowledgeCategory"),
        )


def _contradiction(by_id: Mapping[str, Row], note: SaidNote, kinds: Kinds, ungrounded: Ungrounded) -> Contradiction:
    type_ = kinds.event()
    kind = kinds.of(type_)
    said = _grounded(note, by_id, ungrounded)
    events = kind.event_types if kind else ()
    return Contradiction(
        content=f"{CONTRADICTION}: {said}" if said else f"{CONTRADICTION}.",
        type=type_,
        sources=tuple(sorted(note.ids)),
        event_type="system_event" if "system_event" in events else next(iter(events), None),
    )


def _connections(
    by_id: Mapping[str, Row], notes: Sequence[SaidNote], ungrounded: Ungrounded
) -> dict[str, dict[str, str]]:
    connected: dict[str, dict[str, str]] = {}
    for note in notes:
        said = _grounded(note, by_id, ungrounded) or f"{CONNECTION}."
        for one, other in (note.ids, note.ids[::-1]):
            others = connected.setdefault(one, {})
            if len(others) < MAX_CONNECTIONS:
                others.setdefault(other, said)
    return connected


def _grounded(note: SaidNote, by_id: Mapping[str, Row], ungrounded: Ungrounded) -> str:
    """A description; empty where it says what none of the memories does."""
    return "" if ungrounded(note.description, [by_id[id_]["content"] for id_ in note.ids]) else note.description


def _domain(rows: Sequence[Row], kind: MemoryType | None) -> str | None:
    same = _same(rows, "domain")
    return same or (GENERAL if kind and "domain" in kind.required else None)


def _same(rows: Sequence[Row], key: str) -> str | None:
    values = {row.get(key) for row in rows}
    return values.pop() if len(values) == 1 else None
