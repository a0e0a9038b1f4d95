"""The kind QdrantConnection: a server, the access to it, and its use by namespaces."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.cel import other_kinds as rules
from agentmemory_operator.spec.kinds.cel.agent_memory import MAX_SLUG_CHARS
from agentmemory_operator.spec.kinds.model_base import HostName, Model, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import set_list, url_rule, validation_rules

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
_LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)

QdrantUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validation_rules(url_rule("url", "http://qdrant.qdrant.svc:6333")))
]
NodeUrl = Annotated[
    str,
    Field(
        max_length=512,
        description="Base URL of a node.",
        json_schema_extra=validation_rules(url_rule("nodes", "http://qdrant-0.qdrant.svc:6333")),
    ),
]


class Tls(Model):
    """Verification of the server's certificate."""

    ca_secret_ref: SecretKeyRef = Field(
        description="CA certificates (PEM) used to verify the server; no others are trusted."
    )


LabelText = Annotated[str, Field(max_length=MAX_LABEL_LENGTH)]
LabelValue = Annotated[LabelText, Field(description="A label value.")]
Labels = Annotated[dict[str, LabelText], Field(min_length=1, max_length=MAX_LABELS)]


class LabelRequirement(Model):
    """A requirement on a label of a namespace."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.LABEL_REQUIREMENT))

    key: Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)] = Field(
        description="Label key, for example kubernetes.io/metadata.name, the namespace's name."
    )
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="In: the label has one of values; NotIn: it has none of them, or is absent; Exists: the label is"
        " present; DoesNotExist: it is absent."
    )
    values: tuple[LabelValue, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="Values for In and NotIn, 1..64; not allowed with Exists and DoesNotExist.",
    )


class NamespaceSelector(Model):
    """Selects namespaces whose labels meet all requirements."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.NAMESPACE_SELECTOR))

    match_labels: Labels | None = Field(
        default=None, description="Labels that a namespace must have, with their values; 1..64."
    )
    match_expressions: tuple[LabelRequirement, ...] | None = Field(
        default=None, strict=False, min_length=1, max_length=16, description="Further label requirements; 1..16."
    )


class AllowedNamespaces(Model):
    """Namespaces that may use the object."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.ALLOWED_NAMESPACES))

    from_: Literal["Same", "All", "Selector"] = Field(
        alias="from",
        description="Namespaces that may use the connection: Same for only its own, All for every one, Selector for"
        " its own and those that match selector.",
    )
    selector: NamespaceSelector | None = Field(
        default=None, description="Labels of the namespaces; only with Selector."
    )


class Takeover(Model):
    """Memories that may be transferred to another owner."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.TAKEOVER))

    agent: Annotated[str, Field(min_length=1, max_length=MAX_SLUG_CHARS)] | None = Field(
        default=None, description="Agent whose memories are transferred."
    )
    from_uid: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="uid of the AgentMemory that owned them, from status.takeoverRequests."
    )
    to_namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="Namespace of the AgentMemory that receives them."
    )
    from_cluster_id: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="uid of the kube-system namespace in another cluster. Each AgentMemory here receives the memories"
        " of the one with the same namespace and name there.",
    )


class CapacitySpec(Model):
    """Limits on the use of the server."""

    max_memory_maps: int | None = Field(
        default=None,
        ge=1_000,
        le=2_147_483_647,
        description="Memory maps that the Qdrant process may have (vm.max_map_count of its node), 1000..2147483647."
        " If the server reports a limit too, the smaller one applies. Default: the reported limit.",
    )
    max_collections_per_namespace: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Maximum collections on this server for the agents of one namespace, 1..100000, including those"
        " of deleted agents, replaced ones and placeholders. At the limit, new agents get no collection. Default:"
        " unlimited.",
    )


class QdrantConnectionSpec(Model):
    """A Qdrant server or cluster."""

    model_config = ConfigDict(json_schema_extra=validation_rules(rules.CONNECTION))

    url: QdrantUrl = Field(description="Base URL of Qdrant's REST API, for example http://qdrant.qdrant.svc:6333.")
    nodes: tuple[NodeUrl, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="Base URL of each node of a Qdrant cluster, 1..64. Snapshots of a cluster require them, because"
        " each node creates its own. Default: none, for a single server.",
    )
    api_key_secret_ref: SecretKeyRef | None = Field(default=None, description="API key. Default: none is sent.")
    timeout_seconds: int | None = Field(
        default=None, ge=1, le=300, description="Timeout of requests to Qdrant in seconds, 1..300. Default: 10."
    )
    tls: Tls | None = Field(
        default=None, description="CA certificates used to verify an https server. Default: the system's."
    )
    restore_sources: tuple[HostName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=32,
        description="Hosts from which a MemoryRestore may download by url, for example backups.example.com or"
        " backups.example.com:8443 (default port 443); at most 32. The operator connects to them. Default: none.",
        json_schema_extra=set_list(),
    )
    namespaces: AllowedNamespaces | None = Field(
        default=None,
        description="Other namespaces whose AgentMemories may use this connection. Its Secrets are only read from"
        " its own namespace. Default: none (from: Same).",
    )
    capacity: CapacitySpec | None = Field(
        default=None, description="Limits on the use of the server. Default: those that it reports."
    )
    takeovers: tuple[Takeover, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="Memories on this server that another namespace, or the objects of a rebuilt cluster, may take"
        " over; at most 64. status.takeoverRequests lists the requests. Default: none.",
    )


class QdrantConnection(BaseModel):
    """A parsed QdrantConnection. `status` is not validated."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: QdrantConnectionSpec
    status: dict[str, Any] = Field(default_factory=dict)
