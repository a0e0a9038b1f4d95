"""R1: one collection per agent, eight typed half-lives, a weighted score."""

from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets.table import Hnsw, Lifecycle, Optimizers, Preset, ScalarQuantization, Weights

CORTEX = Preset(
    name="cortex",
    summary="an assistant that forgets: half-lives by type; similarity, recency and utility",
    revision=1,
    types=(
        MemoryType(
            "fact",
            half_life_days=365,
            meaning="something that is so, of the user or their work: they use X, their Y is Z",
        ),
        MemoryType(
            "preference",
            half_life_days=180,
            meaning="how the user likes things done: they prefer, always want or never want X",
        ),
        MemoryType(
            "person", half_life_days=365, meaning="who somebody is, their role and what they have to do with the user"
        ),
        MemoryType("project", half_life_days=90, meaning="what is being built: its parts, its state, its deadline"),
        MemoryType(
            "task", half_life_days=30, meaning="work that is to be done, under way or done: deployed X, fixed Y, owes Z"
        ),
        MemoryType("episodic", half_life_days=14, meaning="what happened at a time: in a session, in an incident"),
        MemoryType("decision", half_life_days=180, meaning="a choice that was made, and why: we chose X because of Y"),
        MemoryType("correction", half_life_days=365, meaning="what the agent got wrong, and what is right instead"),
    ),
    weights=Weights(similarity=0.5, recency=0.3, utility=0.2),
    # The design's constant in code; its prose examples fit no single norm.
    utility_norm=3.0,
    limit=10,
    score_threshold=0.3,
    min_similarity=0.1,
    has_weighted_words=True,
    hnsw=Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
    optimizers=Optimizers(default_segment_number=2, indexing_threshold_kb=20_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    # The design places vectors, graph and quantized vectors in RAM.
    memory="Cached",
    lifecycle=Lifecycle(schedule="0 3 * * *", decay_floor=0.01, max_chain_length=5),
)
