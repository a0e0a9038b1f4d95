"""What an object means: its spec over its preset. The only place where defaults are filled in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentmemory_operator.domain.access import Subject, Verb
from agentmemory_operator.domain.fusion import Fusion
from agentmemory_operator.domain.index_spec import Index
from agentmemory_operator.domain.lifecycle import figures_over
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.presets import (
    DEFAULT_PRESET,
    NO_GATE,
    PRESETS,
    RETRIEVAL_INDEXES,
    Lifecycle,
    Preset,
    Weights,
)
from agentmemory_operator.domain.profiles import DEFAULT_EXPECTED_MEMORIES
from agentmemory_operator.domain.reranking import Reranking
from agentmemory_operator.domain.resources import AgentMemory, Embedding, SecretKeyRef, TypeSpec
from agentmemory_operator.domain.rules import (
    FASTEMBED_DEFAULT_MODEL,
    FASTEMBED_MODELS,
    OPENAI_DEFAULT_MODEL,
    OPENAI_MODELS,
    WORDLLAMA_DIMENSIONS,
    WORDLLAMA_MODEL,
)
from agentmemory_operator.domain.scoring_choice import Choice, choose
from agentmemory_operator.domain.scoring_models import Model, variables_read
from agentmemory_operator.domain.taxonomy import WORKING, MemoryType, Ttl
from agentmemory_operator.domain.tuning import Tuning, tuning_of
from agentmemory_operator.domain.variables import CONFIDENCE, IDLE_DAYS

# The type of memories of an object that takes any, where the writer names none.
UNTYPED = "memory"

# What a memory is looked up by when another is written, where types have identities or nothing is stored twice.
LOOKUP_INDEXES = (("lookupIds", "keyword"),)

# Search requests beyond this many results are refused; the API's documented bound.
MAX_TOP_K = 10_000

EMBEDDING_BATCH_SIZE = 64
EMBEDDING_TIMEOUT_S = 20
EMBEDDING_CACHE_ENTRIES = 10_000

# Sizes of the models that can be named without `dimensions`; of an offline model the largest.
MODEL_DIMENSIONS = OPENAI_MODELS | FASTEMBED_MODELS | {WORDLLAMA_MODEL: max(WORDLLAMA_DIMENSIONS)}
DEFAULT_MODELS = {
    "openai": OPENAI_DEFAULT_MODEL,
    "wordllama": WORDLLAMA_MODEL,
    "fastembed": FASTEMBED_DEFAULT_MODEL,
}


# What a scoring model reads of a memory, and finds memories by, beyond what every search needs.
SCORED_INDEXES = {CONFIDENCE: ("confidence", "float"), IDLE_DAYS: ("lastAccessedAt", "integer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """How text becomes vectors.

    The identity (provider, model, dimensions) decides the vector space; the rest is how to reach the provider.
    """

    provider: str
    model: str | None
    dimensions: int
    base_url: str | None = None
    secret: SecretKeyRef | None = None
    batch_size: int = EMBEDDING_BATCH_SIZE
    timeout_s: int = EMBEDDING_TIMEOUT_S
    cache_entries: int = EMBEDDING_CACHE_ENTRIES

    @property
    def identity(self) -> tuple[str, str | None, int]:
        """Two equal identities share a vector space."""
        return self.provider, self.model, self.dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How search ranks.

    Attributes:
        model: what ranks instead of the weighted sum; None is the weighted sum.
        candidates: how many memories the engine scores; None sizes it from the number behind the filter.
        search_ef: the engine's `hnsw_ef`; None leaves it to the engine.
        rescore: candidates are compared by the vectors themselves, not by their compressed copies.
        fusion: how a search by words too ranks.
        rerank: what reads the best again; None is nothing.
        max_query_limit: the most results that the engine's strict mode lets one request have; None is any number.
        oversampling: how many times more candidates than wanted are rescored, at least 1.
        types: none takes any type, each without decay.
        score_threshold: on the combined score; -1 leaves nothing out.
        min_similarity: on the similarity, -1..1; -1 leaves nothing out.
    """

    weights: Weights
    utility_norm: float
    limit: int
    score_threshold: float
    min_similarity: float
    types: tuple[MemoryType, ...]
    model: Model | None = None
    candidates: int | None = None
    search_ef: int | None = None
    rescore: bool = True
    oversampling: float = 1.0
    max_query_limit: int | None = None
    fusion: Fusion = field(default_factory=Fusion)
    rerank: Reranking | None = None

    @property
    def default_type(self) -> str:
        """The type of a memory that is stored without one."""
        return self.types[0].name if self.types else UNTYPED

    @property
    def threshold(self) -> float:
        """The least combined score of an answer; minus infinity where nothing is left out."""
        return -math.inf if self.score_threshold <= NO_GATE else self.score_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Everything the retrieval API needs of one object.

    Attributes:
        subjects: who may call; none is nobody.
        indexes: type of the payload index by key on the point.
        working_memory_slots: working memories of a session at most.
        scoring_generation: of the object whose scoring model ranks; None is the preset's for want of one.
        deduplicate: what is said again is not stored again.
        scoring_fault: why the object's own scoring expression cannot be used, None where it can.
        lifecycle: how memories end.
        scrubs_secrets: secrets are taken out of memories before they are stored.
        max_content_tokens: of a memory, 4 characters each; None is the API's own bound.
    """

    slug: str
    namespace: str
    name: str
    preset: str
    generation: int
    connection: str
    connection_namespace: str
    ranking: Ranking
    embedding: EmbeddingSettings
    profile: str | None = None
    expected_memories: int = DEFAULT_EXPECTED_MEMORIES
    subjects: tuple[Subject, ...] = ()
    has_keyword: bool = False
    indexes: Mapping[str, str] = field(default_factory=lambda: dict(RETRIEVAL_INDEXES))
    working_memory_slots: int = 4
    scoring_generation: int | None = None
    scoring_fault: str | None = None
    scrubs_secrets: bool = False
    max_content_tokens: int | None = None
    deduplicate: bool = False
    lifecycle: Lifecycle = field(default_factory=Lifecycle)

    @property
    def ranking_generation(self) -> int:
        """The generation that answers name: whose scoring model ranks, else the object's."""
        return self.scoring_generation or self.generation

    @property
    def session_types(self) -> tuple[str, ...]:
        """The types whose memories last as long as their session; `working` does, whether or not it is listed."""
        listed = (type_.name for type_ in self.ranking.types if type_.lasts_a_session)
        return tuple(dict.fromkeys((WORKING, *listed)))

    @property
    def alias(self) -> str:
        """The collection's stable name."""
        return alias_of(self.slug)


