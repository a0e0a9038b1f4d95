"""What lies behind an alias, and the collection that was replaced there: marked, and removed when its time is over.

Restores replace collections, and rebuilds do.
"""

from collections.abc import Mapping

from agentmemory_operator.collections.retire import retire
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, Observed, is_owner, is_placeholder, owner_in
from agentmemory_operator.collections.rules.rebuild_record import RebuildStep, record_from_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.runtime.cache import Key
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.spec.times import parse_time


async def live_behind(server: Server, alias: str, likely: str | None) -> Observed | None:
    """The collection that clients reach by an alias; a placeholder is none.

    Args:
        likely: where it likely is; a collection that has no alias yet is found by that.
    """
    observed = await server.collections.observe(alias, likely or alias)
    if observed is None or not (observed.is_aliased or observed.physical == alias):
        return None
    return None if is_placeholder(await server.snapshots.metadata(observed.physical)) else observed


async def is_of(server: Server, name: str, owner: Key, cluster_id: ClusterId) -> bool:
    """Whether a collection, or what an alias leads to, is marked as this cluster's and an AgentMemory's."""
    metadata = await server.snapshots.metadata(name)
    return is_owner(owner_in(metadata), (await cluster_id(), owner.namespace, owner.name))


async def leads_to(server: Server, alias: str, physical: str) -> bool:
    """Whether an alias leads to a collection."""
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
    """When a collection was replaced, Unix milliseconds; None where its metadata does not say."""
    return _time_of(metadata, "since")


def _time_of(metadata: Mapping[str, object], name: str) -> int | None:
    marked = metadata.get(PREVIOUS_KEY)
    try:
        return parse_time(marked.get(name)) if isinstance(marked, dict) else None
    except ValueError:
        return None


def _comes_back(metadata: Mapping[str, object], physical: str) -> bool:
    """Whether a rebuild is being taken back to it."""
    record = record_from_json(metadata)
    return record is not None and record.target == physical and record.step is not RebuildStep.DONE


INDEXED_KEY = "agentmemoryIndexed"
"""Key of the source's metadata: its index on `updatedAt` was made for the passes, and goes after them."""


UPDATED_AT_INDEX = ("updatedAt", "integer")


async def restore_source(server: Server, physical: str) -> None:
    """Take away the index that was made for the passes; what is gone is no error."""
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or INDEXED_KEY not in metadata:
        return
    await server.collections.drop_index(physical, UPDATED_AT_INDEX[0])
    await server.snapshots.write_metadata(physical, {INDEXED_KEY: None})
