"""No design: any type, the score is the similarity (with keywords the fused one), nothing fades or is left out."""

from agentmemory_operator.spec.presets.table import Lifecycle, Preset, Weights

NONE = Preset(
    name="none",
    summary="any type of memory, ranked by similarity only",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    lifecycle=Lifecycle(scrub_secrets=False, session_idle_hours=24),
)