def preset_of(memory: AgentMemory) -> Preset:
    """Return the object's preset, `cortex` when it names none, in the revision that is in force for its collection.

    Without a collection, or with one of a revision that is not known here, the newest.
    """
    revisions, pinned = PRESETS[memory.spec.preset or DEFAULT_PRESET], _pinned_revision(memory)
    return next((preset for preset in revisions if preset.revision == pinned), revisions[-1])


def revisions_of(memory: AgentMemory) -> list[AgentMemory]:
    """Return the object as it is under each revision of its preset, oldest first."""
    return [at_revision(memory, preset.revision) for preset in PRESETS[memory.spec.preset or DEFAULT_PRESET]]


def at_revision(memory: AgentMemory, revision: int) -> AgentMemory:
    """Return the object with the figures of another revision of its preset in force."""
    before = memory.status.get("effective")
    effective = dict(before) if isinstance(before, dict) else {}
    effective |= {"preset": memory.spec.preset or DEFAULT_PRESET, "presetRevision": revision}
    return memory.model_copy(update={"status": memory.status | {"effective": effective}})


def _pinned_revision(memory: AgentMemory) -> int | None:
    """Return the revision that the status says is in force; another preset's says nothing."""
    effective = memory.status.get("effective")
    if not isinstance(effective, dict) or effective.get("preset") != (memory.spec.preset or DEFAULT_PRESET):
        return None
    revision = effective.get("presetRevision")
    return revision if isinstance(revision, int) else None


def effective_settings(memory: AgentMemory) -> AgentSettings:
    """Return the object's settings with every default filled in."""
    choice = scoring_choice(memory)
    return AgentSettings(
        slug=memory.slug,
        namespace=memory.metadata.namespace,
        name=memory.metadata.name,
        preset=preset_of(memory).name,
        generation=memory.metadata.generation,
        connection=memory.spec.connection_ref.name,
        connection_namespace=memory.spec.connection_ref.namespace or memory.metadata.namespace,
        ranking=effective_ranking(memory),
        embedding=effective_embedding(memory),
        profile=memory.spec.index.profile if memory.spec.index else None,
        expected_memories=effective_tuning(memory).expected_memories,
        has_keyword=has_keyword(memory),
        indexes=effective_indexes(memory),
        scoring_generation=choice.generation,
        scoring_fault=choice.fault,
        subjects=subjects_of(memory),
        max_content_tokens=preset_of(memory).max_content_tokens,
        deduplicate=effective_lifecycle(memory).deduplicate,
        scrubs_secrets=effective_lifecycle(memory).scrub_secrets,
        working_memory_slots=effective_lifecycle(memory).working_memory_slots,
        lifecycle=effective_lifecycle(memory),
    )


def effective_lifecycle(memory: AgentMemory) -> Lifecycle:
    """Return how memories are kept and end: each figure of the object over its preset's."""
    return figures_over(memory.spec.lifecycle, preset_of(memory).lifecycle)


