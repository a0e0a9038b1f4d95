"""Combine an object's spec with its preset: settings of the retrieval API, ranking, memory types, payload indexes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.caller_rights import Subject, Verb
from agentmemory_operator.spec.canonical_names import canonical
from agentmemory_operator.spec.effective.consolidation import ModelSettings, duplicate_similarity, effective_model
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, effective_embedding
from agentmemory_operator.spec.effective.entities import EntitySettings, effective_entities
from agentmemory_operator.spec.effective.policies import Endings, effective_zones, lifecycle_figures
from agentmemory_operator.spec.effective.reranking import effective_rerank
from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.effective.scoring_model import RankingModel, choose_model
from agentmemory_operator.spec.effective.tuning import Tuning, max_batched_searches, max_query_limit, tuning_of
from agentmemory_operator.spec.expression.scoring_parameters import Model, read_variables
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import CONFIDENCE, IDLE_DAYS
from agentmemory_operator.spec.kinds.agent_memory import Access, AgentMemory, TypeSpec
from agentmemory_operator.spec.kinds.parse import parse_access
from agentmemory_operator.spec.kinds.spec_webhooks import Hook
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY, WORKING, MemoryType, Ttl, with_session_end
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.presets import NO_GATE, RETRIEVAL_INDEXES, Lifecycle, Weights
from agentmemory_operator.spec.presets.profiles import DEFAULT_EXPECTED_MEMORIES
from agentmemory_operator.spec.presets.table import (
    DEFAULT_EFFORT,
    KEYWORD_INDEXES,
    KIND_INDEXES,
    NO_EVIDENCE,
    TERSE_INDEXES,
    USE_INDEXES,
    ConsolidationTerms,
    Effort,
    EvidenceWeights,
    Fusion,
    ModelWeights,
    Reranking,
)
from agentmemory_operator.spec.zones import KEY_CREATED_KEY, ZoneSettings

# Type of a memory stored without one, if the object allows any type.
UNTYPED = "memory"

# Index for finding existing memories during a write, if a type has `supersede_by` or memories are deduplicated.
LOOKUP_INDEXES = (("lookupIds", "keyword"),)

# Index for finding the memories of ended sessions, if sessions end when they are idle.
SESSION_INDEXES = ((SESSION_USED_KEY, "integer"),)

# Index for filtering memories by zone, if there are zones.
ZONE_INDEXES = (("zone", "keyword"),)

# Index for finding memories to be encrypted again, if data keys are rotated.
ROTATION_INDEXES = ((KEY_CREATED_KEY, "integer"),)

# Index for finding conversations that a model has not read yet.
MODEL_INDEXES = (("distilDue", "bool"),)

# Maximum `top_k` of a search, which the API enforces and documents.
MAX_TOP_K = 10_000

# Fields that a scoring model reads or filters by, in addition to those that every search needs.
SCORED_INDEXES = {CONFIDENCE: ("confidence", "float"), IDLE_DAYS: ("lastAccessedAt", "integer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Settings of search ranking.

    Attributes:
        limit: Number of results of a search without top_k.
        model: Scoring model. None is the weighted sum.
        confidence_share: Share of confidence in the weighted sum, 0..1. 0 ignores confidence.
        candidates: Number of memories that Qdrant scores. None derives it from the number of memories that match
            the filter, and from `effort`.
        search_ef: Qdrant's `hnsw_ef`. None uses Qdrant's default.
        rescore: True to compare candidates by their original vectors instead of the compressed copies.
        fusion: Combination of similarity and keywords.
        evidence: Weights of evidence in addition to similarity and keywords, in searches that fuse both.
        model_weights, own_weights: Figures of fusion and evidence by embedding model; names of those set by the object.
        rerank: Cross-encoder that reorders the best results. None disables reranking.
        allows_overrides: True if a request may set its own weights and minimum similarity.
        max_query_limit, max_batched_searches: Largest number of results, and of searches, of a request in Qdrant's
            strict mode. None if the object sets no limit or disables strict mode.
        oversampling: Factor, at least 1, of the number of candidates that are rescored.
        types: Memory types. Empty allows any type, each without decay.
        unlisted: If any type is allowed, the types that end with their session. Empty otherwise.
        score_threshold: Minimum combined score. -1 filters nothing out.
        min_similarity: Minimum similarity, -1..1. -1 filters nothing out.
    """

    weights: Weights
    utility_norm: float
    limit: int
    score_threshold: float
    min_similarity: float
    types: tuple[MemoryType, ...]
    unlisted: tuple[MemoryType, ...] = ()
    model: Model | None = None
    confidence_share: float = 0.0
    candidates: int | None = None
    effort: Effort = DEFAULT_EFFORT
    search_ef: int | None = None
    rescore: bool = True
    oversampling: float = 1.0
    max_query_limit: int | None = None
    max_batched_searches: int | None = None
    fusion: Fusion = field(default_factory=Fusion)
    evidence: EvidenceWeights = NO_EVIDENCE
    model_weights: ModelWeights = ()
    own_weights: frozenset[str] = frozenset()
    rerank: Reranking | None = None
    allows_overrides: bool = True

    @property
    def default_type(self) -> str:
        """Type of a memory stored without one: the first listed type, else `memory`."""
        return self.types[0].name if self.types else UNTYPED

    @property
    def endings(self) -> tuple[MemoryType, ...]:
        """Types whose rules decide when memories end: the listed types, or `unlisted` if any type is allowed."""
        return self.types or self.unlisted

    @property
    def threshold(self) -> float:
        """Minimum combined score of a result. Minus infinity if nothing is filtered out."""
        return -math.inf if self.score_threshold <= NO_GATE else self.score_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of one object that the retrieval API needs.

    Attributes:
        subjects: ServiceAccounts that may call. Empty allows none.
        indexes: Type of each payload index, by point key. Those for keyword texts are not included.
        working_memory_slots: Maximum number of working memories in a session.
        scoring_generation: Generation of the object that the scoring model is from. None if it is the preset's because
            no accepted model can be used.
        deduplicate: True to skip a memory if an active one of the same user and type has the same content.
        scoring_fault: Reason why the object's own scoring expression cannot be used. None if it can.
        lifecycle: Rules for the writing of memories and for cleanups.
        scrubs_secrets: True to remove text that looks like a credential from memories before they are stored.
        knowledge_category: Knowledge category of a memory stored without one. None stores none.
        max_content_tokens: Longest content of a memory, in tokens of 4 characters. None is the limit of the API.
        keep_versions: Number of replaced versions of an item to keep.
        hooks: Paths that accept signed memories.
        zones: Settings of privacy zones. None if the object has none.
        language_model: Model that reads memories outside of zones. None if nothing is sent to a model.
        duplicate_similarity: Similarity at or above which a merged fact counts as stored.
        entities: Settings of entity detection. None if names are not detected in memories.
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
    uid: str = ""
    profile: str | None = None
    expected_memories: int = DEFAULT_EXPECTED_MEMORIES
    subjects: tuple[Subject, ...] = ()
    has_keyword: bool = False
    indexes: Mapping[str, str] = field(default_factory=lambda: dict(RETRIEVAL_INDEXES))
    working_memory_slots: int = 4
    scoring_generation: int | None = None
    scoring_fault: str | None = None
    scrubs_secrets: bool = False
    knowledge_category: str | None = None
    max_content_tokens: int | None = None
    deduplicate: bool = False
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    keep_versions: int = 0
    hooks: tuple[Hook, ...] = ()
    zones: ZoneSettings | None = None
    language_model: ModelSettings | None = None
    duplicate_similarity: float = ConsolidationTerms().duplicate_similarity
    entities: EntitySettings | None = None

    @property
    def owner(self) -> tuple[str, str]:
        """Namespace and name of the object, which its Secrets and memories belong to."""
        return self.namespace, self.name

    @property
    def ranking_generation(self) -> int:
        """Generation of the scoring model for responses. Without such a generation, that of the object."""
        return self.scoring_generation or self.generation

    @property
    def session_types(self) -> tuple[str, ...]:
        """Types of memories that end with their session. `working` is always included, even if it is not listed."""
        listed = (type_.name for type_ in self.ranking.types if type_.ends_with_session)
        return tuple(dict.fromkeys((WORKING, *listed)))

    @property
    def alias(self) -> str:
        """Stable name of the collection."""
        return alias_of(self.slug)


