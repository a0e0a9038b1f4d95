"""Translate a collection's configuration for the engine, and determine which changes require rebuilt segments."""

from typing import Any

import qdrant_edge as edge

from qdrant_devserver.fields import Document
from qdrant_devserver.storage.configuration import dense_vectors

# The engine rejects a shard without vectors, but the server accepts it. The shard gets a vector that no request can
# name.
PLACEHOLDER_VECTOR = "\x1f"
KIBIBYTE = 1024
_DATATYPE_BYTES = {"float32": 4, "float16": 2, "uint8": 1}
_DATATYPES = {
    "float32": edge.VectorStorageDatatype.Float32,
    "float16": edge.VectorStorageDatatype.Float16,
    "uint8": edge.VectorStorageDatatype.Uint8,
}
_MEMORY = {"cold": edge.Memory.Cold, "cached": edge.Memory.Cached, "pinned": edge.Memory.Pinned}
_ON_DISK = {"on_disk": True, "memory": "cold"}
_DISTANCES = {
    "Cosine": edge.Distance.Cosine,
    "Euclid": edge.Distance.Euclid,
    "Dot": edge.Distance.Dot,
    "Manhattan": edge.Distance.Manhattan,
}
_COMPRESSIONS = {
    "x4": edge.CompressionRatio.X4,
    "x8": edge.CompressionRatio.X8,
    "x16": edge.CompressionRatio.X16,
    "x32": edge.CompressionRatio.X32,
    "x64": edge.CompressionRatio.X64,
}
_ENCODINGS = {
    "one_bit": edge.BinaryQuantizationEncoding.OneBit,
    "two_bits": edge.BinaryQuantizationEncoding.TwoBits,
    "one_and_half_bits": edge.BinaryQuantizationEncoding.OneAndHalfBits,
}
_QUERY_ENCODINGS = {
    "default": edge.BinaryQuantizationQueryEncoding.Default,
    "binary": edge.BinaryQuantizationQueryEncoding.Binary,
    "scalar4bits": edge.BinaryQuantizationQueryEncoding.Scalar4Bits,
    "scalar8bits": edge.BinaryQuantizationQueryEncoding.Scalar8Bits,
}
_BITS = {
    "bits1": edge.TurboQuantBitSize.Bits1,
    "bits1_5": edge.TurboQuantBitSize.Bits1_5,
    "bits2": edge.TurboQuantBitSize.Bits2,
    "bits4": edge.TurboQuantBitSize.Bits4,
}


def engine_configuration(configuration: Document, *, is_new: bool = False) -> edge.EdgeConfig:
    """Build the engine's form of a configuration, with one search thread per shard.

    Args:
        is_new: True for a new shard. Its vectors and payload stay on disk until its first optimization, because the
            engine fills 32 MiB of memory with each that does not, at every opening.
    """
    params = configuration["params"]
    placement = _ON_DISK if is_new else {}
    vectors = {name: _vector(vector | placement, configuration) for name, vector in dense_vectors(params).items()}
    sparse = {name: _sparse_vector(vector) for name, vector in params.get("sparse_vectors", {}).items()}
    if not vectors and not sparse:
        sparse = {PLACEHOLDER_VECTOR: edge.EdgeSparseVectorParams()}
    return edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors=sparse,
        hnsw_config=_hnsw(configuration["hnsw_config"]),
        quantization_config=_quantization(configuration["quantization_config"]),
        optimizers=_optimizers(configuration["optimizer_config"]),
        max_search_threads=1,
        payload_memory=edge.Memory.Cold if is_new else _payload_memory(params),
    )


def vector_operations(configuration: Document, name: str) -> list[edge.UpdateOperation]:
    """Build operations that make the engine's vector `name` match the configuration, from any current state."""
    dense, sparse = dense_vectors(configuration["params"]), configuration["params"].get("sparse_vectors", {})
    operations = [edge.UpdateOperation.delete_vector_name(name)]
    if not dense and not sparse:
        operations.insert(0, edge.UpdateOperation.create_sparse_vector(PLACEHOLDER_VECTOR))
    if name in dense:
        vector = dense[name]
        datatype = _DATATYPES.get(vector.get("datatype", ""))
        distance = _DISTANCES[vector["distance"]]
        operations.append(edge.UpdateOperation.create_dense_vector(name, vector["size"], distance, datatype=datatype))
    if name in sparse:
        params = _sparse_vector(sparse[name])
        operations.append(edge.UpdateOperation.create_sparse_vector(name, params.modifier, params.datatype))
    if [*dense, *sparse] == [name]:
        operations.append(edge.UpdateOperation.delete_vector_name(PLACEHOLDER_VECTOR))
    return operations


