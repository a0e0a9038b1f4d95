"""Say that a spelling stands for another name of the same scope; it acts in no other."""

from collections.abc import Mapping

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.sheet import EntitySheet
from agentmemory_operator.entities.sheets import change_sheet


async def put(agent: Agent, user_id: str, names: Mapping[str, str]) -> EntitySheet:
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
