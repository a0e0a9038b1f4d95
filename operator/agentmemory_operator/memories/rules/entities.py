"""What a memory names, as it lies on its point. Who finds the names in a text: `entities/rules/extract.py`."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

ENTITIES_KEY = "entities"
ENTITIES_MAX = 32
NAME_MAX = 320
"""As long as an author may be, who is an entity too."""

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
"""What a language model may call an entity."""

MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)

EntityRole = Literal["about", "source", "mentioned"]

_KINDS = frozenset(get_args(EntityKind))
_SPELT_KINDS = frozenset({"quoted", "phrase"})
# Between letters of a name in Persian, Hindi and others, though they do not show.
_JOINERS = str.maketrans("", "", "\u200c\u200d")
_ROLES = frozenset({"about", "source", "mentioned"})


@dataclass(frozen=True, slots=True)
class Entity:
    """One name.

    Attributes:
        name: as the list of known names spells it, else as the text does.
        role: about: whose memory it is; source: who stored it; mentioned: its text names it.
    """

    name: str
    kind: EntityKind
    role: EntityRole = "mentioned"


def fold(name: str) -> str:
    """What two spellings of one name have in common: neither case nor spaces tell names apart."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def spelt(name: str) -> str:
    """A name as it is kept: composed (NFC), with single spaces; empty of one with characters that do not show."""
    kept = " ".join(unicodedata.normalize("NFC", name).split())
    shown = kept.translate(_JOINERS)
    return kept if shown and shown.isprintable() else ""


def is_specific(kind: EntityKind | None) -> bool:
    """Whether a kind tells what something is, and not only how its name is written."""
    return kind is not None and kind not in _SPELT_KINDS


def with_found(before: Iterable[Entity], found: Iterable[Entity]) -> tuple[Entity, ...]:
    """What a memory names with what else was found in it: a name that is there gets a specific kind, if it has none."""
    by_name = {fold(one.name): one for one in before}
    for one in found:
        known = by_name.setdefault(fold(one.name), one)
        if not is_specific(known.kind):
            by_name[fold(one.name)] = replace(known, kind=one.kind)
    return tuple(by_name.values())[:ENTITIES_MAX]


def entities_to_payload(entities: Iterable[Entity]) -> list[dict[str, str]]:
    """How they lie on a point."""
    return [{"name": one.name, "kind": one.kind, "role": one.role} for one in entities]


def entities_from_payload(values: Any) -> tuple[Entity, ...]:
    """What lies on a point; what others wrote there and is none is left out."""
    listed = values[:ENTITIES_MAX] if isinstance(values, list) else ()
    return tuple(Entity(one["name"], one["kind"], one["role"]) for one in listed if _is_entity(one))


def _is_entity(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    name, kind, role = (value.get(part) for part in ("name", "kind", "role"))
    is_told = isinstance(kind, str) and isinstance(role, str) and kind in _KINDS and role in _ROLES
    return is_told and isinstance(name, str) and 0 < len(name) <= NAME_MAX and bool(fold(name))
