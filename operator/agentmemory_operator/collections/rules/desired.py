"""Spec to desired collection: the canonical form that planning compares with what the server reports."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from agentmemory_operator.collections.rules.collection import (
    DEFAULT_LANGUAGE,
    WINDOW,
    Collection,
    KeywordSource,
    Marker,
    desired_limits,
    figures_in,
)
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.rebuild_costs import Survey
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, takeover_terms
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.embedding import (
    EMBEDDING_BATCH_SIZE,
    EmbeddingSource,
    effective_embedding,
    embedding_source,
)
from agentmemory_operator.spec.effective.policies import RebuildSettings, ends_sooner, rebuild_settings
from agentmemory_operator.spec.effective.revisions import at_revision, is_undecided, preset_of, revisions_of
from agentmemory_operator.spec.effective.settings import (
    effective_indexes,
    effective_tuning,
    endings_of,
    has_keyword,
    keyword_indexes,
)
from agentmemory_operator.spec.kinds.agent_memory import (
    APPROVE_PLAN,
    CANCEL_REBUILD,
    MOVE_TO_ALIAS,
    ROLLBACK_REBUILD,
    AgentMemory,
)
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_index import Index, ShardingSpec
from agentmemory_operator.spec.presets import CORTEX, PRESETS

DEFAULT_OF_OLD_MARKERS = CORTEX.name
"""The preset of a collection whose marker names none: it was the only one that objects had without naming it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTerms:
    """On what terms a pass may change a collection.

    Attributes:
        takeover: what allows this object to take over another's collection; None allows nothing.
        approved: digest of the plan that somebody has approved.
        older: what the object asks for under each older revision of its preset.
        ends: what memories end by under the newest revision that each older one keeps; empty where nothing is.
        drift_policy: what becomes of a difference that no spec asked for.
        wants_alias: a plain collection that was adopted is to be put behind the alias.
        rebuild: what holds for a Rebuild.
        batch: texts in one request to the embedding provider.
        cancelled: digest of the Rebuild that somebody has stopped.
        taken_back: the collection that was rolled back, or is to be.
        survey: what a Rebuild's costs are known from; None knows less of them.
    """

    takeover: TakeoverTerms | None = None
    approved: str | None = None
    older: Mapping[int, Collection] = field(default_factory=dict)
    ends: Mapping[int, str] = field(default_factory=dict)
    drift_policy: DriftPolicy = DriftPolicy.CORRECT
    wants_alias: bool = False
    rebuild: RebuildSettings = field(default_factory=RebuildSettings)
    batch: int = EMBEDDING_BATCH_SIZE
    cancelled: str | None = None
    taken_back: str | None = None
    survey: Survey | None = None


def desired_collection(memory: AgentMemory, *, cluster_id: str) -> Collection:
    """What the object asks for, each number from its field, profile or preset."""
    preset, index = preset_of(memory), memory.spec.index or Index()
    embedding = embedding_source(effective_embedding(memory))
    tuning = effective_tuning(memory)
    sharding = index.sharding or ShardingSpec()
    keyword = keyword_source(memory)
    shape = Collection(
        size=embedding.dimensions,
        distance=index.distance or preset.distance,
        hnsw=tuning.hnsw,
        optimizers=tuning.optimizers,
        quantization=tuning.quantization,
        datatype=tuning.datatype,
        memory=tuning.memory,
        payload_on_disk=index.payload.on_disk if index.payload else None,
        shard_number=sharding.shard_number,
        replication_factor=sharding.replication_factor,
        strict_mode=desired_limits(index.strict_mode),
        indexes=tuple(sorted(_indexes(memory, keyword).items())),
        has_keyword=keyword is not None,
    )
    marker = Marker(
        cluster_id=cluster_id,
        namespace=memory.metadata.namespace,
        name=memory.metadata.name,
        uid=memory.metadata.uid,
        generation=memory.metadata.generation,
        config_hash=hash_config(shape, embedding, keyword),
        preset_revision=preset.revision,
        embedding=embedding,
        keyword=keyword,
        connection=connection_named(memory),
        preset=preset.name,
        agent=memory.slug,
    )
    return replace(shape, marker=marker)


def _indexes(memory: AgentMemory, keyword: KeywordSource | None) -> dict[str, str]:
    """The type of each payload index by field."""
    return effective_indexes(memory) | (keyword_indexes(memory) if keyword else {})


def terms_of(memory: AgentMemory, *, cluster_id: str) -> PassTerms:
    """The terms of a pass over the object: what its annotations allow, and what it asked for before."""
    older = {
        preset_of(before).revision: desired_collection(before, cluster_id=cluster_id)
        for before in revisions_of(memory)[:-1]
    }
    newest = endings_of(revisions_of(memory)[-1])
    ends = {preset_of(before).revision: ends_sooner(endings_of(before), newest) for before in revisions_of(memory)[:-1]}
    annotations = memory.metadata.annotations
    return PassTerms(
        takeover=takeover_terms(memory.slug, annotations),
        approved=annotations.get(APPROVE_PLAN),
        older=older,
        ends=ends,
        drift_policy=DriftPolicy(memory.spec.drift_policy or DriftPolicy.CORRECT),
        wants_alias=annotations.get(MOVE_TO_ALIAS) == "true",
        rebuild=rebuild_settings(memory.spec),
        batch=effective_embedding(memory).batch_size,
        cancelled=annotations.get(CANCEL_REBUILD),
        taken_back=annotations.get(ROLLBACK_REBUILD),
    )


def on_record(memory: AgentMemory, live: Marker | None) -> AgentMemory:
    """The object with the preset that its collection has, where neither itself nor its status says which.

    Args:
        live: the collection's marker; None without one: then the object is new, and has the default.

    Raises:
        SpecInvalid: this version does not know the preset.
    """
    if live is None or not is_undecided(memory):
        return memory
    name = live.preset or DEFAULT_OF_OLD_MARKERS
    if name not in PRESETS:
        way_out = "name one in spec.preset, or run a version that knows it"
        raise SpecInvalid(
            Reason.INVALID_SPEC, f"the collection has the preset {name!r}, which this version does not know: {way_out}"
        )
    return at_revision(memory, live.preset_revision, preset=name)


def connection_named(memory: AgentMemory) -> str:
    """NAMESPACE/NAME of the QdrantConnection that the object refers to."""
    ref = memory.spec.connection_ref
    return f"{ref.namespace or memory.metadata.namespace}/{ref.name}"


def newest_collection(memory: AgentMemory, *, cluster_id: str) -> Collection:
    """What the object asks for under the newest revision of its preset."""
    return desired_collection(revisions_of(memory)[-1], cluster_id=cluster_id)


def keyword_source(memory: AgentMemory) -> KeywordSource | None:
    """What keyword vectors are made of, None where neither the object nor its preset asks for them."""
    keyword = memory.spec.index.keyword if memory.spec.index else None
    if not has_keyword(memory):
        return None
    return KeywordSource(language=(keyword and keyword.language) or DEFAULT_LANGUAGE, window=WINDOW)


def hash_config(shape: Collection, embedding: EmbeddingSource, keyword: KeywordSource | None = None) -> str:
    """The first 12 hex digits of the SHA-256 of everything that shapes the collection."""
    config = figures_in(shape) | {"embedding": embedding, "keyword": keyword}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=asdict).encode()).hexdigest()[:12]
