"""The preset of an object, and which revision of it (`PRESETS`) is in force for the object's collection."""

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS, Preset


def preset_name(memory: AgentMemory) -> str:
    """Return the name of the object's preset: from its spec, else that in force in its status, else the default."""
    effective = _in_force(memory)
    name = effective.get("preset")
    # Accept only a name with a revision: until a preset is in force, the status contains the requested name alone.
    is_in_force = isinstance(effective.get("presetRevision"), int) and isinstance(name, str) and name in PRESETS
    return memory.spec.preset or (str(name) if is_in_force else DEFAULT_PRESET)


def is_preset_undecided(memory: AgentMemory) -> bool:
    """Return whether neither spec nor status decides the preset. Then the object's collection decides, if it exists."""
    return memory.spec.preset is None and _pinned_revision(memory) is None


def preset_of(memory: AgentMemory) -> Preset:
    """Return the object's preset, in the revision that is in force for its collection.

    If the status names none for this preset, or this operator does not have it, it is the newest revision.
    """
    revisions, pinned = PRESETS[preset_name(memory)], _pinned_revision(memory)
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def revisions_of(memory: AgentMemory) -> list[AgentMemory]:
    """Return the object under each revision of its preset, oldest first."""
    return [at_revision(memory, preset.revision) for preset in PRESETS[preset_name(memory)]]


def at_revision(memory: AgentMemory, revision: int, *, preset: str | None = None) -> AgentMemory:
    """Return a copy of the object with another revision of its preset in force in the status.

    Args:
        preset: Preset to put in force. None is that of `preset_name`.
    """
    in_force = {"preset": preset or preset_name(memory), "presetRevision": revision}
    return memory.model_copy(update={"status": memory.status | {"effective": _in_force(memory) | in_force}})


def _in_force(memory: AgentMemory) -> dict[str, object]:
    effective = memory.status.get("effective")
    return dict(effective) if isinstance(effective, dict) else {}


def _pinned_revision(memory: AgentMemory) -> int | None:
    """Return the revision in force according to the status. None if it names none, or another preset."""
    effective = _in_force(memory)
    if effective.get("preset") != preset_name(memory):
        return None
    revision = effective.get("presetRevision")
    return revision if isinstance(revision, int) else None
