"""Expand a preset into the spec of an object that lists the figures of the preset in manifest fields."""

from dataclasses import asdict
from typing import Any

from agentmemory_operator.collections.rules.desired import keyword_source
from agentmemory_operator.spec.effective.consolidation import duplicate_similarity
from agentmemory_operator.spec.effective.embedding import effective_embedding
from agentmemory_operator.spec.effective.entities import Spreading
from agentmemory_operator.spec.effective.policies import DISABLED_BY_ZERO
from agentmemory_operator.spec.effective.ranking_figures import model_figures
from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.effective.settings import (
    Ranking,
    effective_lifecycle,
    effective_ranking,
    effective_tuning,
    effective_types,
)
from agentmemory_operator.spec.expression.scoring_parameters import model_name
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, AgentMemorySpec, Metadata, TypeSpec
from agentmemory_operator.spec.kinds.lifecycle import LifecycleSpec, TtlSpec
from agentmemory_operator.spec.kinds.model_base import Model, manifest_name
from agentmemory_operator.spec.kinds.spec_embedding import Embedding
from agentmemory_operator.spec.kinds.spec_entities import EntitiesSpec
from agentmemory_operator.spec.kinds.spec_index import Index
from agentmemory_operator.spec.kinds.spec_scoring import ScoringSpec
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import PRESETS, RETRIEVAL_INDEXES, Lifecycle
from agentmemory_operator.spec.presets.table import Quantization

Json = dict[str, Any]

CONNECTION_NAME = "main"


def expand_preset(preset: str) -> Json:
    """Build a spec with every figure of the preset that a field can set. It has the same effect as `preset` alone."""
    memory = AgentMemory(
        metadata=Metadata(name=preset),
        spec=AgentMemorySpec.model_validate({"connectionRef": {"name": CONNECTION_NAME}, "preset": preset}),
    )
    types = [_type(type_) for type_ in effective_types(memory)]
    return {
        "connectionRef": {"name": CONNECTION_NAME},
        "preset": preset,
        "embedding": _embedding(memory),
        "index": _index(memory),
        # Leave out an empty list: without `types`, the object accepts any type.
        **({"types": types} if types else {}),
        "scoring": _scoring(effective_ranking(memory)),
        "lifecycle": _lifecycle(effective_lifecycle(memory)),
        "entities": _written(EntitiesSpec, {"enabled": preset_of(memory).has_entities} | asdict(Spreading())),
        "consolidation": {"duplicateSimilarity": duplicate_similarity(memory)},
    }


def fixed_figures(preset: str) -> Json:
    """Return the figures of the preset that have no field in `expand_preset`."""
    figures = PRESETS[preset][-1]
    terms = figures.consolidation
    fields: Json = {
        "revision": figures.revision,
        "payloadIndexes": dict(figures.payload_indexes),
        "maxContentTokens": figures.max_content_tokens,
        "knowledgeCategory": figures.knowledge_category,
        "modelOfProvider": dict(figures.embedding_models),
        "weightsOfModel": {
            model: {manifest_name(name): weight for name, weight in weights} for model, weights in figures.model_weights
        },
        "consolidation": {
            "schedule": terms.schedule,
            "olderThanDays": terms.older_than_days,
            "atLeast": terms.min_memories,
            "types": list(terms.types) or "all",
        },
    }
    if figures.model is not None:
        fields["withModelWeighted"] = {"weights": asdict(figures.weights), "utilityNorm": figures.utility_norm}
    return fields


def _embedding(memory: AgentMemory) -> Json:
    settings = effective_embedding(memory)
    names = ("provider", "model", "dimensions", "batch_size", "cache_entries")
    return _written(Embedding, {name: getattr(settings, name) for name in names})


def _index(memory: AgentMemory) -> Json:
    preset, tuning, keyword = preset_of(memory), effective_tuning(memory), keyword_source(memory)
    added_indexes = [{"field": field, "type": type_} for field, type_ in preset.payload_indexes if field not in _COMMON]
    blocks = {
        "distance": preset.distance,
        "hnsw": asdict(tuning.hnsw),
        "quantization": _quantization(tuning.quantization),
        "optimizers": asdict(tuning.optimizers),
        "vectors": {"datatype": tuning.datatype, "memory": tuning.memory},
        "keyword": {"enabled": keyword is not None, "language": keyword and keyword.language},
        "payload_indexes": added_indexes or None,
    }
    return _written(Index, blocks)


_COMMON = dict(RETRIEVAL_INDEXES)


def _quantization(quantization: Quantization | None) -> Json:
    if quantization is None:
        return {"type": "None"}
    return {"type": type(quantization).__name__.removesuffix("Quantization")} | asdict(quantization)


def _type(type_: MemoryType) -> Json:
    fields = {name: value for name, value in asdict(type_).items() if name in TypeSpec.model_fields and value != ()}
    if type_.ttl is not None:
        fields["ttl"] = {name: getattr(type_.ttl, name) for name in TtlSpec.model_fields}
    return _written(TypeSpec, fields | ({"decay": False} if type_.half_life_days is None else {}))


def _lifecycle(lifecycle: Lifecycle) -> Json:
    fields = {name: value for name, value in asdict(lifecycle).items() if name in LifecycleSpec.model_fields}
    # Write 0 for absent limits, because a field that is left out takes the figure of the object's preset.
    disabled: Json = dict.fromkeys(DISABLED_BY_ZERO, 0) | {"prune": {"priority_below": 0}}
    return _written(LifecycleSpec, fields | {name: fields[name] or disabled[name] for name in disabled})


def _scoring(ranking: Ranking) -> Json:
    figures = {
        "model": model_name(ranking.model),
        **model_figures(ranking),
        "limit": ranking.limit,
        "score_threshold": ranking.score_threshold,
        "min_similarity": ranking.min_similarity,
        "candidates": ranking.candidates or "Auto",
        "effort": ranking.effort,
        "fusion": _fusion(ranking),
        "evidence": asdict(ranking.evidence),
    }
    return _written(ScoringSpec, figures)


def _fusion(ranking: Ranking) -> Json:
    figures = asdict(ranking.fusion)
    return figures if ranking.fusion.method == "RRF" else figures | {"k": None}


def _written(model: type[Model], figures: Json) -> Json:
    """Convert figures with Python field names into manifest fields."""
    written: Json = model.model_validate(figures, by_name=True).model_dump(
        by_alias=True, exclude_none=True, mode="json"
    )
    return written