def rebuild_key(configuration: Document, *, indexed: bool) -> Document:
    """Return the part of a configuration that requires a rebuild of segments when it changes.

    Args:
        configuration: Configuration of the collection.
        indexed: True if it has indexed segments. Plain segments ignore HNSW and most quantization.
    """
    params = configuration["params"]
    shape: Document = {
        "payload": [params["on_disk_payload"], params.get("payload")],
        "placement": {name: _placement(vector) for name, vector in dense_vectors(params).items()},
        "appendable": {
            name: _appendable_quantization(vector.get("quantization_config", configuration["quantization_config"]))
            for name, vector in dense_vectors(params).items()
        },
    }
    if indexed:
        if sparse := params.get("sparse_vectors"):
            shape["sparse"] = {name: _placement(vector.get("index", {})) for name, vector in sparse.items()}
        hnsw = {name: value for name, value in configuration["hnsw_config"].items() if name != "max_indexing_threads"}
        shape["hnsw"] = [hnsw, {name: vector.get("hnsw_config") for name, vector in dense_vectors(params).items()}]
        shape["quantization"] = [
            configuration["quantization_config"],
            {name: vector.get("quantization_config") for name, vector in dense_vectors(params).items()},
        ]
    return shape


def largest_vector_bytes(configuration: Document) -> int:
    """Return the bytes of a point's largest dense vector."""
    vectors = dense_vectors(configuration["params"]).values()
    return max((vector["size"] * _DATATYPE_BYTES[vector.get("datatype", "float32")] for vector in vectors), default=0)


def _placement(vector: Document) -> list[Any]:
    return [vector.get("on_disk") or False, vector.get("memory")]


def _appendable_quantization(quantization: Document | None) -> Document | None:
    # Only these two methods work in segments that accept writes.
    return quantization if quantization and quantization.keys() & {"binary", "turbo"} else None


def _vector(vector: Document, configuration: Document) -> edge.EdgeVectorParams:
    own_hnsw = vector.get("hnsw_config")
    return edge.EdgeVectorParams(
        size=vector["size"],
        distance=_DISTANCES[vector["distance"]],
        on_disk=vector.get("on_disk"),
        datatype=_DATATYPES[vector["datatype"]] if "datatype" in vector else None,
        quantization_config=_quantization(vector.get("quantization_config")),
        hnsw_config=_hnsw(configuration["hnsw_config"] | own_hnsw) if own_hnsw else None,
        memory=_MEMORY.get(vector.get("memory", "")),
    )


def _sparse_vector(vector: Document) -> edge.EdgeSparseVectorParams:
    index = vector.get("index", {})
    return edge.EdgeSparseVectorParams(
        full_scan_threshold=index.get("full_scan_threshold"),
        on_disk=index.get("on_disk"),
        modifier=edge.Modifier.Idf if vector.get("modifier") == "idf" else None,
        datatype=_DATATYPES[index["datatype"]] if "datatype" in index else None,
        memory=_MEMORY.get(index.get("memory", "")),
    )


def _hnsw(hnsw: Document) -> edge.HnswIndexConfig:
    return edge.HnswIndexConfig(
        m=hnsw["m"],
        ef_construct=hnsw["ef_construct"],
        full_scan_threshold=hnsw["full_scan_threshold"],
        max_indexing_threads=hnsw["max_indexing_threads"],
        on_disk=hnsw.get("on_disk"),
        payload_m=hnsw.get("payload_m"),
        inline_storage=hnsw.get("inline_storage"),
        memory=_MEMORY.get(hnsw.get("memory", "")),
    )


def _optimizers(optimizers: Document) -> edge.EdgeOptimizersConfig:
    return edge.EdgeOptimizersConfig(
        deleted_threshold=optimizers["deleted_threshold"],
        vacuum_min_vector_number=optimizers["vacuum_min_vector_number"],
        default_segment_number=optimizers["default_segment_number"],
        max_segment_size=optimizers["max_segment_size"],
        indexing_threshold=optimizers["indexing_threshold"],
    )


def _payload_memory(params: Document) -> edge.Memory:
    requested = params.get("payload", {}).get("memory")
    if requested:
        return _MEMORY[requested]
    return edge.Memory.Cold if params["on_disk_payload"] else edge.Memory.Cached


def _quantization(quantization: Document | None) -> "edge.QuantizationConfigType | None":
    if not quantization:
        return None
    ((method, fields),) = quantization.items()
    placement = {"always_ram": fields.get("always_ram"), "memory": _MEMORY.get(fields.get("memory", ""))}
    match method:
        case "scalar":
            return edge.ScalarQuantizationConfig(edge.ScalarType.Int8, fields.get("quantile"), **placement)
        case "product":
            return edge.ProductQuantizationConfig(_COMPRESSIONS[fields["compression"]], **placement)
        case "binary":
            return edge.BinaryQuantizationConfig(
                encoding=_ENCODINGS.get(fields.get("encoding", "")),
                query_encoding=_QUERY_ENCODINGS.get(fields.get("query_encoding", "")),
                **placement,
            )
        case _:
            return edge.TurboQuantQuantizationConfig(bits=_BITS.get(fields.get("bits", "")), **placement)
