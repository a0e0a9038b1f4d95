"""Which preset an object has, and which revision of it."""

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.presets import (
    DEFAULT_PRESET,
    PRESETS,
    Preset,
)


def preset_of(memory: AgentMemory) -> Preset:
    """The object's preset, `cortex` when it names none, in the revision that is in force for its collection.

    Without a collection, or with one of a revision that is not known here, the newest.
    """
    revisions, pinned = PRESETS[memory.spec.preset or DEFAULT_PRESET], _pinned_revision(memory)
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def revisions_of(memory: AgentMemory) -> list[AgentMemory]:
    """The object as it is under each revision of its preset, oldest first."""
    return [at_revision(memory, preset.revision) for preset in PRESETS[memory.spec.preset or DEFAULT_PRESET]]


def at_revision(memory: AgentMemory, revision: int) -> AgentMemory:
    """The object with the figures of another revision of its preset in force."""
    before = memory.status.get("effective")
    effective = dict(before) if isinstance(before, dict) else {}
    effective |= {"preset": memory.spec.preset or DEFAULT_PRESET, "presetRevision": revision}
    return memory.model_copy(update={"status": memory.status | {"effective": effective}})


def _pinned_revision(memory: AgentMemory) -> int | None:
    """The revision that the status says is in force; another preset's says nothing."""
    effective = memory.status.get("effective")
    if not isinstance(effective, dict) or effective.get("preset") != (memory.spec.preset or DEFAULT_PRESET):
        return None
    revision = effective.get("presetRevision")
    return revision if isinstance(revision, int) else None
