"""Entities in force: whether memories are searched for names, and by which lists."""

from dataclasses import dataclass


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
