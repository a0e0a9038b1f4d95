"""Named profiles of `spec.index`: figures by purpose and size. `docs/tuning.md` gives the source of each.

A field of the object overrides its named profile, which overrides the preset. Without a profile the preset applies.
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
LARGE_GRAPH_MEMORIES = 100_000
"""Above this number of expected memories a profile uses its larger graph (reference design R1)."""

DATATYPE_BYTES = {"Float32": 4, "Float16": 2}
CACHED, COLD = "Cached", "Cold"
PER_CPU = 0
"""As a number of segments: one for each CPU, Qdrant's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Named profile: index figures for one purpose, by size. One row of the table in `docs/tuning.md`.

    Attributes:
        graph: Graph for up to `LARGE_GRAPH_MEMORIES` expected memories.
        large_graph: Graph for more expected memories.
        full_scan_memories: A filter that matches at most this many memories is scanned instead of searched in the
            graph. 0 uses Qdrant's threshold.
        segments: Target number of segments, unless `has_segment_per_cpu` applies. 0 is one for each CPU.
        indexing_threshold_kb: Kilobytes of vectors from which a segment gets a graph.
        has_segment_per_cpu: True for one segment for each CPU once the raw vectors have eight times the indexing
            threshold. Eight CPUs are assumed; with fewer vectors their segments would be too small for a graph.
        cold_from_bytes: Raw vectors of at least this total size stay on disk. None keeps all in the page cache.
        quantization: Pairs of a minimum total size of the raw vectors in bytes and the method, ascending. Method None
            keeps no compressed vectors.
        oversampling: Oversampling of searches. None uses the method's default.
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
# Vectors that fill two segments up to the indexing threshold. Smaller segments have no graph, and most methods compress
# only vectors with a graph.
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
        # The defaults of the server, as a base for manual settings.
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
    """Return the profile's graph for this size, without a full-scan threshold, which depends on the vectors too."""
    return profile.large_graph if expected_memories > LARGE_GRAPH_MEMORIES else profile.graph


def figures_of(profile: Profile, *, expected_memories: int, dimensions: int, datatype: str) -> CollectionFigures:
    """Return the profile's figures for a collection with vectors of this number, dimensions and datatype."""
    vector_bytes = dimensions * DATATYPE_BYTES[datatype]
    raw_bytes = expected_memories * vector_bytes
    full_scan_kb = profile.full_scan_memories * vector_bytes // KIBIBYTE
    min_bytes_per_cpu = _CPUS_FOR_SEGMENTS * profile.indexing_threshold_kb * KIBIBYTE
    segments = PER_CPU if profile.has_segment_per_cpu and raw_bytes >= min_bytes_per_cpu else profile.segments
    is_cold = profile.cold_from_bytes is not None and raw_bytes >= profile.cold_from_bytes
    return CollectionFigures(
        hnsw=replace(
            graph_of(profile, expected_memories),
            full_scan_threshold_kb=max(10, full_scan_kb) if profile.full_scan_memories else ENGINE_FULL_SCAN_KB,
        ),
        optimizers=Optimizers(default_segment_number=segments, indexing_threshold_kb=profile.indexing_threshold_kb),
        memory=COLD if is_cold else CACHED,
        quantization=next(method for min_bytes, method in reversed(profile.quantization) if raw_bytes >= min_bytes),
    )
