"""How many collections a Qdrant server carries: what the next one takes of its process, and whether it fits. Pure.

A process may have so many memory maps and open files and no more; a server that runs out of maps aborts, with every
agent on it. Which share of that bound is for what:

| share | from there on |
|---|---|
| 70 % | `NearCapacity` is True: a person still has time |
| 80 % | no new agent gets a collection: the rest belongs to restores, rebuilds and verification |
| 95 % | these wait too |

Memory maps of a collection, from ten empty ones of each layout on Qdrant 1.18.3: 11, 56, 139 with one segment and
0, 4, 11 payload indexes; 18, 110, 276 with two. So 4, 7 a segment, and 12 for each index of each segment, which is
never less than what was seen, and at most 6 % more. Open files were not measured by layout: the next collection takes
as many as those that are there do on the average, by what the server itself says.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.status_connection import CapacityStatus, UsedStatus

NEW_AGENTS, EXISTING_AGENTS = 0.80, 0.95
"""Shares of a bound up to which collections are made: of agents that have none, and of all others."""

MAPS, MAPS_A_SEGMENT, MAPS_AN_INDEX = 4, 7, 12
MOST_CHOSEN_SEGMENTS = 8
"""Segments where the server chooses: 2 to 8, by its CPUs (qdrant `default_segment_number`)."""

USUAL_SEGMENTS, USUAL_INDEXES = 2, 12
"""Of an agent under the designs that are shipped: what a collection is taken for whose layout is not known."""

MOVED = 0.01
"""Share of a bound by which a number moves before it is written down again."""

CONDITION = "NearCapacity"
MEMORY_MAPS, OPEN_FILES = "memory maps", "open files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the process of a server says of itself; None where it does not tell.

    Attributes:
        max_files: 0 is unlimited.
        collections: on the server.
    """

    open_maps: int | None = None
    max_maps: int | None = None
    open_files: int | None = None
    max_files: int | None = None
    collections: int | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What a collection takes of the process.

    Attributes:
        told: how the number of maps comes about, for people.
    """

    maps: int = 0
    told: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """How much of one resource a process uses.

    Attributes:
        each: what one collection takes where nothing says it better.
        is_estimated: `used` is made of the number of collections, because the server does not tell it.
    """

    resource: str
    used: int
    limit: int
    each: int
    is_estimated: bool = False

    @property
    def share(self) -> float:
        """Which part of the limit is used, 0 to 1 and beyond."""
        return self.used / self.limit


class Level(IntEnum):
    """How near a server is to its end."""

    ROOM = 0
    NEAR = 1
    FULL = 2


THRESHOLDS = {Level.ROOM: 0.0, Level.NEAR: 0.70, Level.FULL: NEW_AGENTS}

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


def need_of(shape: Collection, *, peers: int = 1) -> Need:
    """What a collection takes of the process of one node: its part of the replicas, rounded up.

    Args:
        peers: nodes over which its shards are spread.
    """
    segments = shape.optimizers.default_segment_number or MOST_CHOSEN_SEGMENTS
    indexes = len(shape.indexes)
    replicas = (shape.shard_number or peers) * (shape.replication_factor or 1)
    shards = max(1, math.ceil(replicas / max(1, peers)))
    return _need(segments, indexes, shards)


def need_of_indexes(number: int) -> Need:
    """What payload indexes take of the process that a collection gets besides those that it has."""
    return Need(
        USUAL_SEGMENTS * MAPS_AN_INDEX * number, f"{number} more payload indexes in each of {USUAL_SEGMENTS} segments"
    )


def _need(segments: int, indexes: int, shards: int = 1) -> Need:
    maps = shards * (MAPS + segments * (MAPS_A_SEGMENT + MAPS_AN_INDEX * indexes))
    beside = f" in each of {shards} shards" if shards > 1 else ""
    return Need(maps, f"{indexes} payload indexes in each of {segments} segments{beside}")


USUAL = _need(USUAL_SEGMENTS, USUAL_INDEXES)


def loads_of(process: Process, max_memory_maps: int | None = None) -> tuple[Load, ...]:
    """The loads that are known; none where the server tells nothing and nobody else does.

    Args:
        max_memory_maps: what the connection's spec says; of two bounds the smaller one counts.
    """
    bounds = [bound for bound in (process.max_maps, max_memory_maps) if bound]
    loads = []
    used = process.open_maps
    if used is None and process.collections is not None and max_memory_maps:
        used = process.collections * USUAL.maps
    if bounds and used is not None:
        loads.append(Load(MEMORY_MAPS, used, min(bounds), USUAL.maps, is_estimated=process.open_maps is None))
    if process.open_files is not None and process.max_files:
        each = math.ceil(process.open_files / process.collections) if process.collections else 0
        loads.append(Load(OPEN_FILES, process.open_files, process.max_files, each))
    return tuple(loads)


def shortage_of(
    loads: Sequence[Load], need: Need, others: Sequence[Need] = (), *, share: float = NEW_AGENTS
) -> str | None:
    """Why a collection does not fit, with the way out; None where nothing speaks against it.

    Its numbers are rounded: what people read changes only when the answer does.

    Args:
        others: collections that are being made and that the loads do not have yet.
        share: of each bound, that may be used.
    """
    for load in loads:
        coming = sum(one.maps for one in others) if load.resource == MEMORY_MAPS else load.each * len(others)
        takes = need.maps if load.resource == MEMORY_MAPS else load.each
        if load.used + coming + takes > share * load.limit:
            why = f" ({need.told})" if load.resource == MEMORY_MAPS and need.told else ""
            return (
                f"Qdrant's process has a limit of {load.limit:,} {load.resource}. With about {takes:,} more{why} it "
                f"would use over {share:.0%} of them, {_until(share)}: {_WAYS[load.resource]}"
            )
    return None


def _until(share: float) -> str:
    if share < EXISTING_AGENTS:
        return "the limit for new agents"
    return "the limit for restores, rebuilds and verifications"


def level_of(loads: Sequence[Load], before: Level | None = None) -> Level | None:
    """How near a server is to its end; None where it is not known.

    Args:
        before: what it was: it goes back only when the load has fallen clearly below the threshold.
    """
    share = max((load.share for load in loads), default=0.0)
    level = max(level for level, least in THRESHOLDS.items() if share >= least)
    if not any(load.resource == MEMORY_MAPS for load in loads) and level is Level.ROOM:
        return None
    if before is not None and before > level and share >= THRESHOLDS[before] - MOVED:
        return before
    return level


def level_in(condition: Mapping[str, Any]) -> Level | None:
    """The level that a condition tells, None where it tells none."""
    reason = condition.get("reason")
    return next((level for level, (_, told) in _STATES.items() if told == reason), None)


def capacity_status(loads: Sequence[Load], old: CapacityStatus | None) -> CapacityStatus | None:
    """What status says of the loads: what it said, where no number has moved by a hundredth of its bound.

    Args:
        old: what it said; None says it afresh.
    """
    told = {load.resource: UsedStatus(used=load.used, limit=load.limit) for load in loads}
    if not told:
        return None
    estimated = any(load.is_estimated for load in loads)
    new = CapacityStatus(
        memory_maps=told.get(MEMORY_MAPS), open_files=told.get(OPEN_FILES), is_estimated=estimated or None
    )
    return old if old is not None and _is_near(old, new) else new


def without_capacity(status: Mapping[str, Any]) -> dict[str, Any]:
    """A connection's status without what it says of the room: nothing of its objects follows from that."""
    kept = {name: value for name, value in status.items() if name != "capacity"}
    conditions = [one for one in status.get("conditions") or [] if one.get("type") != CONDITION]
    return kept | {"conditions": conditions}


