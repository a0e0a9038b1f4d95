"""Settings of entities: the names that are detected in memories, if the object or its preset enables that."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_entities import ListedNameSpec
from agentmemory_operator.spec.presets.table import Preset


@dataclass(frozen=True, slots=True)
class DeclaredName:
    """Name in an object's own list of technologies or systems.

    Attributes:
        cased: True if the name is also an everyday word, so that only its exact spelling in a sentence counts.
    """

    name: str
    aliases: tuple[str, ...] = ()
    cased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """Spreading activation of a search over entities. The defaults are those of reference design R2.

    Attributes:
        decay: Factor of the activation for each link.
        typed_boost: Additional factor for a typed relation.
        max_depth: Maximum number of links to follow.
        min_activation: Minimum activation for a name to be reached.
    """

    decay: float = 0.8
    typed_boost: float = 2.0
    max_depth: int = 2
    min_activation: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySettings:
    """Entity settings of an object.

    Attributes:
        spreading: Limits of following entities in a search.
        technologies, systems: Replacements for the built-in lists. None keeps those.
        ignored: Words that are not names, in addition to the built-in ones.
    """

    technologies: tuple[DeclaredName, ...] | None = None
    systems: tuple[DeclaredName, ...] | None = None
    ignored: tuple[str, ...] = ()
    spreading: Spreading = Spreading()

    @property
    def detection(self) -> object:
        """Settings that decide which names are detected. While they are equal, stored memories need no second pass."""
        return self.technologies, self.systems, self.ignored


_SPREADING = {field.name for field in fields(Spreading)}


def effective_entities(memory: AgentMemory, preset: Preset) -> EntitySettings | None:
    """Return the entity settings of an object. None if entities are disabled."""
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


def _names(listed: Sequence[ListedNameSpec] | None) -> tuple[DeclaredName, ...] | None:
    if listed is None:
        return None
    return tuple(DeclaredName(name.name, tuple(name.aliases or ()), bool(name.cased)) for name in listed)
