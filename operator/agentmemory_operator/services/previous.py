"""What lies behind an alias, and the collection that a swap has replaced: marked, and removed when its time is over."""

from agentmemory_operator.domain.collection import Observed, is_placeholder
from agentmemory_operator.domain.times import parse_time
from agentmemory_operator.services.retirement import retire
from agentmemory_operator.services.servers import Server

PREVIOUS_KEY = "agentmemoryPrevious"
"""Key of the collection's metadata that says, of one that was replaced, until when it is kept, and by which restore."""


async def live_behind(server: Server, alias: str, likely: str | None) -> Observed | None:
    """Return the collection that clients reach by an alias; a placeholder is none.

    Args:
        likely: where it likely is; a collection that has no alias yet is found by that.
    """
    observed = await server.collections.observe(alias, likely or alias)
    if observed is None or not (observed.is_aliased or observed.physical == alias):
        return None
    return None if is_placeholder(await server.snapshots.metadata(observed.physical)) else observed


async def mark_previous(server: Server, physical: str, *, until: str, restore: str) -> None:
    """Write on a collection that it was replaced, by which restore, and until when it is kept."""
    if await server.snapshots.metadata(physical) is not None:
        marked = {"keepUntil": until, "restore": restore}
        await server.snapshots.write_metadata(physical, {PREVIOUS_KEY: marked})


async def remove_due(server: Server, physical: str, *, alias: str, now_ms: int) -> bool:
    """Remove a replaced collection whose time is over; tell whether it is gone.

    What is not marked as replaced is never removed, nor what the alias leads to, nor the last that is left of an agent.
    """
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or is_placeholder(metadata):
        return True
    until = _until_ms(metadata)
    live = await live_behind(server, alias, physical)
    if until is None or until > now_ms or live is None or live.physical == physical:
        return False
    await retire(server.collections, server.snapshots, physical)
    return True


def _until_ms(metadata: dict[str, object]) -> int | None:
    marked = metadata.get(PREVIOUS_KEY)
    try:
        return parse_time(marked.get("keepUntil")) if isinstance(marked, dict) else None
    except ValueError:
        return None
