"""Prompt, answer schema and parser for the consolidation of a batch. Pure.

`SCHEMA` bounds the size of an answer. Memory ids that are not in the batch are dropped here, before any other code
reads them. `batch_plan.py` decides the effects of the remaining findings.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.entities.rules.sheet import RELATIONS, RelationName
from agentmemory_operator.memories.rules.entities import MODEL_KINDS, ModelKind, normalize_spelling

ExtractedRelation = tuple[str, RelationName, str]
"""Source, relation and target."""

CATEGORIES = ("brand", "strategy", "meeting", "content", "technical", "relationship")

MAX_BATCH_MEMORIES = 50
MAX_FACT_CHARS, MAX_NOTE_CHARS, MAX_NAME_CHARS = 2_000, 500, 60
MAX_FACTS = MAX_PAIRS = MAX_ENTITIES = MAX_BATCH_MEMORIES
MAX_ALIASES = 4

_ID = {"type": "string", "maxLength": 64}
_IDS = {"type": "array", "maxItems": MAX_BATCH_MEMORIES, "items": _ID}
_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
_NOTE = {"type": "string", "minLength": 1, "maxLength": MAX_NOTE_CHARS}


def _one_of(names: Sequence[str]) -> Mapping[str, Any]:
    return {"type": "string", "maxLength": MAX_NAME_CHARS, "enum": list(names)}


def _list_of(max_items: int, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "maxItems": max_items, "items": item}


_ENTITY = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "kind": _one_of(MODEL_KINDS),
        "memory_ids": _IDS,
        "aliases": {"type": "array", "maxItems": MAX_ALIASES, "items": _NAME},
    },
    "required": ["name", "kind", "memory_ids"],
    "additionalProperties": False,
}

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "merged_facts": _list_of(
            MAX_FACTS, content={"type": "string", "minLength": 1, "maxLength": MAX_FACT_CHARS}, source_ids=_IDS
        ),
        "contradictions": _list_of(MAX_PAIRS, memory_ids=_IDS, description=_NOTE),
        "connections": _list_of(MAX_PAIRS, memory_ids=_IDS, description=_NOTE),
        "categories": _list_of(MAX_BATCH_MEMORIES, memory_id=_ID, category=_one_of(CATEGORIES)),
        "entities": {"type": "array", "maxItems": MAX_ENTITIES, "items": _ENTITY},
        "aliases": _list_of(MAX_PAIRS, name=_NAME, alias=_NAME),
        "relations": _list_of(MAX_PAIRS, source=_NAME, relation=_one_of(RELATIONS), target=_NAME),
    },
    "required": [],
    "additionalProperties": False,
}
"""JSON Schema of the answer. A missing list counts as empty."""

TASK = """You consolidate the memories of one client. Read them, and report:
- merged_facts: where two or more memories say the same or parts of one thing, one sentence or a few that say all of it.
  Use only what the sources say: no number, name or date of your own. Memories that are merely about the same subject
  stay apart; so do memories that contradict each other. source_ids are all the memories that it was made of.
- contradictions: two or more memories that cannot all be true, and in a sentence why.
- connections: two memories that belong together and are neither the same nor contradict each other, and in a sentence
  why. Only where it helps somebody who reads one of them.
- categories: what a memory is about, of those that the form of the answer lists; leave out what fits none.
- entities: people, organisations, projects, places, technologies, systems and host names that memories speak of by
  name: the fullest name that stands there, what kind of thing it is, the memories that name it, and as aliases the
  other names that they use for it. Roles, pronouns and common nouns are no entities.
