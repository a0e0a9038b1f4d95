"""What of a scope's entities no memory tells: typed relations, aliases, renames. One point of each scope bears it.

The point is a tombstone to whoever reads memories, so that none of them finds it; it bears its user, so that it is
erased, copied and restored with the user's memories. All changes are values: the new sheet of an old one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentmemory_operator.memories.rules.entities import NAME_MAX, fold
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import SHEET_KEY

RelationName = Literal["contact_of", "same_owner", "uses", "works_on", "competitor_of"]
RELATIONS: tuple[RelationName, ...] = ("contact_of", "same_owner", "uses", "works_on", "competitor_of")

RELATIONS_MAX, ALIASES_MAX = 1_000, 1_000
"""Of one scope."""

STRENGTH_MAX = 1_000_000
_SHEET_FORM = 1


@dataclass(frozen=True, slots=True)
class Relation:
    """That one name relates to another, and how often somebody said so."""

    source: str
    relation: RelationName
    target: str
    strength: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return fold(self.source), self.relation, fold(self.target)


@dataclass(frozen=True, slots=True)
class Alias:
    """That one spelling stands for another name."""

    alias: str
    name: str


@dataclass(frozen=True, slots=True)
class EntitySheet:
    """What is known of a scope's entities beside what its memories name.

    Attributes:
        relations: by their keys.
        aliases: by the folded alias; none leads to another alias.
    """

    relations: Mapping[tuple[str, str, str], Relation] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """The name that a spelling stands for: itself, unless it is an alias."""
        alias = self.aliases.get(fold(name))
        return alias.name if alias else name

    def related(self, source: str, relation: RelationName, target: str, *, times: int = 1) -> "EntitySheet":
        """The sheet once somebody said so again; between two spellings of one name there is no relation."""
        said = Relation(self.resolve(source), relation, self.resolve(target))
        if fold(said.source) == fold(said.target):
            return self
        before = self.relations.get(said.key)
        strength = min((before.strength if before else 0) + times, STRENGTH_MAX)
        return replace(self, relations={**self.relations, said.key: replace(before or said, strength=strength)})

    def aliased(self, alias: str, name: str) -> "EntitySheet":
        """The sheet with another spelling of a name; relations of the alias go over to the name."""
        canonical = self.resolve(name)
        return self if fold(alias) == fold(canonical) else self.renamed(alias, canonical)

    def renamed(self, old: str, new: str) -> "EntitySheet":
        """The sheet where one name is called by another, which is no alias any more."""
        aliases = {
            key: Alias(one.alias, new) if fold(one.name) == fold(old) else one
            for key, one in self.aliases.items()
            if key != fold(new)
        }
        aliases[fold(old)] = Alias(old, new)
        return EntitySheet(_together(_renamed(one, old, new) for one in self.relations.values()), aliases)

    def joined(self, other: "EntitySheet") -> "EntitySheet":
        """The sheet with what another one has besides; what both have stays as it is here."""
        sheet = self
        for key, alias in other.aliases.items():
            if key not in sheet.aliases:
                sheet = sheet.aliased(alias.alias, alias.name)
        for one in other.relations.values():
            said = Relation(sheet.resolve(one.source), one.relation, sheet.resolve(one.target))
            if said.key not in sheet.relations:
                sheet = sheet.related(one.source, one.relation, one.target, times=one.strength)
        return sheet

    @property
    def is_full(self) -> bool:
        """Whether it holds more than a scope may."""
        return len(self.relations) > RELATIONS_MAX or len(self.aliases) > ALIASES_MAX


NO_SHEET = EntitySheet()


def sheet_id(agent_scope: str, user_id: str) -> str:
    """The id of a scope's sheet; no idempotency key of a memory gives the same id."""
    return keyed_id(agent_scope, user_id, "entities\x1fsheet")


def sheet_to_facts(sheet: EntitySheet) -> dict[str, Any]:
    """Render a sheet as its point has it under `SHEET_KEY`."""
    return {
        "form": _SHEET_FORM,
        "relations": [[one.source, one.relation, one.target, one.strength] for one in sheet.relations.values()],
        "aliases": [[one.alias, one.name] for one in sheet.aliases.values()],
    }


def sheet_from_payload(payload: Mapping[str, Any] | None) -> EntitySheet:
    """The sheet that a point bears, as far as it is one of ours; an empty one where it bears none."""
    said = (payload or {}).get(SHEET_KEY)
    said = said if isinstance(said, dict) else {}
    relations = (Relation(*one) for one in _listed(said.get("relations"), RELATIONS_MAX) if _is_relation(one))
    aliases = (Alias(*one) for one in _listed(said.get("aliases"), ALIASES_MAX) if _are_names(one, 2))
    return EntitySheet({one.key: one for one in relations}, {fold(one.alias): one for one in aliases})


def _listed(value: Any, most: int) -> list[Any]:
    return value[:most] if isinstance(value, list) else []


def _are_names(value: Any, count: int) -> bool:
    is_list = isinstance(value, list) and len(value) == count
    return is_list and all(isinstance(name, str) and len(name) <= NAME_MAX and fold(name) for name in value)


def _is_relation(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4 or not _are_names(value[:3], 3) or value[1] not in RELATIONS:
        return False
    return isinstance(value[3], int) and 0 < value[3] <= STRENGTH_MAX


def _renamed(one: Relation, old: str, new: str) -> Relation:
    source = new if fold(one.source) == fold(old) else one.source
    target = new if fold(one.target) == fold(old) else one.target
    return replace(one, source=source, target=target)


def _together(relations: Iterable[Relation]) -> dict[tuple[str, str, str], Relation]:
    """Relations by key; those that became the same count together, and none is of a name to itself."""
    found: dict[tuple[str, str, str], Relation] = {}
    for one in relations:
        if fold(one.source) != fold(one.target):
            before = found.get(one.key)
            strength = min(one.strength + (before.strength if before else 0), STRENGTH_MAX)
            found[one.key] = replace(one, strength=strength)
    return found
