"""Which preset an object has, and which revision of it."""

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.presets import (
    DEFAULT_PRESET,
    PRESETS,
    Preset,
)


def preset_name(memory: AgentMemory) -> str:
    """The name of the object's preset: what it names, else what its status says is in force, else the default."""
    effective = _in_force(memory)
    name = effective.get("preset")
    # Before one is in force the status names that which was asked for.
    is_known = isinstance(effective.get("presetRevision"), int) and isinstance(name, str) and name in PRESETS
    return memory.spec.preset or (str(name) if is_known else DEFAULT_PRESET)


def is_undecided(memory: AgentMemory) -> bool:
    """Whether neither the object nor its status says which preset it has: its collection, if any, decides."""
    return memory.spec.preset is None and _pinned_revision(memory) is None


def preset_of(memory: AgentMemory) -> Preset:
    """The object's preset, in the revision that is in force for its collection.

    Without a collection, or with one of a revision that is not known here, the newest.
    """
    revisions, pinned = PRESETS[preset_name(memory)], _pinned_revision(memory)
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def revisions_of(memory: AgentMemory) -> list[AgentMemory]:
    """The object as it is under each revision of its preset, oldest first."""
    return [at_revision(memory, preset.revision) for preset in PRESETS[preset_name(memory)]]


def at_revision(memory: AgentMemory, revision: int, *, preset: str | None = None) -> AgentMemory:
    """The object with the figures of another revision of its preset in force.

    Args:
        preset: of an object that names none: which one is in force.
    """
    in_force = {"preset": preset or preset_name(memory), "presetRevision": revision}
    return memory.model_copy(update={"status": memory.status | {"effective": _in_force(memory) | in_force}})


def _in_force(memory: AgentMemory) -> dict[str, object]:
    effective = memory.status.get("effective")
    return dict(effective) if isinstance(effective, dict) else {}


def _pinned_revision(memory: AgentMemory) -> int | None:
    """The revision that the status says is in force; another preset's says nothing."""
    effective = _in_force(memory)
    if effective.get("preset") != preset_name(memory):
        return None
    revision = effective.get("presetRevision")
    return revision if isinstance(revision, int) else None