def _is_near(old: CapacityStatus, new: CapacityStatus) -> bool:
    if old.is_estimated != new.is_estimated:
        return False
    return all(
        was == now or (was and now and was.limit == now.limit and abs(was.used - now.used) < MOVED * now.limit)
        for was, now in ((old.memory_maps, new.memory_maps), (old.open_files, new.open_files))
    )


def capacity_state(level: Level | None, told: CapacityStatus | None) -> ConditionState:
    """The condition that says whether the server nears its end.

    Args:
        told: what status says of the loads, so that the message changes with it alone.
    """
    holds, reason = _STATES[level]
    if level is None or told is None:
        return ConditionState(
            CONDITION,
            None,
            Reason.CAPACITY_UNKNOWN,
            "the server does not report memory maps and their limit, or the key has no access to "
            "/metrics: set spec.capacity.maxMemoryMaps",
        )
    named = ((MEMORY_MAPS, told.memory_maps), (OPEN_FILES, told.open_files))
    known = [(resource, used) for resource, used in named if used is not None]
    about = "about " if told.is_estimated else ""
    words = " and ".join(f"{about}{used.used:,} of {used.limit:,} {resource}" for resource, used in known)
    if level is Level.ROOM:
        return ConditionState(CONDITION, holds, reason, f"Qdrant's process uses {words}")
    fullest = max(known, key=lambda one: one[1].used / one[1].limit)[0]
    until = "new agents are refused" if level is Level.FULL else f"new agents are refused from {NEW_AGENTS:.0%} on"
    return ConditionState(CONDITION, holds, reason, f"Qdrant's process uses {words}; {until}: {_WAYS[fullest]}")
