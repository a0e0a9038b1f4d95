"""Lines of an export with the user's entity relations and aliases, and with the user's name."""

from typing import Any

import orjson
from pydantic import Field

from agentmemory_operator.entities.rules.sheet import (
    MAX_RELATIONS,
    MAX_SHEET_ALIASES,
    MAX_STRENGTH,
    Alias,
    EntitySheet,
    Relation,
    RelationName,
)
from agentmemory_operator.entrypoints.api.fields import Body, Time, Whole
from agentmemory_operator.entrypoints.api.identity.user_requests import UserName
from agentmemory_operator.entrypoints.api.memories.entity_requests import EntityName, KnownName
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.memories.rules.profile import UserProfile
from agentmemory_operator.spec.times import render_time

SHEET_FIELD, PROFILE_FIELD = "entities", "user"


class ExportedRelation(Body):
    """A relation between two entity names, in an export."""

    source: KnownName
    relation: RelationName
    target: KnownName
    strength: Whole = Field(default=1, ge=1, le=MAX_STRENGTH)


class ExportedAlias(Body):
    """Another spelling of an entity name, in an export."""

    alias: KnownName
    name: EntityName


class ExportedSheet(Body):
    """Relations and aliases of a user's entities."""

    relations: list[ExportedRelation] = Field(default=[], max_length=MAX_RELATIONS)
    aliases: list[ExportedAlias] = Field(default=[], max_length=MAX_SHEET_ALIASES)

    def sheet(self) -> EntitySheet:
        """Convert to the `EntitySheet` of the use case."""
        relations = [Relation(item.source, item.relation, item.target, item.strength) for item in self.relations]
        aliases = [Alias(item.alias, item.name) for item in self.aliases]
        return EntitySheet({item.key: item for item in relations}, {fold(item.alias): item for item in aliases})


class SheetLine(Body):
    """Line of an export with the relations and aliases of the user's entities."""

    entities: ExportedSheet


def render_sheet_line(sheet: EntitySheet) -> bytes:
    """Render the JSON of `SheetLine` as a line; return b'' if the sheet has neither relations nor aliases."""
    if not sheet.relations and not sheet.aliases:
        return b""
    relations: list[dict[str, Any]] = [
        {"source": item.source, "relation": item.relation, "target": item.target, "strength": item.strength}
        for item in sheet.relations.values()
    ]
    aliases = [{"alias": item.alias, "name": item.name} for item in sheet.aliases.values()]
    return orjson.dumps({SHEET_FIELD: {"relations": relations, "aliases": aliases}}) + b"\n"


class ExportedProfile(Body):
    """Name of the user, and the time when the user was first named."""

    name: UserName
    created_at: Time


class ProfileLine(Body):
    """Line of an export with the user's name."""

    user: ExportedProfile

    def profile(self) -> UserProfile:
        """Convert to the `UserProfile` of the use case."""
        return UserProfile(self.user.name, self.user.created_at)


def render_profile_line(profile: UserProfile | None) -> bytes:
    """Render the JSON of `ProfileLine` as a line; return b'' if the user has no name (None)."""
    if profile is None:
        return b""
    document = {"name": profile.name, "created_at": render_time(profile.created_at)}
    return orjson.dumps({PROFILE_FIELD: document}) + b"\n"
