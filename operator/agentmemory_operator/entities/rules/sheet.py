"""Entity sheet of a scope: typed relations, aliases and renames, which no memory contains.

Each sheet is stored as one point. Readers of memories treat the point as a tombstone, so no search finds it. It
contains the user id, so it is erased with the whole user, and copied and restored with the collection. Sheets are
immutable: every change returns a new sheet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentmemory_operator.memories.rules.entities import MAX_ENTITY_NAME_CHARS, fold
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import ENTITY_SHEET_KEY

RelationName = Literal["contact_of", "same_owner", "uses", "works_on", "competitor_of"]
RELATIONS: tuple[RelationName, ...] = ("contact_of", "same_owner", "uses", "works_on", "competitor_of")

MAX_RELATIONS, MAX_SHEET_ALIASES = 1_000, 1_000
"""Maximum numbers of relations and of aliases per scope."""

MAX_STRENGTH = 1_000_000
_SHEET_FORM = 1


@dataclass(frozen=True, slots=True)
class Relation:
    """Typed relation between two names. `strength` counts how often it was stored, up to 1,000,000."""

    source: str
    relation: RelationName
    target: str
    strength: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the relation: its folded names and its type."""
        return fold(self.source), self.relation, fold(self.target)


@dataclass(frozen=True, slots=True)
class Alias:
    """Spelling that refers to another name of the scope."""

    alias: str
    name: str


@dataclass(frozen=True, slots=True)
class EntitySheet:
    """Relations and aliases of a scope.

    Attributes:
        relations: Relations by key.
        aliases: Aliases by folded spelling. None of them points to another alias.
    """

    relations: Mapping[tuple[str, str, str], Relation] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """Return the canonical name of a spelling: the name itself unless it is an alias."""
        alias = self.aliases.get(fold(name))
        return alias.name if alias else name

    def with_relation(self, source: str, relation: RelationName, target: str, *, times: int = 1) -> "EntitySheet":
        """Return the sheet with a relation added or strengthened.

        A relation between two spellings of one name changes nothing.

        Args:
            times: Strength to add.
        """
        added = Relation(self.resolve(source), relation, self.resolve(target))
        if fold(added.source) == fold(added.target):
            return self
        existing = self.relations.get(added.key)
        strength = min((existing.strength if existing else 0) + times, MAX_STRENGTH)
        return replace(self, relations={**self.relations, added.key: replace(existing or added, strength=strength)})

    def with_alias(self, alias: str, name: str) -> "EntitySheet":
        """Return the sheet with another spelling of a name. Relations of the spelling move to the name."""
        canonical = self.resolve(name)
        return self if fold(alias) == fold(canonical) else self.with_renamed(alias, canonical)

    def with_renamed(self, old: str, new: str) -> "EntitySheet":
        """Return the sheet with a name replaced by another.

        The old name becomes an alias of the new name. If the new name was an alias, that alias is removed.
        """
        aliases = {
            key: Alias(alias.alias, new) if fold(alias.name) == fold(old) else alias
            for key, alias in self.aliases.items()
            if key != fold(new)
        }
        aliases[fold(old)] = Alias(old, new)
        return EntitySheet(_together(_renamed(relation, old, new) for relation in self.relations.values()), aliases)

    def merged_with(self, other: "EntitySheet") -> "EntitySheet":
        """Return the sheet with the aliases and relations of another sheet added.

        If both have an alias of one spelling, or one relation between the same names, this sheet's is kept.
        """
        sheet = self
        for key, alias in other.aliases.items():
            if key not in sheet.aliases:
                sheet = sheet.with_alias(alias.alias, alias.name)
        for link in other.relations.values():
            resolved = Relation(sheet.resolve(link.source), link.relation, sheet.resolve(link.target))
            if resolved.key not in sheet.relations:
                sheet = sheet.with_relation(link.source, link.relation, link.target, times=link.strength)
        return sheet

    @property
    def is_full(self) -> bool:
        """True if the sheet exceeds the limits of a scope."""
        return len(self.relations) > MAX_RELATIONS or len(self.aliases) > MAX_SHEET_ALIASES


NO_SHEET = EntitySheet()


def sheet_id(agent_scope: str, user_id: str) -> str:
    """Return the id of a scope's sheet. No idempotency key of a memory gives the same id."""
    return keyed_id(agent_scope, user_id, "entities\x1fsheet")


def sheet_to_json(sheet: EntitySheet) -> dict[str, Any]:
    """Render a sheet as the value of `ENTITY_SHEET_KEY` in its point."""
    return {
        "form": _SHEET_FORM,
        "relations": [[link.source, link.relation, link.target, link.strength] for link in sheet.relations.values()],
        "aliases": [[entry.alias, entry.name] for entry in sheet.aliases.values()],
    }


def sheet_from_payload(payload: Mapping[str, Any] | None) -> EntitySheet:
    """Parse the sheet in a payload; empty without one. Malformed entries and those beyond the limits are skipped."""
    stored = (payload or {}).get(ENTITY_SHEET_KEY)
    stored = stored if isinstance(stored, dict) else {}
    relations = (Relation(*entry) for entry in _listed(stored.get("relations"), MAX_RELATIONS) if _is_relation(entry))
    aliases = (Alias(*entry) for entry in _listed(stored.get("aliases"), MAX_SHEET_ALIASES) if _are_names(entry, 2))
    return EntitySheet({entry.key: entry for entry in relations}, {fold(entry.alias): entry for entry in aliases})


def _listed(value: Any, max_entries: int) -> list[Any]:
    return value[:max_entries] if isinstance(value, list) else []


def _are_names(value: Any, count: int) -> bool:
    is_list = isinstance(value, list) and len(value) == count
    return is_list and all(
        isinstance(name, str) and len(name) <= MAX_ENTITY_NAME_CHARS and fold(name) for name in value
    )


def _is_relation(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4 or not _are_names(value[:3], 3) or value[1] not in RELATIONS:
        return False
    return isinstance(value[3], int) and 0 < value[3] <= MAX_STRENGTH


def _renamed(relation: Relation, old: str, new: str) -> Relation:
    source = new if fold(relation.source) == fold(old) else relation.source
    target = new if fold(relation.target) == fold(old) else relation.target
    return replace(relation, source=source, target=target)


def _together(relations: Iterable[Relation]) -> dict[tuple[str, str, str], Relation]:
    """Return relations by key. Strengths of equal relations are added; a relation of a name to itself is dropped."""
    found: dict[tuple[str, str, str], Relation] = {}
    for relation in relations:
        if fold(relation.source) != fold(relation.target):
            existing = found.get(relation.key)
            strength = min(relation.strength + (existing.strength if existing else 0), MAX_STRENGTH)
            found[relation.key] = replace(relation, strength=strength)
    return found
