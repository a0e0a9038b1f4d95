"""The calls about the names that memories speak of; each is a method of a user. docs/entities.md."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agentmemory_client.exchange import Call, Listing, path_of
from agentmemory_client.values import Answer, read_value

Json = dict[str, Any]
RelationKind = Literal["contact_of", "same_owner", "uses", "works_on", "competitor_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidRelation(Answer):
    """A relation as it now is; `strength` is how often somebody said so."""

    source: str
    relation: str
    target: str
    strength: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntity(Answer):
    """A name, and how many of the user's newest memories bear it; no kind where none does."""

    name: str
    kind: str | None
    memories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDetails(NamedEntity):
    """A name with its other spellings, its newest memories, and what it is linked to.

    Attributes:
        neighbours: each with name, relation, strength and incoming.
    """

    aliases: tuple[str, ...] = ()
    memory_ids: tuple[str, ...] = ()
    neighbours: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitiesPage(Answer):
    """Names, those of most memories first; `next_cursor` is None on the last page."""

    results: tuple[NamedEntity, ...]
    next_cursor: str | None = None


def relate(agent: str, user_id: str, source: str, relation: RelationKind, target: str) -> Call[SaidRelation]:
    """Say that one name relates to another; an attempt that is repeated may count twice."""
    body = {"user_id": user_id, "source": source, "relation": relation, "target": target}
    return Call(method="PUT", path=path_of(agent, "relations"), body=body, read=partial(read_value, SaidRelation))


def entities(agent: str, user_id: str) -> Listing[NamedEntity]:
    """The names of a user's memories, those of most memories first; pages are read as they are needed."""
    path = path_of(agent, "entities")
    return Listing(Call(method="GET", path=path, parameters={"user_id": user_id}, read=_read_page))


def entity(agent: str, user_id: str, name: str) -> Call[EntityDetails]:
    """One name, by any of its spellings."""
    return _asking("GET", agent, user_id, name)


def rename_entity(agent: str, user_id: str, name: str, new: str) -> Call[EntityDetails]:
    """Call a name by another."""
    return _asking("PATCH", agent, user_id, name, {"name": new})


def merge_entity(agent: str, user_id: str, name: str, into: str) -> Call[EntityDetails]:
    """Take a name for a spelling of another."""
    return _asking("PATCH", agent, user_id, name, {"merge_into": into})


def _asking(
    method: Literal["GET", "PATCH"], agent: str, user_id: str, name: str, body: Json | None = None
) -> Call[EntityDetails]:
    path, parameters = path_of(agent, "entities", name), {"user_id": user_id}
    return Call(method=method, path=path, parameters=parameters, body=body, read=partial(read_value, EntityDetails))


def _read_page(document: Json) -> EntitiesPage:
    return read_value(
        EntitiesPage, document | {"results": [read_value(NamedEntity, one) for one in document["results"]]}
    )
