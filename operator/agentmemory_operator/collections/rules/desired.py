"""Desired collection of an object, in the canonical form that is compared with the server's state, and pass terms."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from agentmemory_operator.collections.rules.collection import (
    DEFAULT_LANGUAGE,
    KEYWORD_WINDOW,
    Collection,
    KeywordSource,
    Marker,
    build_limits,
    settings_by_name,
)
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.rebuild_costs import CollectionSample
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, build_terms
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.embedding import (
    EMBEDDING_BATCH_SIZE,
    EmbeddingSource,
    effective_embedding,
    embedding_source,
    with_embedding_of,
)
from agentmemory_operator.spec.effective.policies import RebuildSettings, describe_earlier_endings, rebuild_settings
from agentmemory_operator.spec.effective.revisions import at_revision, is_preset_undecided, preset_of, revisions_of
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

UNMARKED_PRESET = CORTEX.name
"""Preset of a collection whose marker names none: it was created when this was the only preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTerms:
    """Terms under which a pass may change a collection.

    Attributes:
        takeover: Permissions to take over another object's collection. None permits nothing.
        approved: Digest of the approved plan or Rebuild, maybe with `-recall`. None without an approval.
        older: Desired collections under each older revision of the preset.
        earlier_endings: For each older revision, a text about memories that the newest removes earlier or rejects;
            "" if there are none.
        needs_alias: True if an adopted plain collection must be replaced by one behind the alias.
        batch_size: Maximum number of texts in one request to the embedding provider.
        cancelled: Digest of the cancelled Rebuild. None without one.
        rolled_back: Collection whose rebuild is or will be rolled back. None without one.
        survey: Sampled content lengths and the server's resources, for the costs of a Rebuild. None estimates without
            them.
    """

    takeover: TakeoverTerms | None = None
    approved: str | None = None
    older: Mapping[int, Collection] = field(default_factory=dict)
    earlier_endings: Mapping[int, str] = field(default_factory=dict)
    drift_policy: DriftPolicy = DriftPolicy.CORRECT
    needs_alias: bool = False
    rebuild: RebuildSettings = field(default_factory=RebuildSettings)
    batch_size: int = EMBEDDING_BATCH_SIZE
    cancelled: str | None = None
    rolled_back: str | None = None
    survey: CollectionSample | None = None


def desired_collection(memory: AgentMemory, *, cluster_id: str) -> Collection:
    """Build the collection that an object configures; each value comes from its field, profile or preset."""
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
        strict_mode=build_limits(index.strict_mode),
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
        connection=connection_name(memory),
        preset=preset.name,
        agent=memory.slug,
    )
    return replace(shape, marker=marker)


def _indexes(memory: AgentMemory, keyword: KeywordSource | None) -> dict[str, str]:
    """Return the schema type of each payload index by field."""
    return effective_indexes(memory) | (keyword_indexes(memory) if keyword else {})


def build_pass_terms(memory: AgentMemory, *, cluster_id: str) -> PassTerms:
    """Build the terms of a pass from the object's annotations and the older revisions of its preset."""
    older = {
        preset_of(earlier).revision: desired_collection(earlier, cluster_id=cluster_id)
        for earlier in revisions_of(memory)[:-1]
    }
    newest = endings_of(revisions_of(memory)[-1])
    endings = {
        preset_of(earlier).revision: describe_earlier_endings(endings_of(earlier), newest)
        for earlier in revisions_of(memory)[:-1]
    }
    annotations = memory.metadata.annotations
    return PassTerms(
        takeover=build_terms(memory.slug, annotations),
        approved=annotations.get(APPROVE_PLAN),
        older=older,
        earlier_endings=endings,
        drift_policy=DriftPolicy(memory.spec.drift_policy or DriftPolicy.CORRECT),
        needs_alias=annotations.get(MOVE_TO_ALIAS) == "true",
        rebuild=rebuild_settings(memory.spec),
        batch_size=effective_embedding(memory).batch_size,
        cancelled=annotations.get(CANCEL_REBUILD),
        rolled_back=annotations.get(ROLLBACK_REBUILD),
    )


def with_recorded_defaults(memory: AgentMemory, live: Marker | None) -> AgentMemory:
    """Return the object with the preset of its collection, if neither its spec nor its status has one.

    Without `spec.embedding`, the object gets the embedding of its collection too, if that is a default of an operator.

    Args:
        live: Marker of the collection. None without one: the object gets the default preset and embedding.

    Raises:
        SpecInvalid: If this version does not define the preset.
    """
    if live is None:
        return memory
    memory = with_embedding_of(memory, live.embedding)
    if not is_preset_undecided(memory):
        return memory
    name = live.preset or UNMARKED_PRESET
    if name not in PRESETS:
        remedy = "name one in spec.preset, or run a version that knows it"
        raise SpecInvalid(
            Reason.INVALID_SPEC, f"the collection has the preset {name!r}, which this version does not know: {remedy}"
        )
    return at_revision(memory, live.preset_revision, preset=name)


def connection_name(memory: AgentMemory) -> str:
    """Return NAMESPACE/NAME of the QdrantConnection that the object refers to."""
    ref = memory.spec.connection_ref
    return f"{ref.namespace or memory.metadata.namespace}/{ref.name}"


def newest_collection(memory: AgentMemory, *, cluster_id: str) -> Collection:
    """Build the collection that an object configures under the newest revision of its preset."""
    return desired_collection(revisions_of(memory)[-1], cluster_id=cluster_id)


def keyword_source(memory: AgentMemory) -> KeywordSource | None:
    """Return the source of keyword vectors, or None if neither the object nor its preset configures them."""
    keyword = memory.spec.index.keyword if memory.spec.index else None
    if not has_keyword(memory):
        return None
    return KeywordSource(language=(keyword and keyword.language) or DEFAULT_LANGUAGE, window=KEYWORD_WINDOW)


def hash_config(shape: Collection, embedding: EmbeddingSource, keyword: KeywordSource | None = None) -> str:
    """Return the first 12 hex digits of the SHA-256 of the whole configuration of a collection."""
    config = settings_by_name(shape) | {"embedding": embedding, "keyword": keyword}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=asdict).encode()).hexdigest()[:12]
