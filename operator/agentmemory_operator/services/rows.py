"""Rows of an agent: the payloads of its points, tombstones and pending ones included, read and changed one by one."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentmemory_operator.domain.filters import Condition, equals, only
from agentmemory_operator.domain.records import Payload
from agentmemory_operator.ports import Json
from agentmemory_operator.services.directory import Agent


async def read_row(agent: Agent, memory_id: str) -> Payload | None:
    """Return a point's payload; None when there is no such point."""
    points = await agent.store.retrieve(agent.alias, [memory_id])
    payload: Payload | None = points[0]["payload"] if points else None
    return payload


async def change_row(
    agent: Agent, row: Mapping[str, Any], changes: Mapping[str, Any], *conditions: Condition, now_ms: int
) -> None:
    """Change a row if it still is as it was read, and the conditions hold; the caller reads back."""
    payload = {**changes, "rev": row["rev"] + 1, "updatedAt": now_ms}
    unchanged = only(row["id"], equals("rev", row["rev"]), *conditions)
    await agent.store.set_payload(agent.alias, payload, unchanged, strong=True)


async def read_pages(agent: Agent, body: Json) -> AsyncIterator[list[Json]]:
    """Yield the points of a scroll, page by page, none larger than the engine's strict mode allows."""
    most = agent.settings.ranking.max_query_limit
    page = body | ({"limit": min(body["limit"], most)} if most else {})
    while True:
        points, following = await agent.store.scroll(agent.alias, page)
        yield points
        if following is None:
            return
        page = page | {"offset": following}
