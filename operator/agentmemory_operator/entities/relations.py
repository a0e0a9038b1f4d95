"""Say how two names of a scope relate; each time that it is said makes the relation stronger."""

from collections.abc import Iterable

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.sheet import EntitySheet, Relation, RelationName
from agentmemory_operator.entities.sheets import change_sheet
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.entities import fold

Said = tuple[str, RelationName, str]
"""Source, relation, target."""


async def put(agent: Agent, user_id: str, source: str, relation: RelationName, target: str) -> Relation:
    """Say that one name relates to another, in one scope; aliases of that scope stand for their names.

    Raises:
        RequestInvalid: both are the same name, or the agent has no entities.
        Conflict: the scope has as many relations as one may.
        StoreUnavailable, OutcomeUnknown: see `change_sheet`.
    """
    sheet = await put_all(agent, user_id, [(source, relation, target)])
    key = Relation(sheet.resolve(source), relation, sheet.resolve(target)).key
    if key not in sheet.relations:
        raise RequestInvalid([FieldError("target", "is another name of source, and none relates to itself")])
    return sheet.relations[key]


async def put_all(agent: Agent, user_id: str, said: Iterable[Said]) -> EntitySheet:
    """Say several relations of one scope at once, in one write; what relates a name to itself is left out.

    Raises:
        RequestInvalid, Conflict, StoreUnavailable, OutcomeUnknown: as `put`.
    """
    relations = [one for one in said if fold(one[0]) != fold(one[2])]

    def change(sheet: EntitySheet) -> EntitySheet:
        for source, relation, target in relations:
            sheet = sheet.related(source, relation, target)
        return sheet

    return await change_sheet(agent, user_id, change)
