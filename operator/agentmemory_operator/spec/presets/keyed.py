"""R3: a store of items by namespace and key, the last write of a key wins."""

from dataclasses import replace

from agentmemory_operator.spec.presets.table import RETRIEVAL_INDEXES, Lifecycle, Preset, Weights

_FIRST = Preset(
    name="keyed",
    summary="items with a namespace and a key; the last write wins",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    limit=20,
    score_threshold=0.7,
    embedding_models=(("fastembed", "sentence-transformers/all-MiniLM-L6-v2"),),
    embedding_cache_entries=100,
    max_content_tokens=2_048,
    # An item is what was put, to the letter.
    lifecycle=Lifecycle(scrub_secrets=False),
    payload_indexes=(*RETRIEVAL_INDEXES, ("namespacePaths", "keyword"), ("itemNamespace", "keyword")),
)

# The first revision kept the working memory of a session that nobody ended for ever.
_SECOND = replace(_FIRST, revision=2, lifecycle=replace(_FIRST.lifecycle, session_idle_hours=24))

# The second, where an object asks for words, let all words of a keyword text count alike.
KEYED = replace(_SECOND, revision=3, has_weighted_words=True)

REVISIONS = (_FIRST, _SECOND, KEYED)
