"""Capacity of a Qdrant process: memory maps and open files that collections use, and whether one more fits. Pure.

A process has a limit of memory maps and one of open files. Without free maps, Qdrant aborts, with every agent on it.
Shares of a limit:

| share in use | effect |
|---|---|
| 70 % | condition `NearCapacity` is True, so that operators can react in time |
| 80 % | new agents get no collection; the rest is reserved for restores, rebuilds and verifications |
| 95 % | these wait too |

Memory maps of a collection, measured with ten empty ones of each layout on Qdrant 1.18.3: 11, 56, 139 with one segment
and 0, 4, 11 payload indexes; 18, 110, 276 with two segments. The formula is 4, plus 7 for each segment, plus 12 for
each index of each segment: never below the measured number, and at most 6 % above. Open files were not measured by
layout: the next collection is assumed to use the server's current average.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.status_connection import CapacityStatus, UsedStatus

MAX_SHARE_NEW_AGENTS, MAX_SHARE_EXISTING_AGENTS = 0.80, 0.95
"""Shares of a limit up to which collections are created: for agents without one, and for all other purposes."""

BASE_MAPS, MAPS_PER_SEGMENT, MAPS_PER_INDEX = 4, 7, 12
MAX_DEFAULT_SEGMENTS = 8
"""Maximum number of segments if Qdrant chooses it: 2 to 8, by its CPUs (`default_segment_number`)."""

DEFAULT_SEGMENTS, DEFAULT_INDEXES = 2, 12
"""Layout of the shipped presets, assumed for a collection whose layout is unknown."""

MIN_REPORTED_CHANGE = 0.01
"""Share of a limit by which a number must change before the status is updated."""

CONDITION = "NearCapacity"
MEMORY_MAPS, OPEN_FILES = "memory maps", "open files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Resource usage of a Qdrant process. None if the server does not report a number.

    Attributes:
        open_maps, max_maps: Memory maps in use, and their limit.
        open_files, max_files: Open files, and their limit. A limit of 0 means unlimited.
        collections: Number of collections on the server.
    """

    open_maps: int | None = None
    max_maps: int | None = None
    open_files: int | None = None
    max_files: int | None = None
    collections: int | None = None