def subjects_of(memory: AgentMemory) -> tuple[Subject, ...]:
    """Return who may call the API for the agent."""
    listed = memory.spec.access.subjects if memory.spec.access else None
    return tuple(
        Subject(subject.namespace, subject.name, frozenset(map(Verb, subject.verbs)), frozenset(subject.scopes or ()))
        for subject in listed or ()
    )


def effective_indexes(memory: AgentMemory) -> dict[str, str]:
    """Return the type of every payload index by field: the preset's, the scoring model's and the object's."""
    extra = (memory.spec.index and memory.spec.index.payload_indexes) or ()
    read = variables_read(scoring_choice(memory).model)
    scored = dict(index for variable, index in SCORED_INDEXES.items() if variable in read)
    is_looked_up = effective_lifecycle(memory).deduplicate or any(
        type_.supersede_by for type_ in effective_types(memory)
    )
    needed = dict(preset_of(memory).payload_indexes) | (dict(LOOKUP_INDEXES) if is_looked_up else {})
    return {entry.field: entry.type for entry in extra} | scored | needed


def effective_ranking(memory: AgentMemory) -> Ranking:
    """Return the ranking: each figure of `spec.scoring` and `spec.types` over the preset's."""
    preset, scoring, choice = preset_of(memory), memory.spec.scoring, scoring_choice(memory)
    given = scoring.model_dump(exclude_none=True) if scoring else {}
    candidates = given.get("candidates")
    hnsw = memory.spec.index.hnsw if memory.spec.index else None
    tuning = effective_tuning(memory)
    return Ranking(
        model=choice.model,
        weights=choice.weights or preset.weights,
        utility_norm=choice.utility_norm or preset.utility_norm,
        limit=given.get("limit", preset.limit),
        score_threshold=given.get("score_threshold", preset.score_threshold),
        min_similarity=given.get("min_similarity", preset.min_similarity),
        types=effective_types(memory),
        candidates=candidates if isinstance(candidates, int) else None,
        search_ef=hnsw.search_ef if hnsw else None,
        rescore=tuning.rescore,
        oversampling=tuning.oversampling,
        max_query_limit=_max_query_limit(memory.spec.index),
        rerank=Reranking(**given["rerank"]) if "rerank" in given else None,
        fusion=replace(preset.fusion, **given.get("fusion", {})),
    )


def has_keyword(memory: AgentMemory) -> bool:
    """Tell whether memories are to be found by words too: as the object says, else its preset."""
    keyword = memory.spec.index.keyword if memory.spec.index else None
    return preset_of(memory).has_keyword if keyword is None else keyword.enabled


def scoring_choice(memory: AgentMemory) -> Choice:
    """Return the model that ranks: what the object asks for, else what was last accepted."""
    index, preset = memory.spec.index, preset_of(memory)
    distance = index.distance if index and index.distance else preset.distance
    return choose(
        memory.spec.scoring,
        memory.status,
        preset=preset,
        types=effective_types(memory),
        distance=distance,
        generation=memory.metadata.generation,
    )


def effective_types(memory: AgentMemory) -> tuple[MemoryType, ...]:
    """Return the types of memory: the object's, else the preset's."""
    return preset_of(memory).types if memory.spec.types is None else tuple(map(memory_type, memory.spec.types))


def _max_query_limit(index: Index | None) -> int | None:
    strict = index.strict_mode if index else None
    return None if strict is None or strict.enabled is False else strict.max_query_limit


def effective_tuning(memory: AgentMemory) -> Tuning:
    """Return the tuning of the collection and of its searches."""
    dimensions = effective_embedding(memory).dimensions
    return tuning_of(memory.spec.index, preset_of(memory), dimensions=dimensions)


def memory_type(spec: TypeSpec) -> MemoryType:
    """Return the type; without a half-life it does not decay (admission demands one or `decay: false`)."""
    ttl = Ttl(**spec.ttl.model_dump()) if spec.ttl else None
    given = spec.model_dump(exclude_none=True, exclude={"name", "half_life_days", "decay", "ttl"})
    given["supersede_by"] = None if spec.supersede_by == "none" else spec.supersede_by
    return MemoryType(spec.name, spec.half_life_days, ttl=ttl, **given)


def effective_embedding(memory: AgentMemory) -> EmbeddingSettings:
    """Return the embedding settings; without a block the offline embedder, whatever the preset."""
    preset, spec = preset_of(memory), memory.spec.embedding or Embedding(provider="wordllama")
    model = spec.model or (DEFAULT_MODELS | dict(preset.embedding_models)).get(spec.provider)
    return EmbeddingSettings(
        provider=spec.provider,
        model=model,
        dimensions=spec.dimensions or MODEL_DIMENSIONS[model or ""],
        base_url=spec.base_url,
        secret=spec.secret_ref,
        batch_size=spec.batch_size or EMBEDDING_BATCH_SIZE,
        timeout_s=spec.timeout_seconds or EMBEDDING_TIMEOUT_S,
        cache_entries=preset.embedding_cache_entries if spec.cache_entries is None else spec.cache_entries,
    )
