"""The kinds of `agentmemory.dev/v1alpha1`: the one source of `crds/*.yaml` and of every check on a manifest.

QdrantConnection lies in `connection`, the larger blocks of a spec in `spec_*`, `lifecycle` and `rebuild`.

A field stands here only when something acts on it. A field that a preset decides has no default here: a persisted
default would override the preset. The CEL rules beside the fields run in the API server and in `parse`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from agentmemory_operator.spec.access import SCOPE_PATTERN
from agentmemory_operator.spec.kinds.base import Model, NamespaceName, ObjectName
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.cel.agent_memory import SLUG_MAX_LENGTH
from agentmemory_operator.spec.kinds.lifecycle import ItemsSpec, LifecycleSpec, TtlSpec
from agentmemory_operator.spec.kinds.rebuild import ChangePolicyName, RebuildSpec
from agentmemory_operator.spec.kinds.schema import distinct, keyed_by, validated
from agentmemory_operator.spec.kinds.spec_consolidation import ConsolidationSpec
from agentmemory_operator.spec.kinds.spec_embedding import Embedding
from agentmemory_operator.spec.kinds.spec_entities import EntitiesSpec
from agentmemory_operator.spec.kinds.spec_index import Index
from agentmemory_operator.spec.kinds.spec_restore import Bootstrap, MemoryRestoreSpec
from agentmemory_operator.spec.kinds.spec_scoring import ScoringSpec
from agentmemory_operator.spec.kinds.spec_snapshot import MemorySnapshotSpec, SnapshotsSpec
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
ScopeName = Annotated[str, Field(min_length=1, max_length=69, pattern=SCOPE_PATTERN, description="One shared scope.")]
UserName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
        description="One user.",
        json_schema_extra=validated(rules.NO_SCOPE),
    ),
]
VerbName = Annotated[
    Literal["read", "write", "admin", "impersonate", "delegate"], Field(description="One thing that it may do.")
]


class AccessSubject(Model):
    """Somebody who may call the API for this agent."""

    kind: Literal["ServiceAccount"] = Field(description="What it is: a ServiceAccount.")
    namespace: NamespaceName = Field(description="Its namespace.")
    name: ObjectName = Field(description="Its name.")
    verbs: tuple[VerbName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=5,
        description="What it may do, each verb by itself: read (get, list, search), write (store, delete one), admin"
        " (what destroys many memories at once, and who has some), impersonate (name another author than itself),"
        " delegate (mint user tokens).",
        json_schema_extra=distinct(),
    )
    scopes: tuple[ScopeName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="The shared scopes that its verbs hold for, beside users' own memories: global, group:NAME;"
        " at most 64. Default: none.",
        json_schema_extra=distinct(),
    )
    users: tuple[UserName, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="The users whose memories its verbs hold for, 1..64; a request in another user's name is refused."
        " Default: every user.",
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
        description="Its namespace; another one only where the connection's namespaces takes this object's."
        " Default: the object's own.",
    )


EventType = Annotated[
    str,
    Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$", description="One kind of event."),
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
    Field(description="One field of a memory."),
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
        default=None,
        description="true: a memory of this type can be neither superseded nor changed, and deleting one needs the verb"
        " admin; it is forgotten with its user. Default: false.",
    )
    event_types: tuple[EventType, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=32,
        description="What event_type of a memory of this type may be, 1..32 words; one without is refused only where"
        " required names the field. Acts on the next write. Default: anything.",
        json_schema_extra=distinct(),
    )
    required: tuple[RequiredField, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=10,
        description="Fields, by the API's names, that a memory of this type is refused without, 1..10. Acts on the next"
        " write; items, working memories and imports need none. Default: none.",
        json_schema_extra=distinct(),
    )
    ttl: TtlSpec | None = Field(default=None, description="How long memories of this type answer. Default: for ever.")


class AgentMemorySpec(Model):
    """One agent's long-term memory."""

    agent: Annotated[str, Field(max_length=SLUG_MAX_LENGTH)] | None = Field(
        default=None,
        description="The agent's name in the API, unique in the installation: lower-case letters, digits and single"
        " hyphens, at most 48. It names the collection (agent_memory_NAME) and cannot change. Default: metadata.name.",
    )
    connection_ref: ConnectionRef = Field(description="The Qdrant server: a QdrantConnection.")
    preset: Literal["standard", "cortex", "brain", "keyed", "cognitive", "importance", "none"] | None = Field(
        default=None,
        description="The design whose figures hold where this object gives none (docs/presets.md); none is any type of"
        " memory, ranked by similarity alone. Another one may ask for a Rebuild or a reindex. Default: standard; of an"
        " object whose collection exists, what that has on record.",
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
    items: ItemsSpec | None = Field(
        default=None, description="What holds for items, which are memories under keys. Default: see its fields."
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
    hooks: tuple[Hook, ...] | None = Field(
        default=None,
        strict=False,
        max_length=8,
        description="Paths of the API that take signed memories, at most 8, each name once (docs/webhooks.md)."
        " Default: none.",
        json_schema_extra=keyed_by("name"),
    )
    zones: ZonesSpec | None = Field(
        default=None,
        description="Privacy zones of memories (docs/zones.md). Default: none, and a memory with a zone is refused."
        " Removed, memories with a zone stay as they are, and cannot be read.",
    )
    consolidation: ConsolidationSpec | None = Field(
        default=None, description="What a language model makes of memories (docs/distillation.md). Default: nothing."
    )
    entities: EntitiesSpec | None = Field(
        default=None,
        description="Names that memories speak of (docs/entities.md). Default: found with the preset brain, else not.",
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
