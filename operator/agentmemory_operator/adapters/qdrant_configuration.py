"""Our values in the words of Qdrant's API, and what it answers in ours."""

from typing import Any

from agentmemory_operator.adapters.qdrant_sdk import models
from agentmemory_operator.domain.collection import (
    KEYWORD_VECTOR,
    METADATA_KEY,
    BinaryQuantization,
    Collection,
    Limit,
    Observed,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
    marker_from_json,
    marker_to_json,
)
from agentmemory_operator.domain.planning import (
    UpdateHnsw,
    UpdateOptimizers,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.domain.profiles import CACHED, COLD

FLOAT32 = "Float32"
# A rare word weighs more: the engine knows how rare each is in the collection.
KEYWORD_CONFIG = models.SparseVectorNameConfig(sparse=models.SparseVectorConfig(modifier=models.Modifier.IDF))
ENCODINGS = {"OneBit": "one_bit", "OneAndHalfBits": "one_and_half_bits", "TwoBits": "two_bits"}
ENCODING_NAMES = {value: name for name, value in ENCODINGS.items()}
QUERY_ENCODING_NAMES = {name.lower(): name for name in ("Default", "Binary", "Scalar4Bits", "Scalar8Bits")}


Patched = (
    UpdateHnsw
    | UpdateQuantization
    | UpdateOptimizers
    | WakeOptimizers
    | UpdateReplication
    | UpdateStrictMode
    | WriteMarker
)


def update_of(
    change: UpdateHnsw
    | UpdateQuantization
    | UpdateOptimizers
    | WakeOptimizers
    | UpdateReplication
    | UpdateStrictMode
    | WriteMarker,
) -> dict[str, Any]:
    """Return the arguments of the PATCH that carries the change out."""
    match change:
        case UpdateHnsw():
            return {"hnsw_config": hnsw_of(change)}
        case UpdateQuantization(quantization):
            return {"quantization_config": quantization_of(quantization) or models.Disabled.DISABLED}
        case UpdateOptimizers():
            return {"optimizers_config": optimizers_of(change)}
        case UpdateReplication(factor):
            return {"collection_params": models.CollectionParamsDiff(replication_factor=factor)}
        case UpdateStrictMode(limits):
            return {"strict_mode_config": models.StrictModeConfig.model_validate(dict(limits))}
        case WakeOptimizers():
            return {"optimizers_config": models.OptimizersConfigDiff()}
        case WriteMarker(marker):
            return {"metadata": {METADATA_KEY: marker_to_json(marker)}}


def vector_of(collection: Collection) -> models.VectorParams:
    """Return the engine's body of the one nameless vector; what is the engine's default is left out."""
    datatype = None if collection.datatype in (None, FLOAT32) else models.Datatype(str(collection.datatype).lower())
    return models.VectorParams(
        size=collection.size,
        distance=models.Distance(collection.distance),
        datatype=datatype,
        on_disk=True if collection.memory == COLD else None,
    )


def sparse_vectors_of(collection: Collection) -> dict[str, models.SparseVectorParams] | None:
    """Return the sparse vector for keywords, None where there is none."""
    return {KEYWORD_VECTOR: models.SparseVectorParams(modifier=models.Modifier.IDF)} if collection.has_keyword else None


def placement_of(memory: str, *, is_tiered: bool) -> models.VectorParamsDiff:
    """Return the vector's tier under the name that the server was told it by."""
    if is_tiered:
        return models.VectorParamsDiff(memory=models.Memory(memory.lower()))
    return models.VectorParamsDiff(on_disk=memory == COLD)


def hnsw_of(source: Collection | UpdateHnsw) -> models.HnswConfigDiff:
    """Return the engine's HNSW body."""
    return models.HnswConfigDiff(
        m=source.m, ef_construct=source.ef_construct, full_scan_threshold=source.full_scan_threshold_kb
    )


def optimizers_of(source: Collection | UpdateOptimizers) -> models.OptimizersConfigDiff:
    """Return the engine's optimizers body."""
    return models.OptimizersConfigDiff(
        default_segment_number=source.default_segment_number, indexing_threshold=source.indexing_threshold_kb
    )


def quantization_of(quantization: Quantization | None) -> models.QuantizationConfig | None:
    """Return the engine's quantization body."""
    match quantization:
        case ScalarQuantization(quantile, ram):
            scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=quantile, always_ram=ram)
            return models.ScalarQuantization(scalar=scalar)
        case ProductQuantization(compression, ram):
            ratio = models.CompressionRatio(compression.lower())
            product = models.ProductQuantizationConfig(compression=ratio, always_ram=ram)
            return models.ProductQuantization(product=product)
        case BinaryQuantization(encoding, query_encoding, ram):
            binary = models.BinaryQuantizationConfig(
                encoding=models.BinaryQuantizationEncoding(ENCODINGS[encoding]),
                query_encoding=models.BinaryQuantizationQueryEncoding(query_encoding.lower()),
                always_ram=ram,
            )
            return models.BinaryQuantization(binary=binary)
        case TurboQuantization(bits, ram):
            turbo = models.TurboQuantQuantizationConfig(bits=models.TurboQuantBitSize(bits.lower()), always_ram=ram)
            return models.TurboQuantization(turbo=turbo)
        case None:
            return None


