"""Request and response models of entities."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entities.browse import EntityPage, EntityView
from agentmemory_operator.entities.rules.graph import CO_OCCURRENCE
from agentmemory_operator.entities.rules.sheet import RELATIONS, Relation, RelationName
from agentmemory_operator.entrypoints.api.fields import Body, UserId
from agentmemory_operator.entrypoints.api.memory_requests import UserParameters
from agentmemory_operator.entrypoints.api.memory_schemas import Answer
from agentmemory_operator.memories.rules.entities import MAX_ENTITY_NAME_CHARS, EntityKind
from agentmemory_operator.spec.canonical_names import NAME_PATTERN, canonical_name

Json = dict[str, Any]

MAX_NAME_CHARS = 100
DEFAULT_ENTITIES_PER_PAGE, MAX_ENTITIES_PER_PAGE = 100, 1_000
# Each has up to 100 ids and 100 neighbours.
MAX_DETAILED_ENTITIES = 100


def _spaced(value: str) -> str:
    """Collapse whitespace to single spaces."""
    return " ".join(value.split())


_NAME = BeforeValidator(canonical_name)
EntityName = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN), AfterValidator(_spaced), _NAME
]
# Name of an existing entity. It may be longer than a new name, because an author is an entity too.
KnownName = Annotated[str, Field(min_length=1, max_length=MAX_ENTITY_NAME_CHARS, pattern=NAME_PATTERN), _NAME]


class RelationIn(Body):
    """A relation between two names."""

    user_id: UserId = Field(description="User that the relation belongs to; other users do not see it.")
    source: EntityName = Field(description="Name that the relation starts at, in any of its spellings.")
    relation: RelationName = Field(description=f"One of {', '.join(RELATIONS)}.")
    target: EntityName = Field(description="Name that the relation points to, in any of its spellings.")


class EntityChangeIn(Body):
    """Change of a name: exactly one of the fields."""

    name: EntityName | None = Field(default=None, description="New name.")
    merge_into: EntityName | None = Field(default=None, description="Name to merge it into.")

    @model_validator(mode="after")
    def _require_one_change(self) -> "EntityChangeIn":
        if (self.name is None) == (self.merge_into is None):
            raise PydanticCustomError("one", "send one of name and merge_into", {"field": "name"})
        return self


class EntitiesParameters(UserParameters):
    """Query parameters for listing a user's entity names, page by page."""

    limit: int = Field(default=DEFAULT_ENTITIES_PER_PAGE, ge=1, le=MAX_ENTITIES_PER_PAGE, description="Names per page.")
    cursor: str | None = Field(default=None, max_length=4096, description="`next_cursor` of the previous page.")
    details: bool = Field(
        default=False,
        description=f"Return each name as `Read a name` does, for at most {MAX_DETAILED_ENTITIES} names per page.",
    )

    @model_validator(mode="after")
    def _bound_details(self) -> "EntitiesParameters":
        if self.details and self.limit > MAX_DETAILED_ENTITIES:
            message = f"at most {MAX_DETAILED_ENTITIES} with details"
            raise PydanticCustomError("limit", "{message}", {"message": message, "field": "limit"})
        return self


class RelationOut(Answer):
    """A relation as stored after the request."""

    source: str
    relation: RelationName
    target: str
    strength: int = Field(description="Number of times that the relation was stored.")


class ListedEntityOut(Answer):
    """A name in the list, with the number of memories that mention it."""

    name: str
    kind: EntityKind | None = Field(description="Kind of the name; null if only relations mention it.")
    memories: int = Field(description="Number of memories that mention the name, among the user's newest 2,000.")


class NeighbourOut(Answer):
    """A name that a relation, or memories that mention both, link to the name that was read."""

    name: str
    relation: str = Field(description=f"One of {', '.join(RELATIONS)}, or {CO_OCCURRENCE} if memories mention both.")
    strength: int = Field(description="Number of stores of the relation, or of memories that mention both names.")
    incoming: bool = Field(description="True if the relation points from the neighbour to this name.")


class EntityViewOut(Answer):
    """A name with its memories and neighbours."""

    name: str
    kind: EntityKind | None
    aliases: list[str] = Field(description="Other spellings, for this user only.")
    memories: int = Field(description="Number of memories that mention the name, among the user's newest 2,000.")
    memory_ids: list[str] = Field(description="IDs of the newest memories that mention the name, at most 100.")
    neighbours: list[NeighbourOut] = Field(description="At most 100; typed relations first, then by strength.")


class EntitiesOut(Answer):
    """Names, most mentioned first."""

    results: list[EntityViewOut] | list[ListedEntityOut]
    next_cursor: str | None


def render_relation(stored: Relation) -> Json:
    """Render the JSON of `RelationOut`."""
    return {"source": stored.source, "relation": stored.relation, "target": stored.target, "strength": stored.strength}


def render_entities(page: EntityPage) -> Json:
    """Render the JSON of `EntitiesOut`."""
    if page.views is not None:
        results = [render_entity(view) for view in page.views]
    else:
        results = [{"name": entity.name, "kind": entity.kind, "memories": entity.memories} for entity in page.results]
    return {"results": results, "next_cursor": page.next_cursor}


def render_entity(view: EntityView) -> Json:
    """Render the JSON of `EntityViewOut`."""
    return {
        "name": view.name,
        "kind": view.kind,
        "aliases": view.aliases,
        "memories": view.memories,
        "memory_ids": view.memory_ids,
        "neighbours": [
            {
                "name": neighbour.name,
                "relation": neighbour.relation,
                "strength": neighbour.strength,
                "incoming": neighbour.is_incoming,
            }
            for neighbour in view.neighbours
        ],
    }
