"""Entities in force: the object's lists over the product's, where its preset or itself asks for entities."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_entities import ListedNameSpec
from agentmemory_operator.spec.presets.table import Preset


@dataclass(frozen=True, slots=True)
class OwnName:
    """A known name of an object's own list; `cased` ones are words of everyday language too."""

    name: str
    aliases: tuple[str, ...] = ()
    cased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySettings:
    """What an object says of entities.

    Attributes:
        technologies, systems: in the place of the product's lists; None leaves those.
        ignored: names that are none, beside those that the product ignores.
    """

    technologies: tuple[OwnName, ...] | None = None
    systems: tuple[OwnName, ...] | None = None
    ignored: tuple[str, ...] = ()


def effective_entities(memory: AgentMemory, preset: Preset) -> EntitySettings | None:
    """What the object says of entities; None where it has none."""
    spec = memory.spec.entities
    if spec is None:
        return EntitySettings() if preset.has_entities else None
    if spec.enabled is False:
        return None
    return EntitySettings(
        technologies=_names(spec.technologies), systems=_names(spec.systems), ignored=tuple(spec.ignore or ())
    )


def _names(listed: Sequence[ListedNameSpec] | None) -> tuple[OwnName, ...] | None:
    if listed is None:
        return None
    return tuple(OwnName(name.name, tuple(name.aliases or ()), bool(name.cased)) for name in listed)
