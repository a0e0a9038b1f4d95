"""What a memory names, as it lies on its point. Who finds the names in a text: `entities/rules/extract.py`."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ENTITIES_KEY = "entities"
ENTITIES_MAX = 32
NAME_MAX = 320
"""As long as an author may be, who is an entity too."""

EntityKind = Literal["client", "agent", "domain", "technology", "system", "quoted", "phrase"]
EntityRole = Literal["about", "source", "mentioned"]

_KINDS = frozenset({"client", "agent", "domain", "technology", "system", "quoted", "phrase"})
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


def entities_to_payload(entities: Iterable[Entity]) -> list[dict[str, str]]:
    """How they lie on a point."""
    return [{"name": one.name, "kind": one.kind, "role": one.role} for one in entities]


def entities_from_payload(values: Sequence[Any]) -> tuple[Entity, ...]:
    """What lies on a point; what others wrote there and is none is left out."""
    return tuple(
        Entity(value["name"], value["kind"], value["role"])
        for value in values[:ENTITIES_MAX]
        if isinstance(value, Mapping) and _is_entity(value)
    )


def _is_entity(value: Mapping[str, Any]) -> bool:
    name = value.get("name")
    is_name = isinstance(name, str) and 0 < len(name) <= NAME_MAX
    return is_name and value.get("kind") in _KINDS and value.get("role") in _ROLES
