"""What an object means: its spec over its preset. The only place where defaults are filled in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.access import Subject, Verb
from agentmemory_operator.spec.effective.consolidation import ModelSettings, duplicate_similarity, effective_model
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, effective_embedding
from agentmemory_operator.spec.effective.entities import EntitySettings, effective_entities
from agentmemory_operator.spec.effective.policies import Endings, effective_zones, figures_over
from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.effective.scoring_model import RankingModel, choose
from agentmemory_operator.spec.effective.tuning import Tuning, tuning_of
from agentmemory_operator.spec.expression.models import Model, variables_read
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import CONFIDENCE, IDLE_DAYS
from agentmemory_operator.spec.kinds.agent_memory import Access, AgentMemory, TypeSpec
from agentmemory_operator.spec.kinds.parse import parse_access
from agentmemory_operator.spec.kinds.spec_index import Index
from agentmemory_operator.spec.kinds.spec_webhooks import Hook
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY, WORKING, MemoryType, Ttl, ending_with_session
from agentmemory_operator.spec.names import canonical
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.presets import (
    NO_GATE,
    RETRIEVAL_INDEXES,
    Lifecycle,
    Weights,
)
from agentmemory_operator.spec.presets.profiles import DEFAULT_EXPECTED_MEMORIES
from agentmemory_operator.spec.presets.table import (
    KEYWORD_INDEXES,
    KIND_INDEXES,
    NO_EVIDENCE,
    TERSE_INDEXES,
    USE_INDEXES,
    ConsolidationTerms,
    EvidenceWeights,
    Fusion,
    Reranking,
)
from agentmemory_operator.spec.zones import KEY_MADE_KEY, ZoneSettings

# The type of memories of an object that takes any, where the writer names none.
UNTYPED = "memory"

# What a memory is looked up by when another is written, where types have identities or nothing is stored twice.
LOOKUP_INDEXES = (("lookupIds", "keyword"),)

# What tells whether a session is over, where sessions end by themselves.
SESSION_INDEXES = ((SESSION_USED_KEY, "integer"),)

# What tells memories apart that not everybody can read, where there are zones.
ZONE_INDEXES = (("zone", "keyword"),)

# What tells memories that are to be sealed again, where data keys are replaced.
ROTATION_INDEXES = ((KEY_MADE_KEY, "integer"),)

# What tells the conversations that a model is still to read.
MODEL_INDEXES = (("distilDue", "bool"),)

# Search requests beyond this many results are refused; the API's documented bound.
MAX_TOP_K = 10_000


# What a scoring model reads of a memory, and finds memories by, beyond what every search needs.
SCORED_INDEXES = {CONFIDENCE: ("confidence", "float"), IDLE_DAYS: ("lastAccessedAt", "integer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How search ranks.

    Attributes:
        model: what ranks instead of the weighted sum; None is the weighted sum.
        confidence_share: of the weighted sum: how much confidence counts, 0..1; 0 is not at all.
        candidates: how many memories the engine scores; None sizes it from the number behind the filter.
        search_ef: the engine's `hnsw_ef`; None leaves it to the engine.
        rescore: candidates are compared by the vectors themselves, not by their compressed copies.
        fusion: how a search by words too ranks.
        evidence: what counts beside similarity and keyword, where memories have evidence.
        rerank: what reads the best again; None is nothing.
        allows_overrides: a request may bring weights of its own.
        max_query_limit: the most results that the engine's strict mode lets one request have; None is any number.
        oversampling: how many times more candidates than wanted are rescored, at least 1.
        types: none takes any type, each without decay.
        unlisted: where any type is taken, those that end with their session.
        score_threshold: on the combined score; -1 leaves nothing out.
        min_similarity: on the similarity, -1..1; -1 leaves nothing out.
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
    search_ef: int | None = None
    rescore: bool = True
    oversampling: float = 1.0
    max_query_limit: int | None = None
    fusion: Fusion = field(default_factory=Fusion)
    evidence: EvidenceWeights = NO_EVIDENCE
    rerank: Reranking | None = None
    allows_overrides: bool = True

    @property
    def default_type(self) -> str:
        """The type of a memory that is stored without one."""
        return self.types[0].name if self.types else UNTYPED

    @property
    def endings(self) -> tuple[MemoryType, ...]:
        """The types by whose rules memories end."""
        return self.types or self.unlisted

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
        knowledge_category: of a memory that is stored without one; None leaves it without.
        max_content_tokens: of a memory, 4 characters each; None is the API's own bound.
        keep_versions: of an item: how many of those that puts replaced.
        hooks: paths that take signed memories.
        zones: None where no memory has a zone.
        language_model: what reads memories without one; None where nothing is sent to any.
        duplicate_similarity: from which a merged fact counts as stored.
        entities: None where memories are not searched for names.
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
        """Namespace and name of the object: whose Secrets and memories those are."""
        return self.namespace, self.name

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


def effective_settings(memory: AgentMemory) -> AgentSettings:
    """The object's settings with every default filled in."""
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
    """How memories are kept and end: each figure of the object over its preset's."""
    return figures_over(memory.spec.lifecycle, preset_of(memory).lifecycle)


def endings_of(memory: AgentMemory) -> Endings:
    """The figures by which memories end."""
    return effective_types(memory) or unlisted_types(memory), effective_lifecycle(memory)


