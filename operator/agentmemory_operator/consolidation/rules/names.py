"""Which names of a model's answer count, and which memories have them. Pure.

A name counts only where it stands: an entity on the memories that the model names and that have one of its spellings as
whole words, an alias or a relation where memories of the batch have both names. So a model can name nothing that nobody
wrote. What the lists of the agent take for no name is none here either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.consolidation.rules.answer import Reading, SaidEntity, SaidRelation
from agentmemory_operator.entities.rules.lists import EntityLists, may_be_name
from agentmemory_operator.memories.rules.entities import Entity, fold
from agentmemory_operator.memories.rules.words import SearchedText, searched


@dataclass(frozen=True, slots=True)
class BatchNames:
    """What is noted of the names in a batch.

    Attributes:
        entities: those that some memory names.
        of_memories: by memory: what it names.
        aliases: name and its alias.
    """

    entities: tuple[SaidEntity, ...] = ()
    of_memories: Mapping[str, tuple[Entity, ...]] = field(default_factory=dict)
    aliases: tuple[tuple[str, str], ...] = ()
    relations: tuple[SaidRelation, ...] = ()

    def named_by(self, content: str) -> tuple[tuple[str, str], ...]:
        """Name and kind of the entities that a text names."""
        text = searched(content)
        return tuple((one.name, one.kind) for one in self.entities if _names(text, one))


NO_NAMES = BatchNames()


def names_of(by_id: Mapping[str, Mapping[str, Any]], findings: Reading, lists: EntityLists) -> BatchNames:
    """What of the names in an answer is noted.

    Args:
        by_id: the memories of the batch.
    """
    texts = {id_: searched(row["content"]) for id_, row in by_id.items()}

    def are_said(names: Iterable[str], ids: Iterable[str] = by_id.keys()) -> bool:
        return all(may_be_name(name, lists) and any(texts[id_].has(name) for id_ in ids) for name in names)

    entities: list[SaidEntity] = []
    of_memories: dict[str, tuple[Entity, ...]] = {}
    for said in findings.entities:
        if are_said([said.name], said.ids):
            one = replace(said, aliases=tuple(alias for alias in said.aliases if are_said([alias], said.ids)))
            entities.append(one)
            for id_ in one.ids:
                if _names(texts[id_], one):
                    of_memories[id_] = (*of_memories.get(id_, ()), Entity(one.name, one.kind))
    aliases = [(one.name, alias) for one in entities for alias in one.aliases]
    aliases += [pair for pair in findings.aliases if are_said(pair)]
    distinct = {(fold(name), fold(alias)): (name, alias) for name, alias in aliases if fold(name) != fold(alias)}
    relations = tuple(one for one in findings.relations if are_said((one[0], one[2])))
    return BatchNames(tuple(entities), of_memories, tuple(distinct.values()), relations)


def _names(text: SearchedText, entity: SaidEntity) -> bool:
    return any(text.has(spelling) for spelling in (entity.name, *entity.aliases))
