"""A collection's configuration: read from the creating request, completed with defaults, changed by PATCH.

It is stored in the shape of `config` in the response of `GET /collections/{name}`. Source of defaults and ranges:
Qdrant 1.18.3 (config.yaml, recorded exchanges).
"""

import copy
from collections.abc import Callable
from typing import Any

from qdrant_devserver.error_answers import ErrorAnswer, invalid, malformed, not_built, vector_missing, wrong_input
from qdrant_devserver.features import Features
from qdrant_devserver.fields import (
    Anything,
    Choice,
    Document,
    Flag,
    Json,
    Number,
    Structure,
    Unsigned,
    check_range,
    read_object,
    read_structure,
    replace_aliases,
    require,
)
from qdrant_devserver.storage.strict_mode import read_strict_mode

MAX_VECTOR_SIZE = 65536
MAX_VECTOR_NAME_BYTES = 200
MEMORY = Choice(("cold", "cached", "pinned"))
DATATYPE = Choice(("float32", "uint8", "float16"))
DISTANCE = Choice(("Cosine", "Euclid", "Dot", "Manhattan"))
MODIFIER = Choice(("none", "idf"))
HNSW: Structure = {
    "m": Unsigned(),
    "ef_construct": Unsigned(4),
    "full_scan_threshold": Unsigned(10),
    "max_indexing_threads": Unsigned(),
    "on_disk": Flag(),
    "payload_m": Unsigned(),
    "inline_storage": Flag(),
}
HNSW_ALIASES = {"full_scan_threshold_kb": "full_scan_threshold"}
OPTIMIZERS: Structure = {
    "deleted_threshold": Number(0.0, 1.0),
    "vacuum_min_vector_number": Unsigned(100),
    "default_segment_number": Unsigned(),
    "max_segment_size": Unsigned(1),
    "memmap_threshold": Unsigned(),
    "indexing_threshold": Unsigned(),
    "flush_interval_sec": Unsigned(),
    "max_optimization_threads": Anything(),
    "prevent_unoptimized": Flag(),
}
OPTIMIZERS_ALIASES = {
    "max_segment_size_kb": "max_segment_size",
    "memmap_threshold_kb": "memmap_threshold",
    "indexing_threshold_kb": "indexing_threshold",
}
WAL: Structure = {
    "wal_capacity_mb": Unsigned(1),
    "wal_segments_ahead": Unsigned(),
    "wal_retain_closed": Unsigned(),
}
PARAMS: Structure = {
    "replication_factor": Unsigned(1),
    "write_consistency_factor": Unsigned(1),
    "read_fan_out_factor": Unsigned(),
    "read_fan_out_delay_ms": Unsigned(),
    "on_disk_payload": Flag(),
}
SPARSE_INDEX: Structure = {
    "full_scan_threshold": Unsigned(),
    "on_disk": Flag(),
    "datatype": DATATYPE,
}
QUANTIZATION: dict[str, Structure] = {
    "scalar": {"type": Choice(("int8",)), "quantile": Number(0.5, 1.0), "always_ram": Flag()},
    "product": {"compression": Choice(("x4", "x8", "x16", "x32", "x64")), "always_ram": Flag()},
    "binary": {
        "always_ram": Flag(),
        "encoding": Choice(("one_bit", "two_bits", "one_and_half_bits")),
        "query_encoding": Choice(("default", "binary", "scalar4bits", "scalar8bits")),
    },
    "turbo": {"always_ram": Flag(), "bits": Choice(("bits1", "bits1_5", "bits2", "bits4"))},
}
QUANTIZATION_REQUIRED = {"scalar": "type", "product": "compression"}
BODY_ALIASES = {"optimizer_config": "optimizers_config", "quantization": "quantization_config"}
DEFAULTS: Document = {
    "params": {"shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1, "on_disk_payload": True},
    "hnsw_config": {
        "m": 16,
        "ef_construct": 100,
        "full_scan_threshold": 10000,
        "max_indexing_threads": 0,
        "on_disk": False,
    },
    "optimizer_config": {
        "deleted_threshold": 0.2,
        "vacuum_min_vector_number": 1000,
        "default_segment_number": 0,
        "max_segment_size": None,
        "memmap_threshold": None,
        "indexing_threshold": 10000,
        "flush_interval_sec": 5,
        "max_optimization_threads": None,
        "prevent_unoptimized": None,
    },
    "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0, "wal_retain_closed": 1},
    "quantization_config": None,
}


def create_configuration(body: Document, features: Features) -> Document:
    """Build the complete configuration of a creating request.

    Raises:
        ErrorAnswer: 400 or 422 as on the server; 501 for unsupported features.
    """
    body = replace_aliases(body, BODY_ALIASES)
    if body.get("sharding_method") == "custom":
        raise not_built("custom sharding (sharding_method)")
    configuration = copy.deepcopy(DEFAULTS)
    params = configuration["params"]
    params["vectors"] = read_vectors(body.get("vectors"), features)
    if body.get("shard_number") is not None:
        params["shard_number"] = Unsigned(1).read(body["shard_number"], "shard_number")
    params |= read_structure(body, {name: PARAMS[name] for name in params.keys() & PARAMS.keys()}, "")
    if body.get("sparse_vectors") is not None:
        params["sparse_vectors"] = read_sparse_vectors(body["sparse_vectors"], features)
    check_names(params)
    for name, read in _SECTIONS.items():
        if body.get(name) is not None:
            section = "optimizer_config" if name == "optimizers_config" else name
            configuration[section] = (configuration.get(section) or {}) | read(body[name], features)
    return configuration


def read_vectors(value: Json, features: Features) -> Document:
    """Read the dense vectors of a creating request: one without a name, or a map by name; empty if absent.

    Raises:
        ErrorAnswer: As `create_configuration`.
    """
    if value is None:
        return {}
    vectors = read_object(value, "vectors")
    if "size" in vectors and not isinstance(vectors["size"], dict):
        return read_vector(vectors, "vectors", features)
    return {name: read_vector(params, f"vectors.{name}", features) for name, params in vectors.items()}


def read_vector(value: Json, path: str, features: Features) -> Document:
    """Read the parameters of one dense vector. Raises: As `create_configuration`."""
    document = replace_aliases(read_object(value, path), {"quantization": "quantization_config"})
    if document.get("multivector_config") is not None:
        raise not_built("multivectors (multivector_config)")
    size, distance = require(document, "size"), require(document, "distance")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise malformed("data did not match any variant of untagged enum VectorsConfig")
    check_range(size, f"{path}.size", low=1, high=MAX_VECTOR_SIZE)
    vector = {
        "size": size,
        "distance": DISTANCE.read(distance, f"{path}.distance"),
    }
    return vector | read_vector_options(document, path, features)


def read_vector_options(document: Document, path: str, features: Features) -> Document:
    """Read the options of a dense vector other than its size and distance. Raises: As `create_configuration`."""
    options: Document = {}
    if document.get("hnsw_config") is not None:
        options["hnsw_config"] = read_hnsw(document["hnsw_config"], features, path=f"{path}.hnsw_config")
    if document.get("quantization_config") is not None:
        quantization = document["quantization_config"]
        options["quantization_config"] = read_quantization(quantization, features, path=f"{path}.quantization_config")
    if document.get("datatype") == "turbo4":
        raise not_built("the datatype turbo4")
    fields: Structure = {"on_disk": Flag(), "datatype": DATATYPE}
    options |= read_structure(document, with_memory(fields, features), path)
    if options.get("memory") == "pinned":
        raise invalid(f"{path}.memory", "`pinned` is not supported for dense vectors")
    return options


def with_memory(structure: Structure, features: Features) -> Structure:
    """Return the structure, with the memory tier if the served version has it (from 1.19 on)."""
    return {**structure, "memory": MEMORY} if features.memory_tiers else structure


def read_hnsw(value: Json, features: Features, *, path: str = "hnsw_config") -> Document:
    """Return the HNSW fields that are set."""
    return read_structure(value, with_memory(HNSW, features), path, aliases=HNSW_ALIASES)


def read_optimizers(value: Json, _: Features) -> Document:
    """Return the optimizer fields that are set. Threads "auto" is the same as unset."""
    fields = read_structure(value, OPTIMIZERS, "optimizers_config", aliases=OPTIMIZERS_ALIASES)
    threads = fields.get("max_optimization_threads")
    if threads == "auto":
        fields["max_optimization_threads"] = None
    elif threads is not None:
        Unsigned().read(threads, "optimizers_config.max_optimization_threads")
    return fields


def read_quantization(value: Json, features: Features, *, path: str = "quantization_config") -> Document:
    """Read a quantization with one of the supported methods. Raises: As `create_configuration`."""
    document = read_object(value, path)
    method = next((name for name in QUANTIZATION if isinstance(document.get(name), dict)), None)
    if method is None:
        raise malformed("data did not match any variant of untagged enum QuantizationConfig")
    fields = read_structure(document[method], with_memory(QUANTIZATION[method], features), f"{path}.{method}")
    required = QUANTIZATION_REQUIRED.get(method)
    if required and required not in fields:
        raise malformed(f"missing field `{required}`")
    return {method: fields}


def read_sparse_vectors(value: Json, features: Features) -> Document:
    """Read the sparse vectors by name."""
    vectors = read_object(value, "sparse_vectors")
    return {name: read_sparse_vector(params, f"sparse_vectors.{name}", features) for name, params in vectors.items()}


def read_sparse_vector(value: Json, path: str, features: Features) -> Document:
    """Read the parameters of one sparse vector."""
    document = read_object(value, path)
    vector = read_structure(document, {"modifier": MODIFIER}, path)
    if document.get("index") is not None:
        vector["index"] = read_structure(document["index"], with_memory(SPARSE_INDEX, features), f"{path}.index")
    return vector


def read_metadata(value: Json, _: Features) -> Document:
    """Read the metadata of a creating request or a PATCH: any JSON object."""
    return read_object(value, "metadata")


def read_limits(value: Json, _: Features) -> Document:
    """Return the strict mode fields that are set. Raises: As `read_strict_mode`."""
    return read_strict_mode(value)


def read_wal(value: Json, _: Features) -> Document:
    """Return the write-ahead log fields that are set."""
    return read_structure(value, WAL, "wal_config")


def check_names(params: Document) -> None:
    """Raise ErrorAnswer (400) for vector names that the server rejects, or a name of both a dense and a sparse one."""
    dense, sparse = dense_vectors(params), params.get("sparse_vectors", {})
    if "" in sparse:
        raise wrong_input("Sparse vector name cannot be empty")
    for name in [*dense, *sparse]:
        if len(name.encode()) > MAX_VECTOR_NAME_BYTES or has_unsafe_character(name):
            raise wrong_input(f"Invalid vector name `{name}`")
    if both := dense.keys() & sparse.keys():
        raise wrong_input(f"Dense and sparse vector names must be unique - duplicate found with '{both.pop()}'")


def has_unsafe_character(name: str) -> bool:
    """Return whether a name has a character that the server rejects in file names."""
    return any(character in '<>:"/\\|?*\0\x1f' for character in name)


def dense_vectors(params: Document) -> dict[str, Document]:
    """Return the dense vectors by name. A vector without a name has the key ""."""
    vectors: Document = params["vectors"]
    return {"": vectors} if isinstance(vectors.get("size"), int) else vectors


def merge_configuration(stored: Document, body: Document, features: Features) -> tuple[Document, ErrorAnswer | None]:
    """Merge a PATCH into the stored configuration; return the result, and the error that stopped the merge or None.

    Like the server, it applies the parts in order and keeps those before a failing one.

    Raises:
        ErrorAnswer: If the body itself is malformed; nothing is merged.
    """
    body = replace_aliases(body, BODY_ALIASES)
    parts = [
        (merge, read(body[name], features)) for name, (read, merge) in _PATCHES.items() if body.get(name) is not None
    ]
    merged = copy.deepcopy(stored)
    for merge, change in parts:
        try:
            merge(merged, change)
        except ErrorAnswer as problem:
            return merged, problem
    return merged, None


def restarts_optimizers(body: Document) -> bool:
    """Return whether a PATCH makes the server check for optimizations, even if it changes no value."""
    waking = {"optimizers_config", "params", "hnsw_config", "vectors", "quantization_config", "sparse_vectors"}
    return any(body.get(name) is not None for name in replace_aliases(body, BODY_ALIASES).keys() & waking)


def _read_params(value: Json, features: Features) -> Document:
    document = read_object(value, "params")
    for name in ("replication_factor", "write_consistency_factor"):
        if document.get(name) == 0:
            raise malformed(f"invalid value for params.{name}: integer `0`, expected a nonzero u32")
    params = read_structure(document, PARAMS, "params")
    if features.memory_tiers and document.get("payload") is not None:
        params["payload"] = read_structure(
            document["payload"], {"memory": Choice(("cold", "cached"))}, "params.payload"
        )
    return params


def _read_vector_changes(value: Json, features: Features) -> Document:
    changes = {}
    for name, change in read_object(value, "vectors").items():
        document = dict(read_object(change, f"vectors.{name}"))
        disabled = document.get("quantization_config") == "Disabled"
        if disabled:
            document.pop("quantization_config")
        changes[name] = read_vector_options(document, f"vectors.{name}", features)
        changes[name].pop("datatype", None)
        if disabled:
            changes[name]["quantization_config"] = None
    return changes


def _read_quantization_change(value: Json, features: Features) -> Document | None:
    return {} if value == "Disabled" else read_quantization(value, features)


def _merge_section(section: str) -> Callable[[Document, Any], None]:
    def merge(configuration: Document, change: Document) -> None:
        configuration[section] = (configuration.get(section) or {}) | change

    return merge


def _merge_vectors(configuration: Document, changes: Document) -> None:
    vectors = dense_vectors(configuration["params"])
    for name, change in changes.items():
        if name not in vectors:
            raise vector_missing(name)
        change = dict(change)
        if "hnsw_config" in change:
            change["hnsw_config"] = vectors[name].get("hnsw_config", {}) | change["hnsw_config"]
        vectors[name].update(change)
        if vectors[name].get("quantization_config", {}) is None:
            del vectors[name]["quantization_config"]


def _merge_sparse_vectors(configuration: Document, changes: Document) -> None:
    vectors = configuration["params"].get("sparse_vectors", {})
    for name, change in changes.items():
        if name not in vectors:
            raise vector_missing(name)
        index = vectors[name].get("index", {}) | change.get("index", {})
        vectors[name].update(change)
        if index:
            vectors[name]["index"] = index


def _merge_quantization(configuration: Document, change: Document) -> None:
    configuration["quantization_config"] = change or None


def _merge_metadata(configuration: Document, change: Document) -> None:
    merged = (configuration.get("metadata") or {}) | change
    configuration["metadata"] = {key: value for key, value in merged.items() if value is not None}


_SECTIONS: dict[str, Callable[[Json, Features], Document]] = {
    "hnsw_config": read_hnsw,
    "wal_config": read_wal,
    "optimizers_config": read_optimizers,
    "quantization_config": read_quantization,
    "strict_mode_config": read_limits,
    "metadata": read_metadata,
}
_PATCHES: dict[str, tuple[Callable[[Json, Features], Any], Callable[[Document, Any], None]]] = {
    "optimizers_config": (read_optimizers, _merge_section("optimizer_config")),
    "params": (_read_params, _merge_section("params")),
    "hnsw_config": (read_hnsw, _merge_section("hnsw_config")),
    "vectors": (_read_vector_changes, _merge_vectors),
    "quantization_config": (_read_quantization_change, _merge_quantization),
    "sparse_vectors": (read_sparse_vectors, _merge_sparse_vectors),
    "strict_mode_config": (read_limits, _merge_section("strict_mode_config")),
    "metadata": (read_metadata, _merge_metadata),
}
