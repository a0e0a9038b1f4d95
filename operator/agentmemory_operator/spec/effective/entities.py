"""Entities in force: the object's lists over the product's, where its preset or itself asks for entities."""

from collections.abc import Sequence

from agentmemory_operator.spec.entities import EntitySettings, OwnName
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_entities import ListedNameSpec
from agentmemory_operator.spec.presets.table import Preset


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