- aliases: two names of one thing that the memories themselves use as such.
- relations: how two named things stand to each other, where a memory says so.
Leave out what you are not sure of: an empty answer is a good answer."""
"""Task of the model. Material and schema follow in the same instructions."""


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """Fact that the model made from memories of the batch.

    Attributes:
        content: Text of the fact.
        sources: Distinct ids of the memories.
    """

    content: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelNote:
    """Contradiction or connection that the model found, with the distinct ids of the memories and its description."""

    ids: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedEntity:
    """Entity that the model found.

    Attributes:
        ids: Ids of memories of the batch that name it, according to the model.
        aliases: Other names.
    """

    name: str
    kind: ModelKind
    ids: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFindings:
    """Findings of a model about a batch. Ids are the batch's short names until `with_ids` replaces them.

    Attributes:
        facts: Facts with at least two sources.
        contradictions: Contradictions of at least two memories.
        connections: Connections of two memories.
        categories: Category by memory id.
        entities: Entities with at least one memory.
        aliases: Pairs of name and alias.
        relations: Triples of source, relation and target.
        dropped: Number of ids in the answer that are not in the batch.
    """

    facts: tuple[ExtractedFact, ...] = ()
    contradictions: tuple[ModelNote, ...] = ()
    connections: tuple[ModelNote, ...] = ()
    categories: Mapping[str, str] = field(default_factory=dict)
    entities: tuple[ExtractedEntity, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    relations: tuple[ExtractedRelation, ...] = ()
    dropped: int = 0

    def with_ids(self, ids: Mapping[str, str]) -> "ModelFindings":
        """Return the findings with the model's short names of memories replaced by their ids.

        Args:
            ids: Memory id by short name.
        """

        def named(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(ids[name] for name in names)

        return replace(
            self,
            facts=tuple(ExtractedFact(fact.content, named(fact.sources)) for fact in self.facts),
            contradictions=tuple(ModelNote(named(note.ids), note.description) for note in self.contradictions),
            connections=tuple(ModelNote(named(note.ids), note.description) for note in self.connections),
            categories={ids[name]: category for name, category in self.categories.items()},
            entities=tuple(replace(entity, ids=named(entity.ids)) for entity in self.entities),
        )


def parse_findings(answer: Mapping[str, Any], batch: AbstractSet[str]) -> ModelFindings:
    """Parse an answer, without memory ids that are not in the batch.

    Findings that then name too few memories are left out, and connections that do not name exactly two.

    Args:
        answer: Answer that matches `SCHEMA`.
        batch: Short names of the memories that the model was shown.
    """
    dropped = sum(id_ not in batch for id_ in _ids_in(answer))
    facts = (
        ExtractedFact(item["content"].strip(), _of(item["source_ids"], batch))
        for item in _items(answer, "merged_facts")
    )
    categories = {item["memory_id"]: item["category"] for item in _items(answer, "categories")}
    return ModelFindings(
        facts=tuple(fact for fact in facts if fact.content and len(fact.sources) > 1),
        contradictions=_notes(answer, "contradictions", batch),
        connections=tuple(note for note in _notes(answer, "connections", batch) if len(note.ids) == 2),
        categories={id_: category for id_, category in categories.items() if id_ in batch},
        entities=tuple(_entities(answer, batch)),
        aliases=tuple(
            (normalize_spelling(item["name"]), normalize_spelling(item["alias"])) for item in _items(answer, "aliases")
        ),
        relations=tuple(
            (normalize_spelling(item["source"]), item["relation"], normalize_spelling(item["target"]))
            for item in _items(answer, "relations")
        ),
        dropped=dropped,
    )


def _notes(answer: Mapping[str, Any], name: str, batch: AbstractSet[str]) -> tuple[ModelNote, ...]:
    notes = (ModelNote(_of(item["memory_ids"], batch), item["description"].strip()) for item in _items(answer, name))
    return tuple(note for note in notes if len(note.ids) > 1)


def _entities(answer: Mapping[str, Any], batch: AbstractSet[str]) -> Iterator[ExtractedEntity]:
    for item in _items(answer, "entities"):
        name, ids = normalize_spelling(item["name"]), _of(item["memory_ids"], batch)
        aliases = tuple(filter(None, map(normalize_spelling, item.get("aliases") or ())))
        if name and ids:
            yield ExtractedEntity(name=name, kind=item["kind"], ids=ids, aliases=aliases)


def _items(answer: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return answer.get(name) or ()


def _of(ids: Sequence[str], batch: AbstractSet[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for id_ in ids if id_ in batch))


def _ids_in(answer: Mapping[str, Any]) -> Iterator[str]:
    for item in _items(answer, "merged_facts"):
        yield from item["source_ids"]
    for item in (item for name in ("contradictions", "connections", "entities") for item in _items(answer, name)):
        yield from item["memory_ids"]
    yield from (item["memory_id"] for item in _items(answer, "categories"))