def subjects_of(access: Access | None) -> tuple[Subject, ...]:
    """Who may call the API for the agent."""
    listed = access.subjects if access else None
    return tuple(
        Subject(
            subject.namespace,
            subject.name,
            verbs=frozenset(map(Verb, subject.verbs)),
            scopes=frozenset(subject.scopes or ()),
            users=None if subject.users is None else frozenset(map(canonical, subject.users)),
        )
        for subject in listed or ()
    )


def subjects_now(document: Mapping[str, Any]) -> tuple[Subject, ...]:
    """Who may call the API, read from a document that may be wrong elsewhere; nobody if it cannot be read."""
    try:
        return subjects_of(parse_access(document))
    except SpecInvalid:
        return ()


def effective_indexes(memory: AgentMemory) -> dict[str, str]:
    """The type of every payload index by field: the preset's, the scoring model's and the object's."""
    extra = (memory.spec.index and memory.spec.index.payload_indexes) or ()
    choice = scoring_choice(memory)
    read = variables_read(choice.model) | ({CONFIDENCE} if choice.confidence_share else set())
    scored = dict(index for variable, index in SCORED_INDEXES.items() if variable in read)
    endings = endings_of(memory)[0]
    # Every search leaves out what ended unused.
    ends_unused = any(type_.ttl and type_.ttl.mode == "SoftUnlessUsed" for type_ in endings)
    if ends_unused or choice.model is not None or (choice.weights or preset_of(memory).weights).utility:
        scored |= dict(USE_INDEXES)
    if choice.model is not None or endings:
        # Models and types that end read them of every candidate.
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
    """The type of the payload indexes of keyword texts and of their evidence, by field."""
    model = scoring_choice(memory).model
    weighted = effective_ranking(memory).evidence.terms
    read = variables_read(model) if isinstance(model, CheckedExpression) else weighted
    return dict(KEYWORD_INDEXES) | (dict(TERSE_INDEXES) if "terse" in read else {})


def effective_ranking(memory: AgentMemory) -> Ranking:
    """The ranking: each figure of `spec.scoring` and `spec.types` over the preset's."""
    preset, scoring, choice = preset_of(memory), memory.spec.scoring, scoring_choice(memory)
    given = scoring.model_dump(exclude_none=True) if scoring else {}
    candidates = given.get("candidates")
    hnsw = memory.spec.index.hnsw if memory.spec.index else None
    tuning = effective_tuning(memory)
    return Ranking(
        model=choice.model,
        weights=choice.weights or preset.weights,
        utility_norm=choice.utility_norm or preset.utility_norm,
        confidence_share=choice.confidence_share,
        limit=given.get("limit", preset.limit),
        score_threshold=given.get("score_threshold", preset.score_threshold),
        min_similarity=given.get("min_similarity", preset.min_similarity),
        types=effective_types(memory),
        unlisted=unlisted_types(memory),
        candidates=candidates if isinstance(candidates, int) else None,
        allows_overrides=given.get("allow_overrides", True),
        search_ef=hnsw.search_ef if hnsw else None,
        rescore=tuning.rescore,
        oversampling=tuning.oversampling,
        max_query_limit=_max_query_limit(memory.spec.index),
        rerank=Reranking(**given["rerank"]) if "rerank" in given else None,
        fusion=replace(preset.fusion, **given.get("fusion", {})),
        evidence=replace(preset.evidence, **given.get("evidence", {})),
    )


def has_keyword(memory: AgentMemory) -> bool:
    """Whether memories are to be found by words too: as the object says, else its preset."""
    keyword = memory.spec.index.keyword if memory.spec.index else None
    return preset_of(memory).has_keyword if keyword is None else keyword.enabled


def scoring_choice(memory: AgentMemory) -> RankingModel:
    """The model that ranks: what the object asks for, else what was last accepted."""
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
    """The types of memory: the object's, else the preset's; session types carry the time after which a session ends."""
    types = preset_of(memory).types if memory.spec.types is None else tuple(map(memory_type, memory.spec.types))
    idle_hours = effective_lifecycle(memory).session_idle_hours
    return tuple(ending_with_session(type_, idle_hours) for type_ in types)


def unlisted_types(memory: AgentMemory) -> tuple[MemoryType, ...]:
    """The types that end with their session where the object takes any type."""
    working = ending_with_session(
        MemoryType(WORKING, half_life_days=None), effective_lifecycle(memory).session_idle_hours
    )
    return (working,) if working.ttl and not effective_types(memory) else ()


def _max_query_limit(index: Index | None) -> int | None:
    strict = index.strict_mode if index else None
    return None if strict is None or strict.enabled is False else strict.max_query_limit


def effective_tuning(memory: AgentMemory) -> Tuning:
    """The tuning of the collection and of its searches."""
    dimensions = effective_embedding(memory).dimensions
    return tuning_of(memory.spec.index, preset_of(memory), dimensions=dimensions)


def memory_type(spec: TypeSpec) -> MemoryType:
    """The type; without a half-life it does not decay (admission demands one or `decay: false`)."""
    ttl = Ttl(**spec.ttl.model_dump()) if spec.ttl else None
    given = spec.model_dump(exclude_none=True, exclude={"name", "half_life_days", "decay", "ttl"})
    given["supersede_by"] = None if spec.supersede_by == "none" else spec.supersede_by
    return MemoryType(spec.name, spec.half_life_days, ttl=ttl, **given)
