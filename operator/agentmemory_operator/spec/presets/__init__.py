"""Presets as data: a table of figures for each reference design (R1 to R5), and for two presets without a design.

docs/presets.md lists the figures. Where a design contradicts itself or Qdrant, a comment next to the figure states
the decision.
"""

from agentmemory_operator.spec.presets.designs import BRAIN, COGNITIVE, CORTEX, IMPORTANCE, KEYED, NONE, STANDARD
from agentmemory_operator.spec.presets.table import (
    KEYWORD_INDEXES,
    NEEDED_INDEXES,
    NO_GATE,
    RETRIEVAL_INDEXES,
    Lifecycle,
    Preset,
    PruneCriteria,
    Weights,
)

PRESETS: dict[str, tuple[Preset, ...]] = {
    preset.name: (preset,) for preset in (STANDARD, CORTEX, BRAIN, KEYED, COGNITIVE, IMPORTANCE, NONE)
}
"""All revisions of each preset, oldest first.

A collection keeps its revision until the operator moves it to a newer one (docs/approve.md). So a change of a released
preset is a new revision here, and a released revision never changes.
"""

DEFAULT_PRESET = STANDARD.name

__all__ = (
    "BRAIN",
    "COGNITIVE",
    "CORTEX",
    "DEFAULT_PRESET",
    "IMPORTANCE",
    "KEYED",
    "KEYWORD_INDEXES",
    "NEEDED_INDEXES",
    "NONE",
    "NO_GATE",
    "PRESETS",
    "RETRIEVAL_INDEXES",
    "STANDARD",
    "Lifecycle",
    "Preset",
    "PruneCriteria",
    "Weights",
)
