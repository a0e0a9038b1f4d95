"""No design: any type, the score is the similarity (with keywords the fused one), nothing fades or is left out."""

from dataclasses import replace

from agentmemory_operator.spec.presets.table import Lifecycle, Preset, Weights

_FIRST = Preset(
    name="none",
    summary="any type of memory, ranked by similarity only",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    lifecycle=Lifecycle(scrub_secrets=False),
)

# The first revision kept the working memory of a session that nobody ended for ever.
_SECOND = replace(_FIRST, revision=2, lifecycle=replace(_FIRST.lifecycle, session_idle_hours=24))

# The second, where an object asks for words, let all words of a keyword text count alike.
NONE = replace(_SECOND, revision=3, has_weighted_words=True)

REVISIONS = (_FIRST, _SECOND, NONE)
