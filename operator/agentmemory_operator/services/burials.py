"""Turn memories into tombstones, many in one request, each unless it changed since it was read."""

from collections.abc import Callable, Sequence

from agentmemory_operator.domain.erasure import Row
from agentmemory_operator.domain.filters import NOT_DELETED, Condition, equals, only
from agentmemory_operator.domain.records import ERASURE_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.services.directory import Agent

BATCH = 100

_READ_KEYS = ("id", "rev", "pending", "supersedesId", "supersededById", "identityId", TOMBSTONE_KEY, ERASURE_KEY)


async def bury(agent: Agent, rows: Sequence[Row], leave: Callable[[Row], Payload]) -> dict[str, Payload]:
    """Turn rows into tombstones; return those of them that are tombstones now, by id.

    Args:
        leave: makes the tombstone of a row.
    """
    dead: dict[str, Payload] = {}
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        await agent.store.batch(agent.alias, [replacement(row, leave(row)) for row in part], strong=True)
        points = await agent.store.retrieve(agent.alias, [row["id"] for row in part], keys=_READ_KEYS)
        dead |= {point["id"]: point["payload"] for point in points if TOMBSTONE_KEY in point["payload"]}
    return dead


def replacement(row: Row, payload: Payload) -> Payload:
    """Return the operation that puts a point without vector in the place of a row, if that is as it was read."""
    conditions: list[Condition] = [] if TOMBSTONE_KEY in row else [NOT_DELETED]
    # A point that others have written may have no revision.
    same: Condition = equals("rev", row["rev"]) if row.get("rev") is not None else {"is_empty": {"key": "rev"}}
    point = {"id": row["id"], "vector": {}, "payload": payload}
    unchanged = only(row["id"], same, *conditions)
    return {"upsert": {"points": [point], "update_filter": unchanged, "update_mode": "update_only"}}
