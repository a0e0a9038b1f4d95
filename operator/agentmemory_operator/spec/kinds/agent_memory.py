"""The kinds of `agentmemory.dev/v1alpha1`: the one source of `crds/*.yaml` and of every check on a manifest.

QdrantConnection lies in `connection`, the larger blocks of a spec in `spec_*`, `lifecycle` and `rebuild`.

A field stands here only when something acts on it. A field that a preset decides has no default here: a persisted
default would override the preset. The CEL rules beside the fields run in the API server and in `parse`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from agentmemory_operator.spec.access import SCOPE_PATTERN
from agentmemory_operator.spec.kinds import cel as rules
from agentmemory_operator.spec.kinds.base import Model, NamespaceName, ObjectName, SecretKeyRef
from agentmemory_operator.spec.kinds.cel import (
    FASTEMBED_DEFAULT_MODEL,
    OPENAI_DEFAULT_MODEL,
    SLUG_MAX_LENGTH,
    WORDLLAMA_MODEL,
)
from agentmemory_operator.spec.kinds.lifecycle import LifecycleSpec, TtlSpec
from agentmemory_operator.spec.kinds.rebuild import ChangePolicyName, RebuildSpec
from agentmemory_operator.spec.kinds.schema import distinct, keyed_by, validated
from agentmemory_operator.spec.kinds.spec_index import Index
from agentmemory_operator.spec.kinds.spec_restore import Bootstrap, MemoryRestoreSpec
from agentmemory_operator.spec.kinds.spec_scoring import ScoringSpec
from agentmemory_operator.spec.kinds.spec_snapshot import MemorySnapshotSpec, SnapshotsSpec
from agentmemory_operator.spec.kinds.spec_webhooks import Webhook

GROUP = "agentmemory.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CONFIRM_DELETE = f"{GROUP}/confirm-delete"
RECONCILE_REQUESTED_AT = f"{GROUP}/reconcile-requested-at"
TAKEOVER = f"{GROUP}/takeover"
APPROVE_PLAN = f"{GROUP}/approve-plan"
PAUSE_REBUILD = f"{GROUP}/pause-rebuild"
CANCEL_REBUILD = f"{GROUP}/cancel-rebuild"
ROLLBACK_REBUILD = f"{GROUP}/rollback-rebuild"
MOVE_TO_ALIAS = f"{GROUP}/move-to-alias"
CLEANUP_REQUESTED_AT = f"{GROUP}/cleanup-requested-at"
VERIFY_REQUESTED_AT = f"{GROUP}/verify-requested-at"
APPROVE_CLEANUP = f"{GROUP}/approve-cleanup"
ROLLBACK = f"{GROUP}/rollback"
ProviderUrl = Annotated[
    str,
    Field(max_length=2048, json_schema_extra=validated(rules.is_url("baseURL", "http://embedder.ml.svc/v1"))),
]
ScopeName = Annotated[str, Field(min_length=1, max_length=69, pattern=SCOPE_PATTERN, description="One shared scope.")]
VerbName = Annotated[Literal["read", "write", "admin"], Field(description="One thing that it may do.")]


class AccessSubject(Model):
    """Somebody who may call the API for this agent."""

    kind: Literal["ServiceAccount"] = Field(description="What it is: a ServiceAccount.")
    namespace: NamespaceName = Field(description="Its namespace.")
    name: ObjectName = Field(description="Its name.")
    verbs: tuple[VerbName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=3,
        description="What it may do, each verb by itself: read (get, list, search), write (store, delete one), admin"
        " (what destroys many memories at once).",
        json_schema_extra=distinct(),
    )
    scopes: tuple[ScopeName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="The shared scopes that its verbs hold for, beside every user's own memories: global, group:NAME;"
        " at most 64. Default: none.",
        json_schema_extra=distinct(),
    )


class Access(Model):
    """Who may call the API for this agent, where it checks ServiceAccounts (AGENTMEMORY_AUTH=kubernetes)."""

    subjects: tuple[AccessSubject, ...] | None = Field(
        default=None,
        strict=False,
        max_length=256,
        description="Who may do what; each ServiceAccount once, at most 256. A change acts on the next request."
        " Default: nobody.",
        json_schema_extra=keyed_by("kind", "namespace", "name"),
    )


class ConnectionRef(Model):
    """A QdrantConnection, of the object's own namespace unless another is named."""

    name: ObjectName = Field(description="Name of the QdrantConnection.")
    namespace: NamespaceName | None = Field(
        default=None,
        description="Its namespace; another one only where the connection's allowedNamespaces takes this object's."
        " Default: the object's own.",
    )


