"""Entities of a memory, as stored on its point: its owner, its author, and the names in its text.

`entities/rules/extract.py` finds them.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

ENTITIES_KEY = "entities"
MAX_ENTITIES = 32
MAX_ENTITY_NAME_CHARS = 320
"""Same limit as that of an author, which is an entity too."""

EntityKind = Literal[
    "client",
    "agent",
    "domain",
    "technology",
    "system",
    "quoted",
    "phrase",
    "person",
    "organisation",
    "project",
    "place",
]
ModelKind = Literal["person", "organisation", "project", "place", "technology", "system", "domain"]
"""Kinds that a language model may assign."""

MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)

EntityRole = Literal["about", "source", "mentioned"]

_KINDS = frozenset(get_args(EntityKind))
_SPELT_KINDS = frozenset({"quoted", "phrase"})
# Removes the invisible characters that names may contain, between letters in Persian, Hindi and other languages.
_JOINERS = str.maketrans("", "", "\u200c\u200d")
_ROLES = frozenset({"about", "source", "mentioned"})


@dataclass(frozen=True, slots=True)
class Entity:
    """Name of an entity.

    Attributes:
        name: Spelling of the list of known names, else of the text.
        role: about: the memory's owner; source: its author; mentioned: named in its text.
    """

    name: str
    kind: EntityKind
    role: EntityRole = "mentioned"


def fold(name: str) -> str:
    """Return the comparison form of a name: equal for spellings that differ only in case, width or spaces."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def normalize_spelling(name: str) -> str:
    """Return the stored spelling of a name: NFC, with single spaces.

    Empty if the name has no visible characters, or invisible ones other than zero-width joiners.
    """
    spelling = " ".join(unicodedata.normalize("NFC", name).split())
    visible = spelling.translate(_JOINERS)
    return spelling if visible and visible.isprintable() else ""


def is_specific(kind: EntityKind | None) -> bool:
    """Return whether a kind describes the entity. None, `quoted` and `phrase` do not."""
    return kind is not None and kind not in _SPELT_KINDS


def merge_entities(before: Iterable[Entity], found: Iterable[Entity]) -> tuple[Entity, ...]:
    """Return the entities of `before`, then the new entities of `found`, at most 32.

    An entity that has no specific kind gets the kind under which `found` contains its name.
    """
    by_name = {fold(entity.name): entity for entity in before}
    for entity in found:
        existing = by_name.setdefault(fold(entity.name), entity)
        if not is_specific(existing.kind):
            by_name[fold(entity.name)] = replace(existing, kind=entity.kind)
    return tuple(by_name.values())[:MAX_ENTITIES]


def entities_to_payload(entities: Iterable[Entity]) -> list[dict[str, str]]:
    """Render entities as stored on a point."""
    return [{"name": entity.name, "kind": entity.kind, "role": entity.role} for entity in entities]


def entities_from_payload(values: Any) -> tuple[Entity, ...]:
    """Parse the first 32 entities of a point; skip malformed entries, which other tools may have written."""
    entries = values[:MAX_ENTITIES] if isinstance(values, list) else ()
    return tuple(Entity(entry["name"], entry["kind"], entry["role"]) for entry in entries if _is_entity(entry))


def _is_entity(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    name, kind, role = (value.get(part) for part in ("name", "kind", "role"))
    has_known_kind = isinstance(kind, str) and isinstance(role, str) and kind in _KINDS and role in _ROLES
    return has_known_kind and isinstance(name, str) and 0 < len(name) <= MAX_ENTITY_NAME_CHARS and bool(fold(name))
