"""R3: a store of items by namespace and key, the last write of a key wins."""

from agentmemory_operator.spec.presets.table import RETRIEVAL_INDEXES, Lifecycle, Preset, Weights

KEYED = Preset(
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
    lifecycle=Lifecycle(scrub_secrets=False, session_idle_hours=24),
    payload_indexes=(*RETRIEVAL_INDEXES, ("namespacePaths", "keyword"), ("itemNamespace", "keyword")),
)
