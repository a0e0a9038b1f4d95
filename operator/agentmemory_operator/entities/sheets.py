"""Read and change the sheet of a scope's entities: by compare-and-set, so that no writer's word is lost.

An alias is a spelling that stands for another name of the same scope. A relation becomes stronger each time it is put.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.sheet import (
    ALIASES_MAX,
    RELATIONS_MAX,
    EntitySheet,
    Relation,
    RelationName,
    sheet_from_payload,
    sheet_id,
    sheet_to_payload,
)
from agentmemory_operator.errors import Conflict, FieldError, RequestInvalid, StoreUnavailable
from agentmemory_operator.memories.chains import MAX_ATTEMPTS, midway
from agentmemory_operator.memories.point_pages import read_row, upsert_where
from agentmemory_operator.memories.rules.entities import fold
from agentmemory_operator.memories.rules.filters import equals, only
from agentmemory_operator.memories.rules.record import EDIT_KEY, SHEET_KEY, STORED_KEY, Payload


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
    id_ = sheet_id(agent.id_scope, user_id)
    for _ in range(MAX_ATTEMPTS):
        row = await read_row(agent, id_)
        before = sheet_from_payload(row)
        after = change(before)
        if after == before:
            return before
        if after.is_full:
            raise Conflict(
                f"{user_id} has {RELATIONS_MAX:,} relations or {ALIASES_MAX:,} aliases, which is the limit:"
                " only existing relations can be strengthened, and names merged"
            )
        mark = secrets.token_hex(8)
        await _write(agent, _payload(agent, after, row, id_=id_, user_id=user_id) | {EDIT_KEY: mark}, row)
        with midway():
            there = await read_row(agent, id_)
        if there and there.get(EDIT_KEY) == mark:
            agent.sizes.forget(user_id)
            return after
    raise StoreUnavailable("the entities of this user are being changed concurrently: retry")


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


def _payload(agent: Agent, sheet: EntitySheet, row: Payload | None, *, id_: str, user_id: str) -> Payload:
    """The payload of a changed sheet; one in the place of an erased one begins now."""
    now_ms = agent.clock.now_ms()
    is_same = row is not None and SHEET_KEY in row
    since_ms: Any = row[STORED_KEY] if row is not None and is_same else now_ms
    said = sheet_to_payload(
        sheet, id_=id_, agent_id=agent.settings.slug, user_id=user_id, since_ms=since_ms, now_ms=now_ms
    )
    return said | {"rev": (row["rev"] if row else 0) + 1}


async def _write(agent: Agent, payload: Payload, row: Payload | None) -> None:
    point = {"id": payload["id"], "vector": {}, "payload": payload}
    if row is None:
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    else:
        unchanged = only(payload["id"], equals("rev", row["rev"]))
        await agent.store.batch(agent.alias, [upsert_where(point, unchanged)], strong=True)


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
