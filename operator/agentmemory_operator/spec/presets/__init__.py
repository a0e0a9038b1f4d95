"""The reference designs as data: one table each. The figures are the designs'; docs/presets.md shows them.

Where a design contradicts itself or the engine, the ruling stands beside the figure.
"""

from agentmemory_operator.spec.presets.designs import BRAIN, COGNITIVE, CORTEX, IMPORTANCE, KEYED, NONE, STANDARD
from agentmemory_operator.spec.presets.table import (
    KEYWORD_INDEXES,
    NEEDED_INDEXES,
    NO_GATE,
    RETRIEVAL_INDEXES,
    Lifecycle,
    Preset,
    Prune,
    Weights,
)

PRESETS: dict[str, tuple[Preset, ...]] = {
    preset.name: (preset,) for preset in (STANDARD, CORTEX, BRAIN, KEYED, COGNITIVE, IMPORTANCE, NONE)
}
"""Every revision, oldest first: collections stay with theirs, so a released one is never changed, but followed."""

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
    "Prune",
    "Weights",
)
