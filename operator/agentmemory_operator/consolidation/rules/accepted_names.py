"""Decide which names in a model's answer are accepted, and which memories they are stored on. Pure.

- The model lists memories for each entity. The entity is accepted if one of these contains its name as whole words. It
  is stored on those that contain its name or an accepted alias.
- An alias or relation between two names is accepted if memories of the batch contain both names.

So a model cannot store a name that no memory contains. Words that the agent's lists exclude as names are rejected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.consolidation.rules.model_findings import ExtractedEntity, ExtractedRelation, ModelFindings
from agentmemory_operator.entities.rules.lists import EntityLists, may_be_name
from agentmemory_operator.memories.rules.entities import Entity, fold
from agentmemory_operator.memories.rules.words import SearchedText, prepare_search


@dataclass(frozen=True, slots=True)
class BatchNames:
    """Accepted names of a batch.

    Attributes:
        by_memory: Entities by id of the memory that names them.
        aliases: Pairs of name and alias.
        relations: Triples of source, relation and target.
    """

    entities: tuple[ExtractedEntity, ...] = ()
    by_memory: Mapping[str, tuple[Entity, ...]] = field(default_factory=dict)
    aliases: tuple[tuple[str, str], ...] = ()
    relations: tuple[ExtractedRelation, ...] = ()

    def find_in(self, content: str) -> tuple[tuple[str, str], ...]:
        """Return name and kind of the entities that a text contains by name or accepted alias."""
        text = prepare_search(content)
        return tuple((entity.name, entity.kind) for entity in self.entities if _names(text, entity))


NO_NAMES = BatchNames()


def select_names(by_id: Mapping[str, Mapping[str, Any]], findings: ModelFindings, lists: EntityLists) -> BatchNames:
    """Select the accepted names of an answer.

    Args:
        by_id: Memories of the batch by id.
        findings: Findings with memory ids.
        lists: Lists of the agent, with the words that are not names.
    """
    texts = {id_: prepare_search(row["content"]) for id_, row in by_id.items()}

    def are_in_sources(names: Iterable[str], ids: Iterable[str] = by_id.keys()) -> bool:
        return all(may_be_name(name, lists) and any(texts[id_].has(name) for id_ in ids) for name in names)

    entities: list[ExtractedEntity] = []
    by_memory: dict[str, tuple[Entity, ...]] = {}
    for candidate in findings.entities:
        if are_in_sources([candidate.name], candidate.ids):
            entity = replace(
                candidate, aliases=tuple(alias for alias in candidate.aliases if are_in_sources([alias], candidate.ids))
            )
            entities.append(entity)
            for id_ in entity.ids:
                if _names(texts[id_], entity):
                    by_memory[id_] = (*by_memory.get(id_, ()), Entity(entity.name, entity.kind))
    aliases = [(entity.name, alias) for entity in entities for alias in entity.aliases]
    aliases += [pair for pair in findings.aliases if are_in_sources(pair)]
    distinct = {(fold(name), fold(alias)): (name, alias) for name, alias in aliases if fold(name) != fold(alias)}
    relations = tuple(relation for relation in findings.relations if are_in_sources((relation[0], relation[2])))
    return BatchNames(tuple(entities), by_memory, tuple(distinct.values()), relations)


def _names(text: SearchedText, entity: ExtractedEntity) -> bool:
    return any(text.has(spelling) for spelling in (entity.name, *entity.aliases))
