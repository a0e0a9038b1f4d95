"""How a plain collection gets behind an alias of its own name: what is next, given what is there.

The collection itself bears the name, so the alias cannot be moved in one action as in any other Rebuild: the collection
has to go first, and clients find nothing until the alias is there. What goes is held twice by then: in the target,
which is verified, and in a copy of the collection as it was, the way back.

| plain collection | alias leads to | target's record | way back | next |
|---|---|---|---|---|
| there | nothing | Move | missing, or not proven | Keep: the copy is made |
| there | nothing | Move | proven | Replace: the last pass, then the collection goes |
| gone | nothing | Move | any | Link: the alias is created, at once |
| gone | nothing | another step | any | Lost: somebody else deleted the collection, and the target is no whole copy |
| gone | target | any | any | Done |
| gone | another collection | any | any | Taken: somebody else made the alias |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.domain.rebuilding import Record, Step, record_from_json


class Next(StrEnum):
    """What is to be done next."""

    KEEP = "Keep"
    REPLACE = "Replace"
    LINK = "Link"
    DONE = "Done"
    LOST = "Lost"
    TAKEN = "Taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is there.

    Attributes:
        has_plain: there is a collection of the alias's own name.
        leads_to: the collection that the alias leads to, None where there is no alias.
        has_way_back: a proven copy of the collection as it was is there.
    """

    has_plain: bool
    leads_to: str | None
    record: Record
    has_way_back: bool


def next_of(scene: Scene) -> Next:
    """Return what is to be done next; the module's table."""
    if scene.leads_to is not None:
        return Next.DONE if scene.leads_to == scene.record.target else Next.TAKEN
    if scene.has_plain:
        return Next.REPLACE if scene.has_way_back else Next.KEEP
    return Next.LINK if scene.record.step is Step.MOVE else Next.LOST


def is_of_plain(record: Record, alias: str) -> bool:
    """Tell whether a rebuild puts an alias in the place of a plain collection."""
    return record.source == alias


def awaits_alias(metadata: Mapping[str, Any] | None, alias: str) -> bool:
    """Tell whether a collection is about to be what an alias leads to, whose name another collection bore so far.

    While there is neither, nobody else may make that name's agent a collection.
    """
    record = record_from_json(metadata)
    return record is not None and is_of_plain(record, alias) and record.step is Step.MOVE
