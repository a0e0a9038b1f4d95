"""What lies behind an alias, and the collection that was replaced there: marked, and removed when its time is over.

Restores replace collections, and rebuilds do.
"""

from collections.abc import Mapping

from agentmemory_operator.domain.collection import PREVIOUS_KEY, Observed, is_placeholder
from agentmemory_operator.domain.rebuilding import Step, record_from_json
from agentmemory_operator.domain.times import parse_time
from agentmemory_operator.services.retirement import retire
from agentmemory_operator.services.servers import Server


async def live_behind(server: Server, alias: str, likely: str | None) -> Observed | None:
    """Return the collection that clients reach by an alias; a placeholder is none.

    Args:
        likely: where it likely is; a collection that has no alias yet is found by that.
    """
    observed = await server.collections.observe(alias, likely or alias)
    if observed is None or not (observed.is_aliased or observed.physical == alias):
        return None
    return None if is_placeholder(await server.snapshots.metadata(observed.physical)) else observed


async def leads_to(server: Server, alias: str, physical: str) -> bool:
    """Tell whether an alias leads to a collection."""
    live = await live_behind(server, alias, physical)
    return live is not None and live.physical == physical


async def mark_previous(server: Server, physical: str, *, since: str, until: str, by: Mapping[str, str]) -> None:
    """Write on a collection that it was replaced.

    Args:
        since, until: RFC 3339: when it was replaced, and how long it is kept.
        by: the restore, or the collection of a rebuild, that replaced it.
    """
    if await server.snapshots.metadata(physical) is not None:
        await server.snapshots.write_metadata(physical, {PREVIOUS_KEY: {"since": since, "keepUntil": until, **by}})


async def remove_due(server: Server, physical: str, *, alias: str, now_ms: int) -> bool:
    """Remove a replaced collection whose time is over; tell whether it is gone.

    What is not marked as replaced is never removed, nor what the alias leads to or is to lead to again, nor the last
    that is left of an agent.
    """
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or is_placeholder(metadata):
        return True
    until = _time_of(metadata, "keepUntil")
    live = await live_behind(server, alias, physical)
    if until is None or until > now_ms or live is None or live.physical == physical or _comes_back(metadata, physical):
        return False
    await retire(server.collections, server.snapshots, physical)
    return True


def replaced_since_ms(metadata: Mapping[str, object]) -> int | None:
    """Return when a collection was replaced, Unix milliseconds; None where its metadata does not say."""
    return _time_of(metadata, "since")


def _time_of(metadata: Mapping[str, object], name: str) -> int | None:
    marked = metadata.get(PREVIOUS_KEY)
    try:
        return parse_time(marked.get(name)) if isinstance(marked, dict) else None
    except ValueError:
        return None


def _comes_back(metadata: Mapping[str, object], physical: str) -> bool:
    """Tell whether a rebuild is being taken back to it."""
    record = record_from_json(metadata)
    return record is not None and record.target == physical and record.step is not Step.DONE
