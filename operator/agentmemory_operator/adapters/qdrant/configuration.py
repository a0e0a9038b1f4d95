"""Convert collections and changes to bodies of Qdrant's API, and Qdrant's descriptions to observations."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agentmemory_operator.collections.rules.announcement import must_clients_wait
from agentmemory_operator.collections.rules.changes import (
    UpdateHnsw,
    UpdateOptimizers,
    UpdatePayload,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import (
    GREEN,
    KEYWORD_VECTOR,
    METADATA_KEY,
    Collection,
    Limit,
    Observation,
    marker_from_json,
    marker_to_json,
)
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildRecord,
    record_from_json,
    record_to_json,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.presets.profiles import CACHED, COLD
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    Hnsw,
    Optimizers,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)
from agentmemory_operator.spec.printable import printable_start

FLOAT32 = "Float32"
# Qdrant weights each word by its inverse document frequency in the collection.
KEYWORD_PARAMS = {"modifier": "idf"}
ENCODINGS = {"OneBit": "one_bit", "OneAndHalfBits": "one_and_half_bits", "TwoBits": "two_bits"}
ENCODING_NAMES = {value: name for name, value in ENCODINGS.items()}
QUERY_ENCODING_NAMES = {name.lower(): name for name in ("Default", "Binary", "Scalar4Bits", "Scalar8Bits")}


Patched = (
    UpdateHnsw
    | UpdateQuantization
    | UpdateOptimizers
    | UpdatePayload
    | WakeOptimizers
    | UpdateReplication
    | UpdateStrictMode
    | WriteMarker
)

_SETTINGS = ("hnsw_config", "wal_config", "quantization_config", "strict_mode_config", "metadata")


def update_of(change: Patched) -> Json:
    """Build the PATCH body for a change."""
    match change:
        case UpdateHnsw():
            return {"hnsw_config": _body_of(change)}
        case UpdateQuantization(quantization):
            return {"quantization_config": quantization_of(quantization) or "Disabled"}
        case UpdateOptimizers():
            return {"optimizers_config": _body_of(change)}
        case UpdatePayload() | UpdateReplication():
            return {"params": _params_of(change)}
        case UpdateStrictMode(limits):
            return {"strict_mode_config": dict(limits)}
        case WakeOptimizers():
            return {"optimizers_config": {}}
        case WriteMarker(marker):
            return {"metadata": {METADATA_KEY: marker_to_json(marker)}}


def _params_of(change: UpdatePayload | UpdateReplication) -> Json:
    if isinstance(change, UpdatePayload):
        return {"on_disk_payload": change.payload_on_disk}
    return {"replication_factor": change.replication_factor}


def creation_of(collection: Collection, record: RebuildRecord | None = None) -> Json:
    """Build the body that creates a collection. It omits unset values, so Qdrant uses its defaults for them.

    The exception is `payload_on_disk`: if it is unset, payloads are on disk too.

    Args:
        record: Record of the rebuild that the collection is the target of. None for any other collection.
    """
    marker = {METADATA_KEY: marker_to_json(collection.marker)} if collection.marker else {}
    recorded = {REBUILD_KEY: record_to_json(record)} if record else {}
    return _without_none(
        vectors=_vector_of(collection),
        sparse_vectors={KEYWORD_VECTOR: KEYWORD_PARAMS} if collection.has_keyword else None,
        shard_number=collection.shard_number,
        replication_factor=collection.replication_factor,
        on_disk_payload=collection.payload_on_disk is not False,
        strict_mode_config=dict(collection.strict_mode) if collection.strict_mode else None,
        hnsw_config=_body_of(collection.hnsw),
        optimizers_config=_body_of(collection.optimizers),
        quantization_config=quantization_of(collection.quantization),
        metadata=(marker | recorded) or None,
    )


def _vector_of(collection: Collection) -> Json:
    """Build the unnamed dense vector's parameters."""
    datatype = None if collection.datatype in (None, FLOAT32) else str(collection.datatype).lower()
    return _without_none(
        size=collection.size,
        distance=collection.distance,
        datatype=datatype,
        on_disk=True if collection.memory == COLD else None,
    )


def placement_of(memory: str, *, is_tiered: bool) -> Json:
    """Build the part of a vector's PATCH that sets the storage tier.

    Args:
        memory: Tier: Cached or Cold.
        is_tiered: True if the collection has `memory` set, which overrides the older field `on_disk`.
    """
    return {"memory": memory.lower()} if is_tiered else {"on_disk": memory == COLD}


def _names_of(kind: type[Hnsw] | type[Optimizers]) -> dict[str, str]:
    """Return Qdrant's name of each field of a dataclass, by the field's name. Qdrant's names lack the unit."""
    return {field_.name: field_.name.removesuffix("_kb") for field_ in fields(kind)}


def _body_of(settings: Hnsw | Optimizers) -> Json:
    return _without_none(**{key: getattr(settings, name) for name, key in _names_of(type(settings)).items()})


def quantization_of(quantization: Quantization | None) -> Json | None:
    """Build the quantization body, or None for no quantization."""
    match quantization:
        case ScalarQuantization(quantile, ram):
            return {"scalar": _without_none(type="int8", quantile=quantile, always_ram=ram)}
        case ProductQuantization(compression, ram):
            return {"product": {"compression": compression.lower(), "always_ram": ram}}
        case BinaryQuantization(encoding, query_encoding, ram):
            encodings = {"encoding": ENCODINGS[encoding], "query_encoding": query_encoding.lower()}
            return {"binary": encodings | {"always_ram": ram}}
        case TurboQuantization(bits, ram):
            return {"turbo": {"bits": bits.lower(), "always_ram": ram}}
        case None:
            return None


