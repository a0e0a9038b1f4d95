"""The spec of an AgentMemory, the annotations, and the parsed AgentMemory, MemorySnapshot and MemoryRestore.

The CRDs and the schema checks of manifests are generated from these models. QdrantConnection is in `connection`; the
larger blocks of a spec are in `spec_*` and `lifecycle`.

Every field has code that acts on it. A field that a preset decides has no default here, because a persisted default
would override the preset. The CEL rules that models and fields refer to are in `cel`. The API server and `parse` apply
them; the parsers leave out rules that stored objects may violate.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from agentmemory_operator.spec.caller_rights import SCOPE_PATTERN
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.cel.agent_memory import MAX_SLUG_CHARS
from agentmemory_operator.spec.kinds.lifecycle import ItemsSpec, LifecycleSpec, TtlSpec
from agentmemory_operator.spec.kinds.model_base import Model, NamespaceName, ObjectName
from agentmemory_operator.spec.kinds.schema import list_map_keys, set_list, validation_rules
from agentmemory_operator.spec.kinds.spec_consolidation import ConsolidationSpec
from agentmemory_operator.spec.kinds.spec_embedding import Embedding
from agentmemory_operator.spec.kinds.spec_entities import EntitiesSpec
from agentmemory_operator.spec.kinds.spec_index import Index
from agentmemory_operator.spec.kinds.spec_rebuild import ChangePolicyName, RebuildSpec
from agentmemory_operator.spec.kinds.spec_scoring import ScoringSpec
from agentmemory_operator.spec.kinds.spec_snapshot import (
    Bootstrap,
    MemoryRestoreSpec,
    MemorySnapshotSpec,
    SnapshotsSpec,
)
from agentmemory_operator.spec.kinds.spec_webhooks import Hook, Webhook
from agentmemory_operator.spec.kinds.spec_zones import ZonesSpec

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
CONSOLIDATION_REQUESTED = f"{GROUP}/consolidation-requested"
ROLLBACK = f"{GROUP}/rollback"
ScopeName = Annotated[str, Field(min_length=1, max_length=69, pattern=SCOPE_PATTERN, description="A shared scope.")]
UserName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
        description="A user's id.",
        json_schema_extra=validation_rules(rules.NOT_A_SCOPE),
    ),
]
VerbName = Annotated[Literal["read", "write", "admin", "impersonate", "delegate"], Field(description="A permission.")]


class AccessSubject(Model):
    """A caller of the API for this agent, with its permissions."""

    kind: Literal["ServiceAccount"] = Field(description="Kind of the caller: ServiceAccount.")
    namespace: NamespaceName = Field(description="Namespace of the ServiceAccount.")
    name: ObjectName = Field(description="Name of the ServiceAccount.")
    verbs: tuple[VerbName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=5,
        description="Permissions, each granted separately: read (get, list, search), write (store, delete one),"
        " admin (delete many memories at once, list users), impersonate (set an author other than itself), delegate"
        " (create user tokens).",
        json_schema_extra=set_list(),
    )
    scopes: tuple[ScopeName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="Shared scopes that the verbs apply to, in addition to users' own memories: global or"
        " group:NAME; at most 64. Default: none.",
        json_schema_extra=set_list(),
    )
    users: tuple[UserName, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="Users whose memories the verbs apply to, 1..64; requests for other users are refused. Default:"
        " all users.",
        json_schema_extra=set_list(),
    )


class Access(Model):
    """Callers of the API for this agent, if it checks ServiceAccounts (AGENTMEMORY_AUTH=kubernetes)."""

    subjects: tuple[AccessSubject, ...] | None = Field(
        default=None,
        strict=False,
        max_length=256,
        description="Callers and their permissions, each ServiceAccount once, at most 256. Changes apply to the"
        " next request. Default: nobody.",
        json_schema_extra=list_map_keys("kind", "namespace", "name"),
    )


class ConnectionRef(Model):
    """Reference to a QdrantConnection, by default in the object's namespace."""

    name: ObjectName = Field(description="Name of the QdrantConnection.")
    namespace: NamespaceName | None = Field(
        default=None,
        description="Namespace of the QdrantConnection. Another namespace works only if the connection's"
        " spec.namespaces allows it. Default: the object's namespace.",
    )