class Embedding(Model):
    """What turns text into vectors."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.EMBEDDING))

    provider: Literal["openai", "wordllama", "fastembed", "none"] = Field(
        description="Who embeds: openai is any OpenAI-compatible HTTP API, wordllama a small model inside the process"
        " (offline, no key), fastembed an ONNX model inside the process (an optional package, and a folder of models),"
        " none means that callers send vectors. Another provider is another vector space: a Rebuild."
    )
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description=f"Model of the provider. Default: openai {OPENAI_DEFAULT_MODEL}, wordllama {WORDLLAMA_MODEL},"
        f" fastembed {FASTEMBED_DEFAULT_MODEL},"
        " with preset keyed all-MiniLM-L6-v2. Another model is another vector space, of the same size too: a Rebuild.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Numbers in a vector, 1..65536. Default: the model's own where it is known; with less, the openai"
        " provider is asked for shortened vectors. wordllama: 64, 128 or 256. none: required. A change is a Rebuild.",
    )
    base_url: ProviderUrl | None = Field(
        default=None,
        alias="baseURL",
        description="Base URL of the OpenAI-compatible API, as http://embedder.ml.svc/v1. Default: OpenAI's own.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="The API key of the openai provider. Default: no key is sent."
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=2048, description="Texts in one request to the provider, 1..2048. Default: 64."
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=300,
        description="Seconds until a request to the provider is given up, 1..300. Default: 20.",
    )
    cache_entries: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Texts whose vectors are kept in memory at most, least recently used out, 0..1000000; 0 keeps none."
        " All agents of a process share AGENTMEMORY_EMBEDDING_CACHE_MIB. Default: the preset's, 100 of keyed and 10000"
        " of the others.",
    )


EventType = Annotated[
    str,
    Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$", description="One kind of event."),
]


class TypeSpec(Model):
    """One type of memory."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.TYPE))

    name: Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$")] = Field(
        description="Name of the type as memories carry it: lower-case letters, digits, single - or _; at most 48."
    )
    meaning: Annotated[str, Field(max_length=300)] | None = Field(
        default=None,
        description="How to recognise what belongs to the type, for whoever chooses one: a model that stores memories,"
        " or a person; at most 300 characters. Default: nothing is said.",
    )
    half_life_days: float | None = Field(
        default=None,
        ge=0.001,
        le=36_500,
        allow_inf_nan=False,
        description="Days after which a memory's recency has halved, 0.001..36500. A change acts on the next search.",
    )
    decay: bool | None = Field(
        default=None, description="false: memories of this type never fade (recency 1). Default: true."
    )
    boost: float | None = Field(
        default=None,
        ge=0.01,
        le=10,
        allow_inf_nan=False,
        description="Multiplies the combined score of this type, 0.01..10. Default: 1.",
    )
    confidence: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Confidence of a memory that is stored without one, 0..1. Acts on the next write. Default: none,"
        " which scores as 1.",
    )
    supersede_by: Literal["none", "key", "subject"] | None = Field(
        default=None,
        description="key or subject: of memories of this type with the same user and the same key (subject), the newest"
        " supersedes the one before it, whoever said it. none: a memory supersedes only what it names. Default: none.",
    )
    immutable: bool | None = Field(
        default=None, description="true: no memory of this type can be superseded. Default: false."
    )
    event_types: tuple[EventType, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=32,
        description="What event_type of a memory of this type may be, 1..32 words; a memory without one is stored all"
        " the same. Acts on the next write. Default: anything.",
        json_schema_extra=distinct(),
    )
    ttl: TtlSpec | None = Field(default=None, description="How long memories of this type answer. Default: for ever.")