def effective_settings(memory: AgentMemory) -> AgentSettings:
    """Return the object's settings with every default filled in."""
    choice = scoring_choice(memory)
    return AgentSettings(
        slug=memory.slug,
        namespace=memory.metadata.namespace,
        name=memory.metadata.name,
        uid=memory.metadata.uid,
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
        subjects=subjects_of(memory.spec.access),
        knowledge_category=preset_of(memory).knowledge_category,
        max_content_tokens=preset_of(memory).max_content_tokens,
        deduplicate=effective_lifecycle(memory).deduplicate,
        scrubs_secrets=effective_lifecycle(memory).scrub_secrets,
        working_memory_slots=effective_lifecycle(memory).working_memory_slots,
        lifecycle=effective_lifecycle(memory),
        keep_versions=(memory.spec.items and memory.spec.items.keep_versions) or 0,
        hooks=memory.spec.hooks or (),
        zones=effective_zones(memory),
        language_model=effective_model(memory),
        duplicate_similarity=duplicate_similarity(memory),
        entities=effective_entities(memory, preset_of(memory)),
    )


def effective_lifecycle(memory: AgentMemory) -> Lifecycle:
    """Return the lifecycle figures: each of the object overrides its preset's."""
    return lifecycle_figures(memory.spec.lifecycle, preset_of(memory).lifecycle)


