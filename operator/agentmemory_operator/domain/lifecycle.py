"""When memories are cleaned up and by which figures: the object's over its preset's."""

from dataclasses import replace

from agentmemory_operator.domain.lifecycle_spec import LifecycleSpec
from agentmemory_operator.domain.presets import Lifecycle, Prune
from agentmemory_operator.domain.schedule import NEVER, schedule_fault, zone_fault

FIELD = "spec.lifecycle"
# 0 says that an object wants none of what its preset does.
_NONE_BY_0 = ("decay_floor", "max_chain_length")
# R4's, where an object prunes and its preset does not.
DEFAULT_PRUNE = Prune(older_than_days=365, priority_below=0.2, confidence_below=0.3)


def figures_over(spec: LifecycleSpec | None, base: Lifecycle) -> Lifecycle:
    """Return the figures in force: each that the object gives over the preset's."""
    given = spec.model_dump(exclude_none=True) if spec else {}
    if "prune" in given:
        prune = replace(base.prune or DEFAULT_PRUNE, **given["prune"])
        given["prune"] = prune if prune.priority_below else None
    return replace(base, **given | {name: given[name] or None for name in _NONE_BY_0 if name in given})


def lifecycle_fault(lifecycle: Lifecycle) -> tuple[str, str] | None:
    """Return the field that keeps cleanups from being made and what is wrong with it, None where nothing does."""
    if fault := schedule_fault(lifecycle.schedule):
        return f"{FIELD}.schedule", fault
    if fault := zone_fault(lifecycle.time_zone):
        return f"{FIELD}.timeZone", fault
    return None


def is_cleaned(lifecycle: Lifecycle) -> bool:
    """Tell whether cleanups are made on a schedule."""
    return lifecycle.schedule != NEVER and lifecycle_fault(lifecycle) is None