def observed_from(info: models.CollectionInfo, *, physical: str, is_aliased: bool) -> Observed:
    """Return the value of what the server answered."""
    config, metadata = info.config, info.config.metadata or {}
    vectors = config.params.vectors
    vector = vectors if isinstance(vectors, models.VectorParams) else models.VectorParams(size=0, distance="Cosine")
    marker = metadata.get(METADATA_KEY)
    collection = Collection(
        size=vector.size,
        distance=vector.distance.value,
        m=config.hnsw_config.m,
        ef_construct=config.hnsw_config.ef_construct,
        full_scan_threshold_kb=config.hnsw_config.full_scan_threshold,
        default_segment_number=config.optimizer_config.default_segment_number,
        indexing_threshold_kb=config.optimizer_config.indexing_threshold,
        quantization=quantization_from(config.quantization_config),
        indexes=tuple(sorted((field, index.data_type.value) for field, index in info.payload_schema.items())),
        datatype=vector.datatype.value.capitalize() if vector.datatype else FLOAT32,
        memory=memory_from(vector),
        shard_number=config.params.shard_number,
        replication_factor=config.params.replication_factor,
        strict_mode=limits_from(config.strict_mode_config),
        has_keyword=KEYWORD_VECTOR in (config.params.sparse_vectors or {}),
        marker=marker_from_json(marker) if marker else None,
    )
    queue: Any = info.update_queue
    return Observed(
        physical=physical,
        is_aliased=is_aliased,
        collection=collection,
        points=info.points_count or 0,
        indexed=info.indexed_vectors_count or 0,
        state=info.status.value,
        is_busy=info.status is not models.CollectionStatus.GREEN or bool(queue and queue.length),
        fault=getattr(info.optimizer_status, "error", ""),
    )


def memory_from(vector: models.VectorParams) -> str:
    """Return where the vectors lie, by effect: the tier by its new name, else by the old one."""
    if vector.memory is not None:
        return CACHED if vector.memory is models.Memory.CACHED else COLD
    return COLD if vector.on_disk else CACHED


def limits_from(config: Any) -> tuple[tuple[str, Limit], ...]:
    """Return the plain limits that are set; some newer ones are structures and no part of a plan."""
    given = config.model_dump(exclude_none=True) if config else {}
    return tuple(sorted((name, value) for name, value in given.items() if isinstance(value, bool | int | float)))


def quantization_from(config: Any) -> Quantization | None:
    """Return the quantization, with the engine's defaults where it was told nothing."""
    match config:
        case models.ScalarQuantization(scalar=scalar):
            return ScalarQuantization(scalar.quantile, _is_in_ram(scalar))
        case models.ProductQuantization(product=product):
            return ProductQuantization(product.compression.value.upper(), _is_in_ram(product))
        case models.BinaryQuantization(binary=binary):
            encoding = binary.encoding.value if binary.encoding else ENCODINGS["OneBit"]
            query = binary.query_encoding.value if binary.query_encoding else "default"
            return BinaryQuantization(ENCODING_NAMES[encoding], QUERY_ENCODING_NAMES[query], _is_in_ram(binary))
        case models.TurboQuantization(turbo=turbo):
            bits = turbo.bits.value if turbo.bits else "bits4"
            return TurboQuantization(bits.capitalize(), _is_in_ram(turbo))
        case _:
            return None


def _is_in_ram(config: Any) -> bool:
    """Tell whether the copies are kept in RAM, by the new name of the tier, else by the old one."""
    return config.memory is models.Memory.PINNED if config.memory is not None else bool(config.always_ram)