def endings_of(memory: AgentMemory) -> Endings:
    """Return the types (the listed ones, else `unlisted_types`) and the lifecycle figures by which memories end."""
    return effective_types(memory) or unlisted_types(memory), effective_lifecycle(memory)


def subjects_of(access: Access | None) -> tuple[Subject, ...]:
    """Return the subjects that may call the API for the agent. Empty without `access`."""
    subjects = access.subjects if access else None
    return tuple(
        Subject(
            subject.namespace,
            subject.name,
            verbs=frozenset(map(Verb, subject.verbs)),
            scopes=frozenset(subject.scopes or ()),
            users=None if subject.users is None else frozenset(map(canonical, subject.users)),
        )
        for subject in subjects or ()
    )


def read_subjects(document: Mapping[str, Any]) -> tuple[Subject, ...]:
    """Return the subjects of a document that may be invalid in other parts. Empty if its access part is invalid."""
    try:
        return subjects_of(parse_access(document))
    except SpecInvalid:
        return ()


def effective_indexes(memory: AgentMemory) -> dict[str, str]:
    """Return the types of payload indexes by field: of the preset, the scoring model, features and the object.

    `keyword_indexes` returns those for keyword texts.
    """
    extra = (memory.spec.index and memory.spec.index.payload_indexes) or ()
    choice = scoring_choice(memory)
    used_variables = read_variables(choice.model) | ({CONFIDENCE} if choice.confidence_share else set())
    scored = dict(index for variable, index in SCORED_INDEXES.items() if variable in used_variables)
    endings = endings_of(memory)[0]
    # Index the use of memories if searches filter out memories that expired unused.
    has_unused_expiry = any(type_.ttl and type_.ttl.mode == "SoftUnlessUsed" for type_ in endings)
    if has_unused_expiry or choice.model is not None or (choice.weights or preset_of(memory).weights).utility:
        scored |= dict(USE_INDEXES)
    if choice.model is not None or endings:
        # Index these fields, which scoring models, and the decay and expiry of types, read from candidates.
        scored |= dict(KIND_INDEXES)
    is_looked_up = effective_lifecycle(memory).deduplicate or any(
        type_.supersede_by for type_ in effective_types(memory)
    )
    has_sessions = any(type_.ttl and type_.ttl.idle_hours for type_ in endings)
    needed = dict(preset_of(memory).payload_indexes) | (dict(LOOKUP_INDEXES) if is_looked_up else {})
    needed |= dict(SESSION_INDEXES) if has_sessions else {}
    needed |= dict(ZONE_INDEXES) if memory.spec.zones else {}
    needed |= dict(MODEL_INDEXES) if effective_model(memory) else {}
    needed |= dict(ROTATION_INDEXES) if memory.spec.zones and memory.spec.zones.rotate_keys_before else {}
    return {entry.field: entry.type for entry in extra} | scored | needed


def keyword_indexes(memory: AgentMemory) -> dict[str, str]:
    """Return the type of each payload index for keyword texts and their evidence, by field."""
    model = scoring_choice(memory).model
    weighted = effective_ranking(memory).evidence.terms
    read = read_variables(model) if isinstance(model, CheckedExpression) else weighted
    return dict(KEYWORD_INDEXES) | (dict(TERSE_INDEXES) if "terse" in read else {})


