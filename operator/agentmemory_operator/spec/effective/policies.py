"""Settings in force for cleanups, zones and rebuilds: the object's, else its preset's (cleanups only) or a default."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from agentmemory_operator.spec.cron import NEVER, schedule_fault, zone_fault
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, AgentMemorySpec
from agentmemory_operator.spec.kinds.lifecycle import LifecycleSpec
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildSpec
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Lifecycle, PruneCriteria
from agentmemory_operator.spec.times import parse_second
from agentmemory_operator.spec.zones import DEFAULT_SECRET_KEY, DEFAULT_VECTORS, Zone, ZoneSettings

Endings = tuple[tuple[MemoryType, ...], Lifecycle]
"""Memory types and lifecycle figures. Together they decide when memories are hidden or removed."""

FIELD = "spec.lifecycle"
# Fields in which 0 disables a rule of the preset.
DISABLED_BY_ZERO = ("decay_floor", "max_chain_length", "session_idle_hours", "remove_hidden_days")
# Figures of design R4, for an object that prunes under a preset that does not.
DEFAULT_PRUNE = PruneCriteria(older_than_days=365, priority_below=0.2, confidence_below=0.3)


def lifecycle_figures(spec: LifecycleSpec | None, base: Lifecycle) -> Lifecycle:
    """Return the lifecycle figures in force: each figure of the object overrides the preset's.

    A 0 in a field of `DISABLED_BY_ZERO`, or in `prune.priorityBelow`, disables the preset's rule.
    """
    figures = spec.model_dump(exclude_none=True) if spec else {}
    if "prune" in figures:
        prune = replace(base.prune or DEFAULT_PRUNE, **figures["prune"])
        figures["prune"] = prune if prune.priority_below else None
    return replace(base, **figures | {name: figures[name] or None for name in DISABLED_BY_ZERO if name in figures})


def lifecycle_fault(lifecycle: Lifecycle) -> tuple[str, str] | None:
    """Return the field with an unusable schedule or time zone of cleanups, and the problem. None if both are usable."""
    if fault := schedule_fault(lifecycle.schedule):
        return f"{FIELD}.schedule", fault
    if fault := zone_fault(lifecycle.time_zone):
        return f"{FIELD}.timeZone", fault
    return None


def has_cleanup_schedule(lifecycle: Lifecycle) -> bool:
    """Return whether cleanups run on a schedule. False for Never, and if `lifecycle_fault` finds a fault."""
    return lifecycle.schedule != NEVER and lifecycle_fault(lifecycle) is None


def describe_earlier_endings(before: Endings, after: Endings) -> str:
    """Describe what a change of types and figures removes earlier than before, and which new memories it rejects.

    Covers the end of idle sessions, the removal of hidden memories, and required fields. Empty if none is stricter.

    Args:
        before: Types and figures in force.
        after: Types and figures after the change.
    """
    effects = []
    idle_hours, removed_days = _idle_hours(after), _removed_days(after)
    if idle_hours is not None and idle_hours < (_idle_hours(before) or math.inf):
        effects.append(f"sessions idle for {idle_hours:g} hours end, and their memories are removed")
    if removed_days is not None and removed_days < (_removed_days(before) or math.inf):
        effects.append(f"memories hidden for {removed_days:g} days are removed")
    return ", and ".join([*effects, *_demanded(before[0], after[0])])


def _demanded(before: Iterable[MemoryType], after: Iterable[MemoryType]) -> Iterator[str]:
    """Yield a message for each existing type that requires further fields of new memories."""
    required_by_name = {type_.name: type_.required for type_ in before}
    for type_ in after:
        fields = [field for field in type_.required if field not in required_by_name.get(type_.name, type_.required)]
        if fields:
            yield f"new memories of type {type_.name!r} are rejected without {' and '.join(fields)}"


def _idle_hours(endings: Endings) -> float | None:
    return min((type_.ttl.idle_hours for type_ in endings[0] if type_.ttl and type_.ttl.idle_hours), default=None)


def _removed_days(endings: Endings) -> float | None:
    types, lifecycle = endings
    is_hidden = any(type_.ttl and type_.ttl.days and not type_.ttl.removes for type_ in types)
    return lifecycle.remove_hidden_days if is_hidden else None


KEEP_PREVIOUS_HOURS = 24
MAX_RECALL_DROP_PERCENT = 5.0


class ChangePolicy(StrEnum):
    """Policy for a Rebuild: carry it out, wait for an approval, or never carry it out. Exceptions: docs/approve.md."""

    APPLY = "Apply"
    REQUIRE_APPROVAL = "RequireApproval"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSettings:
    """Settings of rebuilds.

    Attributes:
        keep_previous_hours: Hours to keep the replaced collection.
        max_calls_per_hour: Limit of requests to the embedding provider. None is no limit.
        price: Price of a million tokens, in any currency. None is unknown.
        max_recall_drop_percent: Largest loss of recall that needs no approval, in percentage points, 0..100.
    """

    change_policy: ChangePolicy = ChangePolicy.REQUIRE_APPROVAL
    keep_previous_hours: int = KEEP_PREVIOUS_HOURS
    max_calls_per_hour: int | None = None
    price: float | None = None
    max_recall_drop_percent: float = MAX_RECALL_DROP_PERCENT


def rebuild_settings(spec: AgentMemorySpec) -> RebuildSettings:
    """Return the rebuild settings of an object. Fields that it leaves out have the defaults of `RebuildSettings`."""
    rebuild = spec.rebuild or RebuildSpec()
    keep_hours, max_drop = spec.keep_previous_hours, rebuild.max_recall_drop_percent
    return RebuildSettings(
        change_policy=ChangePolicy(spec.change_policy or ChangePolicy.REQUIRE_APPROVAL),
        keep_previous_hours=KEEP_PREVIOUS_HOURS if keep_hours is None else keep_hours,
        max_calls_per_hour=rebuild.max_embedding_calls_per_hour,
        price=rebuild.embedding_price_per_million_tokens,
        max_recall_drop_percent=MAX_RECALL_DROP_PERCENT if max_drop is None else max_drop,
    )


def effective_zones(memory: AgentMemory) -> ZoneSettings | None:
    """Return the zone settings of an object. None if it has no zones."""
    spec = memory.spec.zones
    if spec is None:
        return None
    allowed = frozenset(map(Zone, spec.allowed))
    return ZoneSettings(
        allowed=allowed,
        vectors=allowed & DEFAULT_VECTORS if spec.vectors is None else frozenset(map(Zone, spec.vectors)),
        words=frozenset(map(Zone, spec.words or ())),
        organisation=spec.organisation,
        secret_name=spec.key_secret_ref.name,
        secret_key=spec.key_secret_ref.key or DEFAULT_SECRET_KEY,
        rotate_before_ms=parse_second(spec.rotate_keys_before) if spec.rotate_keys_before else 0,
    )
