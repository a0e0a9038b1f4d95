"""For who does not know yet: any type, found by meaning, words and evidence; nothing fades, nothing is left out."""

from agentmemory_operator.spec.presets.table import (
    NEEDED_INDEXES,
    EvidenceWeights,
    Fusion,
    Hnsw,
    Lifecycle,
    Optimizers,
    Preset,
    ScalarQuantization,
    Weights,
)

STANDARD = Preset(
    name="standard",
    summary="any type of memory, ranked by meaning, keywords and evidence; nothing fades",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    has_keyword=True,
    has_weighted_words=True,
    # Source of the numbers: docs/adr/0029.
    fusion=Fusion(keyword_weight=0.65),
    evidence=EvidenceWeights(terse=0.25, author=0.05, time=0.1),
    hnsw=Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    # One segment, and no index of what neither its searches nor its score read: words have theirs (docs/adr/0030).
    optimizers=Optimizers(default_segment_number=1, indexing_threshold_kb=20_000),
    payload_indexes=NEEDED_INDEXES,
    lifecycle=Lifecycle(deduplicate=True),
)