EventType = Annotated[
    str, Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$", description="An event type.")
]


RequiredField = Annotated[
    Literal[
        "event_type",
        "context",
        "domain",
        "key",
        "subject",
        "status_value",
        "session_id",
        "source",
        "category",
        "knowledge_category",
    ],
    Field(description="Name of a field."),
]


class TypeSpec(Model):
    """A type of memory."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.TYPE))

    name: Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$")] = Field(
        description="Name of the type, stored with each memory: lower-case letters, digits, single - or _; at most"
        " 48 characters."
    )
    meaning: Annotated[str, Field(max_length=300)] | None = Field(
        default=None,
        description="Guidance for the user or model that chooses a type: how to recognise memories of this type; at"
        " most 300 characters. Default: none.",
    )
    half_life_days: float | None = Field(
        default=None,
        ge=0.001,
        le=36_500,
        description="Days until a memory's recency halves, 0.001..36500. Changes apply to the next search.",
    )
    decay: bool | None = Field(
        default=None, description="Whether recency decreases with age; false keeps it at 1. Default: true."
    )
    boost: float | None = Field(
        default=None,
        ge=0.01,
        le=10,
        description="Factor applied to the combined score of this type, 0.01..10. Default: 1.",
    )
    confidence: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Confidence of memories that are stored without one, 0..1. Applies to the next write. Default:"
        " none; a missing confidence counts as 1.",
    )
    supersede_by: Literal["none", "key", "subject"] | None = Field(
        default=None,
        description="How memories of this type supersede each other. key or subject: the newest with the same user"
        " and key (subject) supersedes the previous one of any author. none: a memory supersedes only the memory that"
        " it names. Default: none.",
    )
    immutable: bool | None = Field(
        default=None,
        description="Whether memories of this type are immutable: they cannot be superseded or changed, do not expire"
        " unless the type has a ttl, and deleting one needs the admin verb. Erasing a user removes them too."
        " Default: false.",
    )
    event_types: tuple[EventType, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=32,
        description="Allowed values of event_type, 1..32. A memory without event_type is refused only if required"
        " lists that field. Applies to the next write. Default: any value.",
        json_schema_extra=set_list(),
    )
    required: tuple[RequiredField, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=10,
        description="API field names that a memory of this type must have, 1..10. Applies to the next write, but"
        " not to items, working memories and imports. Default: none.",
        json_schema_extra=set_list(),
    )
    ttl: TtlSpec | None = Field(default=None, description="Time to live of this type's memories. Default: unlimited.")


class AgentMemorySpec(Model):
    """Desired state of an agent's long-term memory."""

    agent: Annotated[str, Field(max_length=MAX_SLUG_CHARS)] | None = Field(
        default=None,
        description="Name of the agent in the API, unique in the installation: lower-case letters, digits and"
        " single hyphens, at most 48 characters. It names the collection (agent_memory_NAME) and cannot change."
        " Default: metadata.name.",
    )
    connection_ref: ConnectionRef = Field(description="QdrantConnection of the server that stores the memories.")
    preset: Literal["standard", "cortex", "brain", "keyed", "cognitive", "importance", "none"] | None = Field(
        default=None,
        description="Design that provides all settings not given here (docs/presets.md); none accepts any memory"
        " type and ranks by similarity only. Changing it may require a Rebuild or a reindex. Default: standard; for"
        " an existing collection, the preset recorded with it.",
    )
    embedding: Embedding | None = Field(
        default=None,
        description="Conversion of texts to vectors. Default: the operator's setting AGENTMEMORY_DEFAULT_EMBEDDING"
        " (with the chart bge-small-en-v1.5) when the collection is created, which keeps it; offline, no key.",
    )
    index: Index | None = Field(default=None, description="Layout and tuning of the collection. Default: the preset's.")
    types: tuple[TypeSpec, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="Memory types, 1..64, unique by name. Replaces the preset's list. Default: the preset's.",
        json_schema_extra=list_map_keys("name"),
    )
    scoring: ScoringSpec | None = Field(
        default=None, description="Ranking of search results. Changes apply to the next search. Default: the preset's."
    )
    lifecycle: LifecycleSpec | None = Field(
        default=None, description="Retention, expiry and cleanup of memories. Default: the preset's."
    )
    items: ItemsSpec | None = Field(
        default=None, description="Settings of items, which are memories with keys. Default: see its fields."
    )
    snapshots: SnapshotsSpec | None = Field(
        default=None, description="Schedule and retention of snapshots. Default: no snapshots."
    )
    bootstrap: Bootstrap | None = Field(
        default=None, description="Initial contents, if no collection exists. Default: an empty collection."
    )
    access: Access | None = Field(
        default=None, description="Callers that may use this agent. Default: none, if the API checks ServiceAccounts."
    )
    webhooks: tuple[Webhook, ...] | None = Field(
        default=None,
        strict=False,
        max_length=8,
        description="URLs that receive events about memories, at most 8, unique by name (docs/webhooks.md)."
        " Default: none.",
        json_schema_extra=list_map_keys("name"),
    )
    hooks: tuple[Hook, ...] | None = Field(
        default=None,
        strict=False,
        max_length=8,
        description="API paths that accept signed memories, at most 8, unique by name (docs/webhooks.md). Default:"
        " none.",
        json_schema_extra=list_map_keys("name"),
    )
    zones: ZonesSpec | None = Field(
        default=None,
        description="Privacy zones of memories (docs/zones.md). Default: none; memories with a zone are refused. If"
        " removed, memories with a zone stay stored but cannot be read.",
    )
    consolidation: ConsolidationSpec | None = Field(
        default=None, description="Use of a language model on memories (docs/distillation.md). Default: none."
    )
    entities: EntitiesSpec | None = Field(
        default=None,
        description="Detection of names in memories (docs/entities.md). Default: on with the preset brain, else off.",
    )
    suspend: bool | None = Field(
        default=None,
        description="Whether the operator leaves the collection unchanged. The API continues to serve. An object"
        " deleted while suspended keeps its collection. Default: false.",
    )
    change_policy: ChangePolicyName | None = Field(
        default=None,
        description="Handling of changes that require a new collection (a Rebuild): Apply makes them,"
        f" RequireApproval waits for the annotation {APPROVE_PLAN}: DIGEST (agentmemory approve NAME), Never does"
        " not make them, even if approved. Default: RequireApproval.",
    )
    keep_previous_hours: Annotated[int, Field(ge=0, le=8760)] | None = Field(
        default=None,
        description="Hours to keep the collection that a Rebuild replaced, for a rollback, 0..8760. Default: 24.",
    )
    rebuild: RebuildSpec | None = Field(default=None, description="Limits of a Rebuild. Default: see its fields.")
    drift_policy: Literal["Correct", "Report", "Ignore"] | None = Field(
        default=None,
        description="How to handle changes made to the collection directly in Qdrant: Correct reverts them, Report"
        " keeps and lists them in status.drift, Ignore keeps them. Default: Correct.",
    )
    deletion_policy: Literal["Retain", "Snapshot", "Delete"] | None = Field(
        default=None,
        description="How to handle the collection when this object is deleted: Retain keeps it, Snapshot removes it"
        f" after a last verified snapshot, Delete removes a non-empty one only with the annotation {CONFIRM_DELETE}:"
        " ALIAS. Default: Retain.",
    )


class Metadata(BaseModel):
    """Metadata of an object, reduced to the fields that the operator reads.

    Times are RFC 3339. `deletion_timestamp` is None until the object is deleted.
    """

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
    """A parsed AgentMemory. `status` is not validated."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: AgentMemorySpec
    status: dict[str, Any] = Field(default_factory=dict)

    @property
    def slug(self) -> str:
        """Name of the agent, unique in the installation: `spec.agent`, else the object's name."""
        return self.spec.agent or self.metadata.name

    @property
    def reported_physical(self) -> str | None:
        """Collection that the status names, or None. Only a hint, because tenants can write statuses."""
        physical: str | None = (self.status.get("collection") or {}).get("physical")
        return physical


class MemorySnapshot(BaseModel):
    """A parsed MemorySnapshot. `status` is not validated."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: MemorySnapshotSpec
    status: dict[str, Any] = Field(default_factory=dict)


class MemoryRestore(BaseModel):
    """A parsed MemoryRestore. `status` is not validated."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: MemoryRestoreSpec
    status: dict[str, Any] = Field(default_factory=dict)
