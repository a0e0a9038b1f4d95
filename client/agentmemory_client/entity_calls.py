"""Calls about entities, the names that memories mention; each becomes a method of a user. See docs/entities.md."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agentmemory_client.exchange import Call, Listing, build_path
from agentmemory_client.values import Answer, read_value

Json = dict[str, Any]
RelationKind = Literal["contact_of", "same_owner", "uses", "works_on", "competitor_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidRelation(Answer):
    """Current state of a relation between two names.

    Attributes:
        strength: Number of times that the relation was stated.
    """

    source: str
    relation: str
    target: str
    strength: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntity(Answer):
    """A name that memories mention.

    Attributes:
        kind: Kind of entity; None if no memory gives one.
        memories: Number of memories that mention the name, among the user's newest 2,000.
    """

    name: str
    kind: str | None
    memories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDetails(NamedEntity):
    """A name with its aliases, its newest memories and its related names.

    Attributes:
        neighbours: Related names, each with name, relation, strength and incoming.
    """

    aliases: tuple[str, ...] = ()
    memory_ids: tuple[str, ...] = ()
    neighbours: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitiesPage(Answer):
    """A page of names, those with the most memories first; `next_cursor` is None on the last page."""

    results: tuple[NamedEntity, ...]
    next_cursor: str | None = None


def relate(agent: str, user_id: str, source: str, relation: RelationKind, target: str) -> Call[SaidRelation]:
    """Record that one name relates to another. A retried request may be counted twice."""
    body = {"user_id": user_id, "source": source, "relation": relation, "target": target}
    return Call(method="PUT", path=build_path(agent, "relations"), body=body, read=partial(read_value, SaidRelation))


def entities(agent: str, user_id: str) -> Listing[NamedEntity]:
    """List the names in a user's memories, those with the most memories first. Pages are read on demand."""
    path = build_path(agent, "entities")
    return Listing(Call(method="GET", path=path, parameters={"user_id": user_id}, read=_read_page))


def entity(agent: str, user_id: str, name: str) -> Call[EntityDetails]:
    """Read one name, given as itself or by any of its aliases.

    Raises:
        ApiError: 404 if no memory or relation of the user has the name.
    """
    return _entity_call("GET", agent, user_id, name)


def rename_entity(agent: str, user_id: str, name: str, new: str) -> Call[EntityDetails]:
    """Rename an entity; its former name becomes an alias. If another entity has the new name, use `merge_entity`."""
    return _entity_call("PATCH", agent, user_id, name, {"name": new})


def merge_entity(agent: str, user_id: str, name: str, into: str) -> Call[EntityDetails]:
    """Merge an entity into another existing one: its name becomes an alias, and its memories and relations move."""
    return _entity_call("PATCH", agent, user_id, name, {"merge_into": into})


def _entity_call(
    method: Literal["GET", "PATCH"], agent: str, user_id: str, name: str, body: Json | None = None
) -> Call[EntityDetails]:
    path, parameters = build_path(agent, "entities", name), {"user_id": user_id}
    return Call(method=method, path=path, parameters=parameters, body=body, read=partial(read_value, EntityDetails))


def _read_page(document: Json) -> EntitiesPage:
    return read_value(
        EntitiesPage, document | {"results": [read_value(NamedEntity, row) for row in document["results"]]}
    )