def observed_from(info: Mapping[str, Any], *, physical: str, is_aliased: bool) -> Observation:
    """Parse the server's description of a collection.

    Raises:
        KeyError, TypeError, AttributeError: If it is no description of a collection.
    """
    fault = info.get("optimizer_status")
    return Observation(
        physical=physical,
        is_aliased=is_aliased,
        collection=_collection_from(info),
        points=info.get("points_count") or 0,
        indexed=info.get("indexed_vectors_count") or 0,
        state=printable_start(info["status"]),
        is_busy=info["status"] != GREEN or bool((info.get("update_queue") or {}).get("length")),
        fault=printable_start(str(fault.get("error", ""))) if isinstance(fault, dict) else "",
        record=record_from_json(info["config"].get("metadata")),
        must_clients_wait=must_clients_wait(info["config"].get("metadata")),
    )


def _collection_from(info: Mapping[str, Any]) -> Collection:
    config, params = info["config"], info["config"]["params"]
    hnsw, optimizers, vectors = config["hnsw_config"], config["optimizer_config"], params.get("vectors") or {}
    # Report size 0 for named dense vectors. The operator creates none, so the collection is foreign.
    vector: Mapping[str, Any] = vectors if isinstance(vectors.get("size"), int) else {"size": 0, "distance": "Cosine"}
    marker = (config.get("metadata") or {}).get(METADATA_KEY)
    return Collection(
        size=vector["size"],
        distance=vector["distance"],
        hnsw=Hnsw(**{name: hnsw[key] for name, key in _names_of(Hnsw).items()}),
        optimizers=Optimizers(**{name: optimizers.get(key) for name, key in _names_of(Optimizers).items()}),
        quantization=quantization_from(config.get("quantization_config")),
        indexes=tuple(sorted((field, index["data_type"]) for field, index in info["payload_schema"].items())),
        datatype=vector["datatype"].capitalize() if vector.get("datatype") else FLOAT32,
        memory=memory_from(vector),
        payload_on_disk=payload_on_disk(params),
        shard_number=params.get("shard_number"),
        replication_factor=params.get("replication_factor"),
        strict_mode=limits_from(config.get("strict_mode_config")),
        has_keyword=KEYWORD_VECTOR in (params.get("sparse_vectors") or {}),
        marker=marker_from_json(marker) if marker else None,
    )


def memory_from(vector: Mapping[str, Any]) -> str:
    """Return the storage tier of the vectors, Cached or Cold: from `memory`, or from `on_disk` if that is not set.

    Qdrant does not support its third tier, `pinned`, for dense vectors.
    """
    if vector.get("memory") is not None:
        return CACHED if vector["memory"] == CACHED.lower() else COLD
    return COLD if vector.get("on_disk") else CACHED


def payload_on_disk(params: Mapping[str, Any]) -> bool:
    """Return whether payloads are on disk: from `payload.memory`, or from `on_disk_payload` if that is not set."""
    tier = (params.get("payload") or {}).get("memory")
    return bool(params.get("on_disk_payload", True)) if tier is None else tier == COLD.lower()


def limits_from(config: Mapping[str, Any] | None) -> tuple[tuple[str, Limit], ...]:
    """Return the limits of strict mode that are numbers or booleans, sorted by name. No plan changes the others.

    Args:
        config: Section `strict_mode_config` of the server's description. None means no limits.
    """
    return tuple(
        sorted((name, value) for name, value in (config or {}).items() if isinstance(value, bool | int | float))
    )


def quantization_from(config: Mapping[str, Any] | None) -> Quantization | None:
    """Parse the quantization, with Qdrant's defaults for missing values. None if there is none, or its kind is unknown.

    Raises:
        KeyError: If an encoding is unknown, or a product quantization has no compression.
    """
    match config:
        case {"scalar": scalar}:
            return ScalarQuantization(scalar.get("quantile"), _is_in_ram(scalar))
        case {"product": product}:
            return ProductQuantization(product["compression"].upper(), _is_in_ram(product))
        case {"binary": binary}:
            encoding = ENCODING_NAMES[binary.get("encoding") or ENCODINGS["OneBit"]]
            query = QUERY_ENCODING_NAMES[binary.get("query_encoding") or "default"]
            return BinaryQuantization(encoding, query, _is_in_ram(binary))
        case {"turbo": turbo}:
            return TurboQuantization((turbo.get("bits") or "bits4").capitalize(), _is_in_ram(turbo))
        case _:
            return None


def _is_in_ram(config: Mapping[str, Any]) -> bool:
    """Return whether the quantized vectors are kept in RAM: from `memory`, or from `always_ram` if that is not set."""
    memory = config.get("memory")
    return bool(memory == "pinned" if memory is not None else config.get("always_ram"))


def _without_none(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def configuration_of(config: Mapping[str, Any]) -> Json:
    """Build the body that creates a collection with the same settings.

    Args:
        config: Section `config` of the server's description of a collection.
    """
    body = dict(config["params"])
    body |= {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    body["optimizers_config"] = config["optimizer_config"]
    return _without_nulls(body)


def indexes_of(schema: Mapping[str, Any]) -> Json:
    """Build the index schemas for PUT, by field.

    Args:
        schema: Section `payload_schema` of the server's description of a collection.
    """
    return {field: _without_nulls(index.get("params") or {}) or index["data_type"] for field, index in schema.items()}


def _without_nulls(document: Mapping[str, Any]) -> Json:
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if value is not None
    }
