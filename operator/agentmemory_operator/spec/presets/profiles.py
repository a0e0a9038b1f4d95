"""Named profiles of `spec.index`: numbers that a purpose and a size decide. `docs/tuning.md` gives each its source.

A field of the object wins over its named profile, that over the preset. Without a name the preset's figures hold.
"""

from dataclasses import dataclass, replace

from agentmemory_operator.spec.presets.table import (
    CollectionFigures,
    Hnsw,
    Optimizers,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)

KIBIBYTE, GIBIBYTE = 1024, 1024**3
DEFAULT_EXPECTED_MEMORIES = 100_000
LARGE_MEMORIES = 100_000
"""Beyond this many expected memories a profile takes its larger graph (reference design R1)."""

DATATYPE_BYTES = {"Float32": 4, "Float16": 2}
CACHED, COLD = "Cached", "Cold"
PER_CPU = 0
"""As a number of segments: one for each CPU, the engine's own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One row of the table in `docs/tuning.md`.

    Attributes:
        graph: up to `LARGE_MEMORIES` expected memories.
        large_graph: beyond.
        full_scan_memories: up to this many memories behind a filter are scanned rather than searched in the graph.
        segments: aimed at while a segment for each CPU would be too small for a graph.
        has_segment_per_cpu: one segment for each CPU as soon as eight of them get a graph.
        cold_from_bytes: raw vectors of this size or more stay on disk; None keeps all in the page cache.
        quantization: (from this size of the raw vectors on, method), ascending.
        oversampling: of searches; None is the method's own.
    """

    name: str
    graph: Hnsw
    large_graph: Hnsw
    full_scan_memories: int
    segments: int
    indexing_threshold_kb: int
    has_segment_per_cpu: bool = False
    cold_from_bytes: int | None = None
    quantization: tuple[tuple[int, Quantization | None], ...] = ((0, None),)
    oversampling: float | None = None


INT8 = ScalarQuantization(0.99, always_ram=True)
# Segments below the indexing threshold have no graph, and most methods compress only what a graph searches.
_TWO_GRAPHS = 2 * 20_000 * KIBIBYTE
_CPUS_FOR_SEGMENTS = 8

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="Balanced",
            graph=Hnsw(m=16, ef_construct=128),
            large_graph=Hnsw(m=32, ef_construct=256),
            full_scan_memories=10_000,
            segments=2,
            indexing_threshold_kb=20_000,
            cold_from_bytes=4 * GIBIBYTE,
            quantization=((0, None), (_TWO_GRAPHS, INT8)),
        ),
        Profile(
            name="LowLatency",
            graph=Hnsw(m=16, ef_construct=128),
            large_graph=Hnsw(m=32, ef_construct=256),
            full_scan_memories=5_000,
            segments=2,
            has_segment_per_cpu=True,
            indexing_threshold_kb=10_000,
            quantization=((0, None), (_TWO_GRAPHS // 2, INT8)),
        ),
        Profile(
            name="LowMemory",
            graph=Hnsw(m=16, ef_construct=128),
            large_graph=Hnsw(m=16, ef_construct=128),
            full_scan_memories=5_000,
            segments=2,
            indexing_threshold_kb=20_000,
            cold_from_bytes=0,
            quantization=(
                (0, None),
                (_TWO_GRAPHS, TurboQuantization("Bits4", always_ram=True)),
                (16 * GIBIBYTE, TurboQuantization("Bits2", always_ram=True)),
            ),
        ),
        Profile(
            name="HighRecall",
            graph=Hnsw(m=32, ef_construct=256),
            large_graph=Hnsw(m=64, ef_construct=512),
            full_scan_memories=20_000,
            segments=2,
            indexing_threshold_kb=20_000,
            quantization=((0, None), (4 * GIBIBYTE, INT8)),
            oversampling=2.0,
        ),
        # What the server does when nobody says anything; a base for settings by hand.
        Profile(
            name="Custom",
            graph=Hnsw(m=16, ef_construct=100),
            large_graph=Hnsw(m=16, ef_construct=100),
            full_scan_memories=0,
            segments=PER_CPU,
            indexing_threshold_kb=10_000,
        ),
    )
}
ENGINE_FULL_SCAN_KB = 10_000


def graph_of(profile: Profile, expected_memories: int) -> Hnsw:
    """The profile's graph, whose full scan depends on the vectors too."""
    return profile.large_graph if expected_memories > LARGE_MEMORIES else profile.graph


def figures_of(profile: Profile, *, expected_memories: int, dimensions: int, datatype: str) -> CollectionFigures:
    """The profile's numbers for a collection of this size."""
    vector_bytes = dimensions * DATATYPE_BYTES[datatype]
    raw_bytes = expected_memories * vector_bytes
    full_scan_kb = profile.full_scan_memories * vector_bytes // KIBIBYTE
    enough = _CPUS_FOR_SEGMENTS * profile.indexing_threshold_kb * KIBIBYTE
    segments = PER_CPU if profile.has_segment_per_cpu and raw_bytes >= enough else profile.segments
    is_cold = profile.cold_from_bytes is not None and raw_bytes >= profile.cold_from_bytes
    return CollectionFigures(
        hnsw=replace(
            graph_of(profile, expected_memories),
            full_scan_threshold_kb=max(10, full_scan_kb) if profile.full_scan_memories else ENGINE_FULL_SCAN_KB,
        ),
        optimizers=Optimizers(default_segment_number=segments, indexing_threshold_kb=profile.indexing_threshold_kb),
        memory=COLD if is_cold else CACHED,
        quantization=next(method for least, method in reversed(profile.quantization) if raw_bytes >= least),
    )