def effective_ranking(memory: AgentMemory) -> Ranking:
    """Return the ranking, with defaults filled in.

    Figures of `spec.scoring` override the preset's, `spec.types` replaces its types, `spec.index` tunes the search.
    """
    preset, scoring, choice = preset_of(memory), memory.spec.scoring, scoring_choice(memory)
    figures = scoring.model_dump(exclude_none=True) if scoring else {}
    candidates = figures.get("candidates")
    hnsw = memory.spec.index.hnsw if memory.spec.index else None
    tuning = effective_tuning(memory)
    return Ranking(
        model=choice.model,
        weights=choice.weights or preset.weights,
        utility_norm=choice.utility_norm or preset.utility_norm,
        confidence_share=choice.confidence_share,
        limit=figures.get("limit", preset.limit),
        score_threshold=figures.get("score_threshold", preset.score_threshold),
        min_similarity=figures.get("min_similarity", preset.min_similarity),
        types=effective_types(memory),
        unlisted=unlisted_types(memory),
        candidates=candidates if isinstance(candidates, int) else None,
        effort=figures.get("effort", DEFAULT_EFFORT),
        allows_overrides=figures.get("allow_overrides", True),
        search_ef=hnsw.search_ef if hnsw else None,
        rescore=tuning.rescore,
        oversampling=tuning.oversampling,
        max_query_limit=max_query_limit(memory.spec.index),
        max_batched_searches=max_batched_searches(memory.spec.index),
        rerank=effective_rerank(memory),
        fusion=replace(preset.fusion, **figures.get("fusion", {})),
        evidence=replace(preset.evidence, **figures.get("evidence", {})),
        model_weights=preset.model_weights,
        own_weights=frozenset(figures.get("fusion", {})) | frozenset(figures.get("evidence", {})),
    )


def has_keyword(memory: AgentMemory) -> bool:
    """Return whether memories can be found by words too: as the object sets it, else its preset."""
    keyword = memory.spec.index.keyword if memory.spec.index else None
    return preset_of(memory).has_keyword if keyword is None else keyword.enabled


def scoring_choice(memory: AgentMemory) -> RankingModel:
    """Return the scoring model that `choose_model` selects for the object, from its spec, its status or its preset."""
    index, preset = memory.spec.index, preset_of(memory)
    distance = index.distance if index and index.distance else preset.distance
    return choose_model(
        memory.spec.scoring,
        memory.status,
        preset=preset,
        types=effective_types(memory),
        distance=distance,
        generation=memory.metadata.generation,
    )


def effective_types(memory: AgentMemory) -> tuple[MemoryType, ...]:
    """Return the memory types of the object, else its preset's, with the idle time of sessions filled in."""
    types = preset_of(memory).types if memory.spec.types is None else tuple(map(memory_type, memory.spec.types))
    idle_hours = effective_lifecycle(memory).session_idle_hours
    return tuple(with_session_end(type_, idle_hours) for type_ in types)


def unlisted_types(memory: AgentMemory) -> tuple[MemoryType, ...]:
    """Return the types that end with their session if the object allows any type.

    Empty if it or its preset lists types, or if sessions end by request only.
    """
    working = with_session_end(MemoryType(WORKING, half_life_days=None), effective_lifecycle(memory).session_idle_hours)
    return (working,) if working.ttl and not effective_types(memory) else ()


def effective_tuning(memory: AgentMemory) -> Tuning:
    """Return the tuning of the collection and of its searches, for the dimensions of the embedding in force."""
    dimensions = effective_embedding(memory).dimensions
    return tuning_of(memory.spec.index, preset_of(memory), dimensions=dimensions)


def memory_type(spec: TypeSpec) -> MemoryType:
    """Return the type of a spec. Without a half-life the type does not decay, and admission requires `decay: false`."""
    ttl = Ttl(**spec.ttl.model_dump()) if spec.ttl else None
    figures = spec.model_dump(exclude_none=True, exclude={"name", "half_life_days", "decay", "ttl"})
    figures["supersede_by"] = None if spec.supersede_by == "none" else spec.supersede_by
    return MemoryType(spec.name, spec.half_life_days, ttl=ttl, **figures)