@dataclass(frozen=True, slots=True)
class MapDemand:
    """Memory maps that a collection or its indexes need.

    Attributes:
        maps: Number of memory maps.
        explanation: Indexes, segments and shards that the number is computed from, for messages; "" without any.
    """

    maps: int = 0
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Usage of one resource by a process.

    Attributes:
        per_collection: Estimated usage of one collection: by the default layout, or the server's average.
        is_estimated: True if `used` is derived from the number of collections, because the server does not report it.
    """

    resource: str
    used: int
    limit: int
    per_collection: int
    is_estimated: bool = False

    @property
    def share(self) -> float:
        """Used share of the limit. It is above 1 if the limit is exceeded."""
        return self.used / self.limit


class Level(IntEnum):
    """Fill level of a server, by the largest used share of its limits; see `THRESHOLDS`."""

    ROOM = 0
    NEAR = 1
    FULL = 2


THRESHOLDS = {Level.ROOM: 0.0, Level.NEAR: 0.70, Level.FULL: MAX_SHARE_NEW_AGENTS}

_STATES: Mapping[Level | None, tuple[bool | None, Reason]] = {
    None: (None, Reason.CAPACITY_UNKNOWN),
    Level.ROOM: (False, Reason.ROOM_LEFT),
    Level.NEAR: (True, Reason.LITTLE_ROOM_LEFT),
    Level.FULL: (True, Reason.SERVER_FULL),
}

_WAYS = {
    MEMORY_MAPS: "raise vm.max_map_count on Qdrant's node (sysctl -w vm.max_map_count=1048576), have fewer payload"
    " indexes or segments, or remove collections (agentmemory orphans)",
    OPEN_FILES: "raise the limit of open files of Qdrant's process (ulimit -n, LimitNOFILE), or remove collections"
    " (agentmemory orphans)",
}


def need_of(collection: Collection, *, peers: int = 1) -> MapDemand:
    """Return the memory maps that a collection needs on one node, for its share of the replicas, rounded up.

    If Qdrant chooses the number of segments, the largest one that it may choose (8) is assumed.

    Args:
        peers: Number of nodes over which its shards are spread.
    """
    segments = collection.optimizers.default_segment_number or MAX_DEFAULT_SEGMENTS
    indexes = len(collection.indexes)
    replicas = (collection.shard_number or peers) * (collection.replication_factor or 1)
    shards = max(1, math.ceil(replicas / max(1, peers)))
    return _need(segments, indexes, shards)


def need_of_indexes(number: int) -> MapDemand:
    """Return the memory maps of payload indexes that are added to an existing collection of the default layout."""
    return MapDemand(
        DEFAULT_SEGMENTS * MAPS_PER_INDEX * number,
        f"{number} more payload indexes in each of {DEFAULT_SEGMENTS} segments",
    )


def _need(segments: int, indexes: int, shards: int = 1) -> MapDemand:
    maps = shards * (BASE_MAPS + segments * (MAPS_PER_SEGMENT + MAPS_PER_INDEX * indexes))
    suffix = f" in each of {shards} shards" if shards > 1 else ""
    return MapDemand(maps, f"{indexes} payload indexes in each of {segments} segments{suffix}")


DEFAULT_NEED = _need(DEFAULT_SEGMENTS, DEFAULT_INDEXES)


def loads_of(process: Process, max_memory_maps: int | None = None) -> tuple[Load, ...]:
    """Return the loads of a process: of memory maps and open files, each only if its usage and limit are known.

    Args:
        max_memory_maps: Limit in the connection's spec, or None. The smaller of this and the server's limit applies. If
            the server does not report its memory maps, they are estimated from its number of collections.
    """
    bounds = [bound for bound in (process.max_maps, max_memory_maps) if bound]
    loads = []
    used = process.open_maps
    if used is None and process.collections is not None and max_memory_maps:
        used = process.collections * DEFAULT_NEED.maps
    if bounds and used is not None:
        loads.append(Load(MEMORY_MAPS, used, min(bounds), DEFAULT_NEED.maps, is_estimated=process.open_maps is None))
    if process.open_files is not None and process.max_files:
        files_per_collection = math.ceil(process.open_files / process.collections) if process.collections else 0
        loads.append(Load(OPEN_FILES, process.open_files, process.max_files, files_per_collection))
    return tuple(loads)


def find_shortage(
    loads: Sequence[Load], need: MapDemand, queued: Sequence[MapDemand] = (), *, share: float = MAX_SHARE_NEW_AGENTS
) -> str | None:
    """Return why a collection does not fit, with a remedy, or None if it fits.

    The message does not contain the current usage, which changes all the time.

    Args:
        queued: Collections that are being created and are not yet part of the loads.
        share: Share of each limit that may be used.
    """
    for load in loads:
        pending = (
            sum(demand.maps for demand in queued) if load.resource == MEMORY_MAPS else load.per_collection * len(queued)
        )
        needed = need.maps if load.resource == MEMORY_MAPS else load.per_collection
        if load.used + pending + needed > share * load.limit:
            note = f" ({need.explanation})" if load.resource == MEMORY_MAPS and need.explanation else ""
            return (
                f"Qdrant's process has a limit of {load.limit:,} {load.resource}. With about {needed:,} more{note} it "
                f"would use over {share:.0%} of them, {_until(share)}: {_WAYS[load.resource]}"
            )
    return None


def _until(share: float) -> str:
    if share < MAX_SHARE_EXISTING_AGENTS:
        return "the limit for new agents"
    return "the limit for restores, rebuilds and verifications"


def level_of(loads: Sequence[Load], before: Level | None = None) -> Level | None:
    """Return the fill level of a server. None if memory maps are unknown and open files are below every threshold.

    Args:
        before: Last level. It is lowered only once the load is over 1 % of the limit below its threshold (hysteresis).
            None if unknown.
    """
    share = max((load.share for load in loads), default=0.0)
    level = max(level for level, threshold in THRESHOLDS.items() if share >= threshold)
    if not any(load.resource == MEMORY_MAPS for load in loads) and level is Level.ROOM:
        return None
    if before is not None and before > level and share >= THRESHOLDS[before] - MIN_REPORTED_CHANGE:
        return before
    return level


def read_level(condition: Mapping[str, Any]) -> Level | None:
    """Return the level that a `NearCapacity` condition reports. None if it reports none, or there is no condition."""
    reason = condition.get("reason")
    return next((level for level, (_, level_reason) in _STATES.items() if level_reason == reason), None)


def capacity_status(loads: Sequence[Load], old: CapacityStatus | None) -> CapacityStatus | None:
    """Build `status.capacity`; None without loads.

    Return `old` unchanged if the limits are the same and no usage changed by 1 % of its limit or more.

    Args:
        old: Current value of `status.capacity`. None if there is none.
    """
    reported = {load.resource: UsedStatus(used=load.used, limit=load.limit) for load in loads}
    if not reported:
        return None
    estimated = any(load.is_estimated for load in loads)
    new = CapacityStatus(
        memory_maps=reported.get(MEMORY_MAPS), open_files=reported.get(OPEN_FILES), is_estimated=estimated or None
    )
    return old if old is not None and _is_near(old, new) else new


def without_capacity(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's status without its capacity, which must not trigger passes over its objects."""
    fields = {name: value for name, value in status.items() if name != "capacity"}
    conditions = [condition for condition in status.get("conditions") or [] if condition.get("type") != CONDITION]
    return fields | {"conditions": conditions}


def _is_near(old: CapacityStatus, new: CapacityStatus) -> bool:
    if old.is_estimated != new.is_estimated:
        return False
    return all(
        was == now
        or (was and now and was.limit == now.limit and abs(was.used - now.used) < MIN_REPORTED_CHANGE * now.limit)
        for was, now in ((old.memory_maps, new.memory_maps), (old.open_files, new.open_files))
    )


def build_condition(level: Level | None, status: CapacityStatus | None) -> ConditionState:
    """Build the condition `NearCapacity`.

    Args:
        level: Fill level. None makes the condition Unknown.
        status: Reported loads. The message is built from them, so that it changes only with the status. None makes the
            condition Unknown.
    """
    holds, reason = _STATES[level]
    if level is None or status is None:
        return ConditionState(
            CONDITION,
            None,
            Reason.CAPACITY_UNKNOWN,
            "the server does not report memory maps and their limit, or the key has no access to "
            "/metrics: set spec.capacity.maxMemoryMaps",
        )
    resources = ((MEMORY_MAPS, status.memory_maps), (OPEN_FILES, status.open_files))
    reported = [(resource, load) for resource, load in resources if load is not None]
    prefix = "about " if status.is_estimated else ""
    usage = " and ".join(f"{prefix}{load.used:,} of {load.limit:,} {resource}" for resource, load in reported)
    if level is Level.ROOM:
        return ConditionState(CONDITION, holds, reason, f"Qdrant's process uses {usage}")
    fullest = max(reported, key=lambda item: item[1].used / item[1].limit)[0]
    until = (
        "new agents are refused"
        if level is Level.FULL
        else f"new agents are refused from {MAX_SHARE_NEW_AGENTS:.0%} on"
    )
    return ConditionState(CONDITION, holds, reason, f"Qdrant's process uses {usage}; {until}: {_WAYS[fullest]}")