class AgentMemorySpec(Model):
    """One agent's long-term memory."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.SPEC))

    agent: Annotated[str, Field(max_length=SLUG_MAX_LENGTH)] | None = Field(
        default=None,
        description="The agent's name in the API, unique in the installation: lower-case letters, digits and single"
        " hyphens, at most 48. It names the collection (agent_memory_NAME) and cannot change. Default: metadata.name.",
    )
    connection_ref: ConnectionRef = Field(description="The Qdrant server: a QdrantConnection.")
    preset: Literal["cortex", "brain", "keyed", "cognitive", "importance", "none"] | None = Field(
        default=None,
        description="The design whose figures hold where this object gives none (docs/presets.md); none is any type of"
        " memory, ranked by similarity alone. Another one may ask for a Rebuild or a reindex. Default: cortex.",
    )
    embedding: Embedding | None = Field(
        default=None,
        description="What turns text into vectors. Default: provider wordllama, offline and without a key.",
    )
    index: Index | None = Field(default=None, description="Layout and tuning of the collection. Default: the preset's.")
    types: tuple[TypeSpec, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="The types of memory, 1..64, each name once. Replaces the preset's list. Default: the preset's.",
        json_schema_extra=keyed_by("name"),
    )
    scoring: ScoringSpec | None = Field(
        default=None, description="How search ranks; acts on the next search. Default: the preset's figures."
    )
    lifecycle: LifecycleSpec | None = Field(
        default=None, description="How memories are kept, and how they end. Default: the preset's."
    )
    snapshots: SnapshotsSpec | None = Field(
        default=None, description="When snapshots are made, and how long they stay. Default: none is made."
    )
    bootstrap: Bootstrap | None = Field(
        default=None, description="What the collection is made of where none exists. Default: an empty one is made."
    )
    access: Access | None = Field(
        default=None, description="Who may call the API for this agent. Default: nobody, where identities are checked."
    )
    webhooks: tuple[Webhook, ...] | None = Field(
        default=None,
        strict=False,
        max_length=8,
        description="URLs that are told what happens to the memories, at most 8, each name once (docs/webhooks.md)."
        " Default: none.",
        json_schema_extra=keyed_by("name"),
    )
    suspend: bool | None = Field(
        default=None,
        description="true: the operator leaves the collection as it is, whatever this object says, until it is false"
        " again; the API goes on serving. An object deleted meanwhile keeps its collection. Default: false.",
    )
    change_policy: ChangePolicyName | None = Field(
        default=None,
        description="What becomes of a change that needs a new collection (a Rebuild): Apply carries it out,"
        f" RequireApproval waits for the annotation {APPROVE_PLAN}: DIGEST (agentmemory approve NAME), Never holds it"
        " whatever is approved. Default: RequireApproval.",
    )
    keep_previous_hours: Annotated[int, Field(ge=0, le=8760)] | None = Field(
        default=None,
        description="How many hours the collection that a Rebuild replaces is kept for a way back, 0..8760."
        " Default: 24.",
    )
    rebuild: RebuildSpec | None = Field(default=None, description="Bounds of a Rebuild. Default: see its fields.")
    drift_policy: Literal["Correct", "Report", "Ignore"] | None = Field(
        default=None,
        description="What becomes of a change that somebody made to the collection in Qdrant, past this object. Correct"
        " sets it right, Report leaves it and shows it in status.drift, Ignore leaves it. Default: Correct.",
    )
    deletion_policy: Literal["Retain", "Snapshot", "Delete"] | None = Field(
        default=None,
        description="What becomes of the collection when this object is deleted. Snapshot drops it once a last snapshot"
        " of it is verified; Delete drops a non-empty one only with"
        f" the annotation {CONFIRM_DELETE}: ALIAS. Default: Retain.",
    )


class Metadata(BaseModel):
    """The part of an object's metadata that decisions use."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    resource_version: str = ""


class AgentMemory(BaseModel):
    """A parsed AgentMemory; `status` is what the last pass wrote, as it came."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: AgentMemorySpec
    status: dict[str, Any] = Field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The agent's name in the installation: `spec.agent`, else the object's name."""
        return self.spec.agent or self.metadata.name

    @property
    def told_physical(self) -> str | None:
        """The collection that the status names: where to look first, and no authority."""
        found: str | None = (self.status.get("collection") or {}).get("physical")
        return found


class MemorySnapshot(BaseModel):
    """A parsed MemorySnapshot."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: MemorySnapshotSpec
    status: dict[str, Any] = Field(default_factory=dict)


class MemoryRestore(BaseModel):
    """A parsed MemoryRestore."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: MemoryRestoreSpec
    status: dict[str, Any] = Field(default_factory=dict)
