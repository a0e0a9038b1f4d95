"""Spec to desired collection: the canonical form that planning compares with what the server reports."""

import hashlib
import json
from dataclasses import asdict, replace

from agentmemory_operator.domain.collection import Collection, EmbeddingSource, Marker, ScalarQuantization
from agentmemory_operator.domain.effective import EmbeddingSettings, effective_embedding, preset_of
from agentmemory_operator.domain.index_spec import HnswSpec, Index, OptimizersSpec
from agentmemory_operator.domain.presets import Preset
from agentmemory_operator.domain.resources import AgentMemory

SINGLE_PRECISION_DIGITS = 6
"""The engine keeps fractions as float32: with this many digits they are read back as they were written."""


def desired_collection(memory: AgentMemory, *, cluster_id: str) -> Collection:
    """Return what the object asks for, each number from the field, else from the preset."""
    preset, index = preset_of(memory), memory.spec.index or Index()
    hnsw, optimizers = index.hnsw or HnswSpec(), index.optimizers or OptimizersSpec()
    embedding = embedding_source(effective_embedding(memory.spec.embedding))
    shape = Collection(
        size=embedding.dimensions,
        distance=index.distance or preset.distance,
        m=hnsw.m or preset.m,
        ef_construct=hnsw.ef_construct or preset.ef_construct,
        full_scan_threshold_kb=hnsw.full_scan_threshold_kb or preset.full_scan_threshold_kb,
        default_segment_number=_given(optimizers.default_segment_number, preset.default_segment_number),
        indexing_threshold_kb=_given(optimizers.indexing_threshold_kb, preset.indexing_threshold_kb),
        quantization=desired_quantization(index, preset),
        indexes=tuple(sorted(preset.payload_indexes)),
    )
    marker = Marker(
        cluster_id=cluster_id,
        namespace=memory.metadata.namespace,
        name=memory.metadata.name,
        uid=memory.metadata.uid,
        generation=memory.metadata.generation,
        config_hash=hash_config(shape, embedding),
        preset_revision=preset.revision,
        embedding=embedding,
    )
    return replace(shape, marker=marker)


def desired_quantization(index: Index, preset: Preset) -> ScalarQuantization | None:
    """Return the quantization; a block in the spec replaces the preset's whole, field by field over its figures."""
    spec = index.quantization
    if spec and spec.type == "None":
        return None
    quantile = spec.quantile if spec and spec.quantile is not None else preset.quantile
    always_ram = spec.always_ram if spec and spec.always_ram is not None else preset.always_ram
    return ScalarQuantization(None if quantile is None else round(quantile, SINGLE_PRECISION_DIGITS), always_ram)


def embedding_source(settings: EmbeddingSettings) -> EmbeddingSource:
    """Return the part of the embedding settings that is kept beside the vectors."""
    return EmbeddingSource(
        provider=settings.provider,
        model=settings.model,
        dimensions=settings.dimensions,
        base_url=settings.base_url,
        secret_name=settings.secret.name if settings.secret else None,
        secret_key=settings.secret.key if settings.secret else None,
    )


def hash_config(shape: Collection, embedding: EmbeddingSource) -> str:
    """Return the first 12 hex digits of the SHA-256 of everything that shapes the collection."""
    config = asdict(shape) | {"embedding": asdict(embedding)}
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]


def _given(value: int | None, default: int) -> int:
    """Return the value where one is given: 0 means something here (automatic, off)."""
    return default if value is None else value
