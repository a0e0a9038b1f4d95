"""The kind QdrantConnection: a server, how it is reached, and who may use how much of it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.base import HostName, Model, SecretKeyRef
from agentmemory_operator.spec.kinds.cel import connection as rules
from agentmemory_operator.spec.kinds.cel.agent_memory import SLUG_MAX_LENGTH
from agentmemory_operator.spec.kinds.schema import distinct, is_url, validated, words_or_object

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
_LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)

QdrantUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validated(is_url("url", "http://qdrant.qdrant.svc:6333")))
]
NodeUrl = Annotated[
    str,
    Field(
        max_length=512,
        description="Base URL of one node.",
        json_schema_extra=validated(is_url("nodes", "http://qdrant-0.qdrant.svc:6333")),
    ),
]


class Tls(Model):
    """How the server shows who it is."""

    ca_secret_ref: SecretKeyRef = Field(
        description="Certificates (PEM) of the authorities that may vouch for the server, and no others."
    )


LabelText = Annotated[str, Field(max_length=MAX_LABEL_LENGTH)]
LabelValue = Annotated[LabelText, Field(description="One value.")]
Labels = Annotated[dict[str, LabelText], Field(min_length=1, max_length=MAX_LABELS)]


class LabelRequirement(Model):
    """What one label of a namespace must be."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.LABEL_REQUIREMENT))

    key: Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)] = Field(
        description="The label, as kubernetes.io/metadata.name, which is each namespace's name."
    )
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="In: it has one of values; NotIn: it has none of them, or is not there; Exists; DoesNotExist."
    )
    values: tuple[LabelValue, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="What In and NotIn compare with, 1..64; the others take none.",
    )


class NamespaceSelector(Model):
    """Namespaces that meet all of some requirements on their labels."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.NAMESPACE_SELECTOR))

    match_labels: Labels | None = Field(
        default=None, description="Labels that a namespace must have, each with its value; 1..64."
    )
    match_expressions: tuple[LabelRequirement, ...] | None = Field(
        default=None, strict=False, min_length=1, max_length=16, description="More that its labels must meet; 1..16."
    )


class AllowedNamespaces(Model):
    """Which namespaces may use something."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.ALLOWED_NAMESPACES))

    from_: Literal["Same", "All", "Selector"] = Field(
        alias="from", description="Same: its own namespace; All: every one; Selector: its own, and those of selector."
    )
    selector: NamespaceSelector | None = Field(default=None, description="Which ones, by their labels.")


class LabelsAlone(Model):
    """The selector of `allowedNamespaces`."""

    match_labels: Labels


MATCH_LABELS: JsonDict = {
    "matchLabels": {
        "description": "Labels that the namespace must have, each with its value; 1..64.",
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_LABELS,
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_LENGTH},
    }
}


class Takeover(Model):
    """Memories that may change their owner."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.TAKEOVER))

    agent: Annotated[str, Field(min_length=1, max_length=SLUG_MAX_LENGTH)] | None = Field(
        default=None, description="The agent whose memories are given away."
    )
    from_uid: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="uid of the AgentMemory that held them, as status.takeoverRequests shows it."
    )
    to_namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None, description="Namespace whose AgentMemory of that agent gets them."
    )
    from_cluster_id: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="uid of kube-system in another cluster: each AgentMemory gets what the one of its namespace and"
        " name had there.",
    )


class CapacitySpec(Model):
    """How much of the server may be used."""

    max_memory_maps: int | None = Field(
        default=None,
        ge=1_000,
        le=2_147_483_647,
        description="Memory maps that Qdrant's process may have (vm.max_map_count of its node), 1000..2147483647. Where"
        " the server tells it too, the smaller one counts. Default: what the server tells.",
    )
    max_collections_per_namespace: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Collections that the agents of one namespace may have on this server, 1..100000: those of deleted"
        " agents, replaced ones and placeholders count too. At that number no new agent gets one. Default: any.",
    )


class QdrantConnectionSpec(Model):
    """A Qdrant server or cluster."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.CONNECTION))

    url: QdrantUrl = Field(description="Base URL of Qdrant's REST API, for example http://qdrant.qdrant.svc:6333.")
    nodes: tuple[NodeUrl, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        max_length=64,
        description="Base URL of each node of a cluster, under its own name: snapshots are made node by node. Without,"
        " a cluster has none. Default: the server is alone.",
    )
    api_key_secret_ref: SecretKeyRef | None = Field(default=None, description="The API key. Default: none is sent.")
    timeout_seconds: int | None = Field(
        default=None, ge=1, le=300, description="Seconds until a request to Qdrant is given up, 1..300. Default: 10."
    )
    tls: Tls | None = Field(
        default=None, description="The authorities that sign the certificate of an https server. Default: the system's."
    )
    restore_sources: tuple[HostName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=32,
        description="Hosts that a MemoryRestore by url may name, as backups.example.com or backups.example.com:8443;"
        " without a port it is 443; at most 32. The operator fetches from them. Default: none.",
        json_schema_extra=distinct(),
    )
    namespaces: AllowedNamespaces | None = Field(
        default=None,
        description="From which other namespaces AgentMemories may refer to this connection. Its Secrets are read in"
        " its own namespace only. Default: from Same, which is none.",
    )
    allowed_namespaces: Literal["Same", "All"] | LabelsAlone | None = Field(
        default=None,
        description="Deprecated: the next version does not read it. Give namespaces instead, never both; `agentmemory"
        " validate` prints what to write. Same, All, or matchLabels.",
        json_schema_extra=words_or_object(("Same", "All"), MATCH_LABELS),
    )
    capacity: CapacitySpec | None = Field(
        default=None, description="How much of the server may be used. Default: what it tells of itself."
    )
    takeovers: tuple[Takeover, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="Memories on this server that another namespace, or the objects of a rebuilt cluster, may take"
        " over; at most 64. status.takeoverRequests shows who asks. Default: none.",
    )


class QdrantConnection(BaseModel):
    """A parsed QdrantConnection."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: QdrantConnectionSpec
    status: dict[str, Any] = Field(default_factory=dict)
