"""Read and change the sheet of a scope's entities: by compare-and-set, so that no writer's word is lost.

An alias is a spelling that stands for another name of the same scope. A relation becomes stronger each time it is put.
"""

from collections.abc import Callable, Iterable, Mapping

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.sheet import (
    ALIASES_MAX,
    NO_SHEET,
    RELATIONS_MAX,
    EntitySheet,
    Relation,
    RelationName,
    sheet_from_payload,
    sheet_id,
    sheet_to_facts,
)
from agentmemory_operator.errors import Conflict, FieldError, RequestInvalid
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.memories.rules.record import SHEET_KEY, Payload
from agentmemory_operator.memories.stored import UserPoint, change_point
from agentmemory_operator.ports.base import Json


async def read_sheet(agent: Agent, user_id: str) -> EntitySheet:
    """The sheet of a scope; an empty one where nothing was said."""
    return sheet_from_payload(await read_row(agent, sheet_id(agent.id_scope, user_id)))


async def change_sheet(agent: Agent, user_id: str, change: Callable[[EntitySheet], EntitySheet]) -> EntitySheet:
    """Change the sheet of a scope; return it as it then lies in the engine.

    Args:
        change: makes the new sheet of the old one; it may be called several times.

    Raises:
        RequestInvalid: the agent has no entities.
        Conflict: the scope has as many relations or aliases as one may.
        StoreUnavailable: it is being changed by many at once.
        OutcomeUnknown: it may have been changed.
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
                f"{user_id} has {RELATIONS_MAX:,} relations or {ALIASES_MAX:,} aliases, which is the limit:"
                " only existing relations can be strengthened, and names merged"
            )
        return sheet_to_facts(after)

    id_ = sheet_id(agent.id_scope, user_id)
    await change_point(agent, UserPoint(id=id_, user_id=user_id, key=SHEET_KEY, name="entities"), changed)
    agent.sizes.forget(user_id)
    return after


def check_enabled(agent: Agent) -> None:
    """Pass where the agent has entities.

    Raises:
        RequestInvalid: it has none.
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
    """Note aliases and the names that they stand for, in one write.

    Args:
        names: by alias; a name that is an alias itself stands for what that stands for.

    Raises:
        RequestInvalid: the agent has no entities.
        Conflict: the scope has as many aliases as one may.
        StoreUnavailable, OutcomeUnknown: see `change_sheet`.
    """

    def change(sheet: EntitySheet) -> EntitySheet:
        for alias, name in names.items():
            sheet = sheet.aliased(alias, name)
        return sheet

    return await change_sheet(agent, user_id, change)


Said = tuple[str, RelationName, str]
"""Source, relation, target."""


async def put_relation(agent: Agent, user_id: str, source: str, relation: RelationName, target: str) -> Relation:
    """Say that one name relates to another, in one scope; aliases of that scope stand for their names.

    Raises:
        RequestInvalid: both are the same name, or the agent has no entities.
        Conflict: the scope has as many relations as one may.
        StoreUnavailable, OutcomeUnknown: see `change_sheet`.
    """
    sheet = await put_relations(agent, user_id, [(source, relation, target)])
    key = Relation(sheet.resolve(source), relation, sheet.resolve(target)).key
    if key not in sheet.relations:
        raise RequestInvalid([FieldError("target", "is another name of source; an entity cannot relate to itself")])
    return sheet.relations[key]


async def put_relations(agent: Agent, user_id: str, said: Iterable[Said]) -> EntitySheet:
    """Say several relations of one scope at once, in one write; what relates a name to itself is left out.

    Raises:
        RequestInvalid, Conflict, StoreUnavailable, OutcomeUnknown: as `put_relation`.
    """
    relations = [one for one in said if fold(one[0]) != fold(one[2])]

    def change(sheet: EntitySheet) -> EntitySheet:
        for source, relation, target in relations:
            sheet = sheet.related(source, relation, target)
        return sheet

    return await change_sheet(agent, user_id, change)
