"""What was changed in a collection after a moment: every write of a memory says its time, and so does an access."""

from agentmemory_operator.domain.records import TOMBSTONE_KEY
from agentmemory_operator.ports import Json, PointStore

_LATEST_MS = 2**43
"""After the year 2200."""


async def count_changed(points: PointStore, collection: str, since_ms: int) -> int:
    """Return how many points were changed after a moment, deleted ones included."""
    return await points.count(collection, _after("updatedAt", since_ms))


async def count_deleted(points: PointStore, collection: str, since_ms: int) -> int:
    """Return how many memories were deleted after a moment, of those whose tombstones are there."""
    return await points.count(collection, _after(TOMBSTONE_KEY, since_ms))


async def newest_change(points: PointStore, collection: str) -> int | None:
    """Return the time of the newest change in a collection to the second, Unix milliseconds; None where none has one.

    By halving: no index is needed, and some thirty counts find it.
    """
    if not await count_changed(points, collection, 0):
        return None
    low, high = 0, _LATEST_MS // 1000
    while low < high:
        middle = (low + high) // 2
        if await count_changed(points, collection, middle * 1000):
            low = middle + 1
        else:
            high = middle
    return low * 1000


def _after(key: str, since_ms: int) -> Json:
    return {"must": [{"key": key, "range": {"gt": since_ms}}]}
