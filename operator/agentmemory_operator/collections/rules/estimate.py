"""RAM and disk that a collection needs, from its layout and the number of memories.

Bytes for one memory, fitted to segments of Qdrant (1.18 format, 10,000 to 40,000 memories, docs/tuning.md):

    vectors        dimensions * bytes of the datatype + 2
    quantized      int8: d + 5; Turbo: d * bits / 8 + 10; Binary: d * bits / 8 + 2; Product: 4d / ratio, and centroids
    graph          4.23 * log2(memories in a segment) * (m / 16) ** 0.63
    payload        400 for a content of 200 characters, on disk; in RAM too if payload.onDisk is false, then in
                   pages of 32 MiB for each segment
    indexes        400 for those of retrieval, 40 for each additional one
    keywords       w distinct words: 8.4w + 22 in RAM, 10.4w + 220 on disk; 58 in texts of three memories
    ids            30
    log            4d + 500, and 8w for keywords, until it is truncated; at most 64 MiB; on disk only
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.profiles import COLD, DATATYPE_BYTES, PROFILES, figures_of
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)

MIB = 1024**2
ESTIMATED_SIZES = (10_000, 100_000, 1_000_000)
AS_CONFIGURED = "AsAsked"
"""Key of the estimates for the layout that the collection has, in addition to the names of the profiles."""

PAYLOAD_BYTES, INDEX_BYTES, EXTRA_INDEX_BYTES, ID_BYTES = 400, 400, 40, 30
PAYLOAD_PAGE_BYTES = 32 * MIB
LOG_OVERHEAD_BYTES, MAX_LOG_BYTES = 500, 64 * MIB
# Distinct words, without stop words, of a memory of 200 characters and the two before it in its session.
DISTINCT_KEYWORDS = 58
CENTROIDS = 256
BITS = {"OneBit": 1, "OneAndHalfBits": 1.5, "TwoBits": 2, "Bits1": 1, "Bits1_5": 1.5, "Bits2": 2, "Bits4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The properties of a collection that determine its size.

    Attributes:
        vector_bytes: Bytes of one vector.
        segments: Number of segments. 0 means one per CPU and counts as 2.
        is_cold: True if the vectors are on disk.
        extra_indexes: Number of payload indexes in addition to those of retrieval.
        keywords: Distinct words in the keyword text of a memory. 0 without keyword vectors.
    """

    dimensions: int
    vector_bytes: int
    m: int
    segments: int
    is_cold: bool
    quantization: Quantization | None
    extra_indexes: int = 0
    keywords: int = 0
    has_payload_in_ram: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of RAM and disk, for one replica unless the caller states otherwise."""

    ram: float
    disk: float


def estimate(layout: Layout, memories: int) -> Estimate:
    """Estimate RAM and disk in bytes for a number of memories, in one replica."""
    vectors = memories * (layout.vector_bytes + 2)
    copies = _compressed(layout, memories)
    graph = memories * _graph_bytes(layout, memories)
    indexes = memories * (INDEX_BYTES + EXTRA_INDEX_BYTES * layout.extra_indexes + ID_BYTES)
    log = min(MAX_LOG_BYTES, memories * (4 * layout.dimensions + 8 * layout.keywords + LOG_OVERHEAD_BYTES))
    keyword_vectors = _keyword_vectors(layout, memories)
    has_copies_in_ram = not layout.is_cold or (layout.quantization is not None and layout.quantization.always_ram)
    payload = _payload_in_ram(layout, memories) if layout.has_payload_in_ram else 0
    ram = (
        payload
        + graph
        + indexes
        + keyword_vectors.ram
        + (0 if layout.is_cold else vectors)
        + (copies if has_copies_in_ram else 0)
    )
    return Estimate(ram, vectors + copies + graph + indexes + keyword_vectors.disk + memories * PAYLOAD_BYTES + log)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedRam:
    """Effect of quantized copies of the vectors on the RAM of a collection, in bytes.

    Attributes:
        copies: RAM of the copies.
        vectors: RAM of the original vectors in addition. 0 if they are on disk.
        vectors_on_disk: RAM that is saved, because the original vectors can be on disk.
    """

    copies: float
    vectors: float
    vectors_on_disk: float


def quantized_in_ram(layout: Layout, memories: int) -> QuantizedRam | None:
    """Return the RAM that quantized copies need and save, or None if the layout has none in RAM."""
    base = replace(layout, quantization=None)
    copies = estimate(layout, memories).ram - estimate(base, memories).ram
    if layout.quantization is None or not copies:
        return None
    vectors = estimate(replace(base, is_cold=False), memories).ram - estimate(replace(base, is_cold=True), memories).ram
    on_disk = vectors if layout.is_cold else 0
    return QuantizedRam(copies=copies, vectors=vectors - on_disk, vectors_on_disk=on_disk)


def estimates(collection: Collection, expected_memories: int) -> Mapping[str, Mapping[int, Estimate]]:
    """Return the estimates of the collection (AS_CONFIGURED) and of every profile, by name and number of memories.

    Args:
        expected_memories: Number of memories to estimate in addition to ESTIMATED_SIZES.
    """
    sizes = sorted({*ESTIMATED_SIZES, expected_memories})
    by_name = {AS_CONFIGURED: {memories: estimate(layout_of(collection), memories) for memories in sizes}}
    for name in PROFILES:
        by_name[name] = {memories: estimate(profile_layout(name, collection, memories), memories) for memories in sizes}
    return by_name


def shard_bytes(collection: Collection, memories: int) -> int:
    """Return the estimated bytes of one shard on disk; 0 without memories."""
    total_bytes = estimate(layout_of(collection), memories).disk if memories else 0
    return round(total_bytes / (collection.shard_number or 1))


def layout_of(collection: Collection) -> Layout:
    """Return the layout of a collection. A missing `m` or number of segments becomes 0."""
    return Layout(
        dimensions=collection.size,
        vector_bytes=collection.size * _number_bytes(collection),
        m=collection.hnsw.m or 0,
        segments=collection.optimizers.default_segment_number or 0,
        is_cold=collection.memory == COLD,
        quantization=collection.quantization,
        extra_indexes=len(set(collection.indexes) - set(RETRIEVAL_INDEXES)),
        keywords=DISTINCT_KEYWORDS if collection.has_keyword else 0,
        has_payload_in_ram=collection.payload_on_disk is False,
    )


def profile_layout(name: str, collection: Collection, memories: int) -> Layout:
    """Return the layout of a collection under the profile `name`, with its own vectors and indexes."""
    datatype = collection.datatype if collection.datatype in DATATYPE_BYTES else "Float32"
    figures = figures_of(PROFILES[name], expected_memories=memories, dimensions=collection.size, datatype=str(datatype))
    with_profile = replace(
        collection,
        hnsw=figures.hnsw,
        optimizers=figures.optimizers,
        memory=figures.memory,
        quantization=figures.quantization,
    )
    return layout_of(with_profile)


def _number_bytes(collection: Collection) -> int:
    # Consider Uint8, which the operator never creates, but an adopted collection may have.
    return 1 if collection.datatype == "Uint8" else DATATYPE_BYTES[collection.datatype or "Float32"]


def _keyword_vectors(layout: Layout, memories: int) -> Estimate:
    """Return the size of keyword vectors: their index is always in RAM, the vectors are on disk."""
    if not layout.keywords:
        return Estimate(0, 0)
    return Estimate(memories * (8.4 * layout.keywords + 22), memories * (10.4 * layout.keywords + 220))


def _payload_in_ram(layout: Layout, memories: int) -> float:
    """Return the bytes of payload in RAM: whole pages for each segment, at least one even for an empty agent."""
    segments = layout.segments or 2
    return segments * PAYLOAD_PAGE_BYTES * max(1, math.ceil(memories * PAYLOAD_BYTES / segments / PAYLOAD_PAGE_BYTES))


def _graph_bytes(layout: Layout, memories: int) -> float:
    in_segment = max(2.0, memories / (layout.segments or 2))
    return 4.23 * math.log2(in_segment) * math.pow(layout.m / 16, 0.63)


def _compressed(layout: Layout, memories: int) -> float:
    dimensions = layout.dimensions
    match layout.quantization:
        case None:
            return 0
        case ScalarQuantization():
            return memories * (dimensions + 5)
        case ProductQuantization(compression, _):
            centroids = (layout.segments or 2) * CENTROIDS * dimensions * 4
            return memories * 4 * dimensions / int(compression.removeprefix("X")) + centroids
        case BinaryQuantization(encoding, _, _):
            return memories * (dimensions * BITS[encoding] / 8 + 2)
        case TurboQuantization(bits, _):
            return memories * (dimensions * BITS[bits] / 8 + 10)
