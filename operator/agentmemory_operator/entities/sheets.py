"""Read and change the entity sheet of a scope by compare-and-set, so that no concurrent change is lost.

A sheet contains aliases and typed relations. An alias is a spelling that refers to another name of the same scope. A
relation becomes stronger each time it is stored again.
"""

from collections.abc import Callable, Iterable, Mapping

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.sheet import (
    MAX_RELATIONS,
    MAX_SHEET_ALIASES,
    NO_SHEET,
    EntitySheet,
    Relation,
    RelationName,
    sheet_from_payload,
    sheet_id,
    sheet_to_json,
)
from agentmemory_operator.entities.user_points import UserPoint, change_point
from agentmemory_operator.errors import Conflict, FieldError, RequestInvalid
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.memories.rules.record import ENTITY_SHEET_KEY, Payload
from agentmemory_operator.ports.base import Json


async def read_sheet(agent: Agent, user_id: str) -> EntitySheet:
    """Read the sheet of a scope, also if entities are disabled. Return an empty sheet if none is stored."""
    return sheet_from_payload(await read_row(agent, sheet_id(agent.id_slug, user_id)))


async def change_sheet(agent: Agent, user_id: str, change: Callable[[EntitySheet], EntitySheet]) -> EntitySheet:
    """Change the sheet of a scope; return it as stored.

    Args:
        change: Returns the new sheet for the stored one; an equal sheet is not written. It is called again if another
            writer has changed the sheet.

    Raises:
        RequestInvalid: If the agent has entities disabled.
        Conflict: If the scope would exceed the maximum number of relations or aliases.
        StoreUnavailable: If other writers change the sheet in every attempt, or Qdrant is unavailable.
        OutcomeUnknown: If the sheet may have been changed.
    """
    check_enabled(agent)
    after = NO_SHEET

    def changed(row: Payload | None) -> Json | None:
        nonlocal after
        before = sheet_from_payload(row)
        after = change(before)
        if after == before:
            return None
        if after.is_full:
            raise Conflict(
                f"{user_id} has {MAX_RELATIONS:,} relations or {MAX_SHEET_ALIASES:,} aliases, which is the limit:"
                " only existing relations can be strengthened, and names merged"
            )
        return sheet_to_json(after)

    id_ = sheet_id(agent.id_slug, user_id)
    await change_point(agent, UserPoint(id=id_, user_id=user_id, key=ENTITY_SHEET_KEY, name="entities"), changed)
    agent.sizes.forget(user_id)
    return after


def check_enabled(agent: Agent) -> None:
    """Raise unless the agent has entities enabled.

    Raises:
        RequestInvalid: If the agent has entities disabled.
    """
    if agent.entity_lists is None:
        raise RequestInvalid(
            [
                FieldError(
                    "agent",
                    "has entities disabled: set spec.entities.enabled to true in its object, or use preset brain",
                )
            ]
        )


async def put_aliases(agent: Agent, user_id: str, names: Mapping[str, str]) -> EntitySheet:
    """Store aliases in one write; return the sheet as stored.

    Args:
        names: Name by alias. If the name is an alias itself, its target is used.

    Raises:
        RequestInvalid: If the agent has entities disabled.
        Conflict: If the scope would exceed the maximum number of aliases.
        StoreUnavailable, OutcomeUnknown: See `change_sheet`.
    """

    def change(sheet: EntitySheet) -> EntitySheet:
        for alias, name in names.items():
            sheet = sheet.with_alias(alias, name)
        return sheet

    return await change_sheet(agent, user_id, change)


RelationTriple = tuple[str, RelationName, str]
"""Source, relation, target."""


async def put_relation(agent: Agent, user_id: str, source: str, relation: RelationName, target: str) -> Relation:
    """Store a relation between two names of a scope, or strengthen it; return it as stored. Aliases are resolved.

    Raises:
        RequestInvalid: If both are the same entity, or the agent has entities disabled.
        Conflict: If the scope would exceed the maximum number of relations.
        StoreUnavailable, OutcomeUnknown: See `change_sheet`.
    """
    sheet = await put_relations(agent, user_id, [(source, relation, target)])
    key = Relation(sheet.resolve(source), relation, sheet.resolve(target)).key
    if key not in sheet.relations:
        raise RequestInvalid([FieldError("target", "is another name of source; an entity cannot relate to itself")])
    return sheet.relations[key]


async def put_relations(agent: Agent, user_id: str, relations: Iterable[RelationTriple]) -> EntitySheet:
    """Store or strengthen several relations of a scope in one write. A relation of a name to itself is skipped.

    Raises:
        RequestInvalid, Conflict, StoreUnavailable, OutcomeUnknown: See `change_sheet`.
    """
    relations = [relation for relation in relations if fold(relation[0]) != fold(relation[2])]

    def change(sheet: EntitySheet) -> EntitySheet:
        for source, relation, target in relations:
            sheet = sheet.with_relation(source, relation, target)
        return sheet

    return await change_sheet(agent, user_id, change)
