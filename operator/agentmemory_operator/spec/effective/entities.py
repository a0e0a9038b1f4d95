"""Entities in force: the object's lists over the product's, where its preset or itself asks for entities."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

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
class Spreading:
    """How a search follows entities, by the figures of the design.

    Attributes:
        decay: factor of the activation along a link.
        typed_boost: factor along a typed relation, beside that.
        max_depth: links that are followed.
        min_activation: a name that is activated less is not reached.
    """

    decay: float = 0.8
    typed_boost: float = 2.0
    max_depth: int = 2
    min_activation: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySettings:
    """What an object says of entities.

    Attributes:
        spreading: how a search follows them.
        technologies, systems: in the place of the product's lists; None leaves those.
        ignored: names that are none, beside those that the product ignores.
    """

    technologies: tuple[OwnName, ...] | None = None
    systems: tuple[OwnName, ...] | None = None
    ignored: tuple[str, ...] = ()
    spreading: Spreading = Spreading()

    @property
    def detection(self) -> object:
        """What memories are searched for: stored ones need no second look where this stays as it is."""
        return self.technologies, self.systems, self.ignored


_SPREADING = {field.name for field in fields(Spreading)}


def effective_entities(memory: AgentMemory, preset: Preset) -> EntitySettings | None:
    """What the object says of entities; None where it has none."""
    spec = memory.spec.entities
    if spec is None:
        return EntitySettings() if preset.has_entities else None
    if spec.enabled is False:
        return None
    return EntitySettings(
        technologies=_names(spec.technologies),
        systems=_names(spec.systems),
        ignored=tuple(spec.ignore or ()),
        spreading=Spreading(**spec.model_dump(include=_SPREADING, exclude_none=True)),
    )


def _names(listed: Sequence[ListedNameSpec] | None) -> tuple[OwnName, ...] | None:
    if listed is None:
        return None
    return tuple(OwnName(name.name, tuple(name.aliases or ()), bool(name.cased)) for name in listed)
