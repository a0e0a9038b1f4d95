"""The reference designs as data: one table each. The figures are the designs'; docs/presets.md shows them.

Where a design contradicts itself or the engine, the ruling stands beside the figure.
"""

from agentmemory_operator.domain.presets.brain import BRAIN
from agentmemory_operator.domain.presets.cognitive import COGNITIVE
from agentmemory_operator.domain.presets.cortex import CORTEX
from agentmemory_operator.domain.presets.importance import IMPORTANCE
from agentmemory_operator.domain.presets.indexes import KEYWORD_INDEXES, RETRIEVAL_INDEXES
from agentmemory_operator.domain.presets.keyed import KEYED
from agentmemory_operator.domain.presets.none import NONE
from agentmemory_operator.domain.presets.table import NO_GATE, Lifecycle, Preset, Prune, Weights

PRESETS: dict[str, tuple[Preset, ...]] = {
    preset.name: (preset,) for preset in (CORTEX, BRAIN, KEYED, COGNITIVE, IMPORTANCE, NONE)
}
"""Every revision, oldest first: collections stay with theirs, so a released one is never changed, but followed."""

DEFAULT_PRESET = CORTEX.name

__all__ = (
    "BRAIN",
    "COGNITIVE",
    "CORTEX",
    "DEFAULT_PRESET",
    "IMPORTANCE",
    "KEYED",
    "KEYWORD_INDEXES",
    "NONE",
    "NO_GATE",
    "PRESETS",
    "RETRIEVAL_INDEXES",
    "Lifecycle",
    "Preset",
    "Prune",
    "Weights",
)
