"""The kind QdrantConnection: a server, how it is reached, and who may use how much of it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from agentmemory_operator.spec.kinds import cel as rules
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.base import HostName, Model, SecretKeyRef
from agentmemory_operator.spec.kinds.cel import SLUG_MAX_LENGTH
from agentmemory_operator.spec.kinds.schema import distinct, validated, words_or_object

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63

QdrantUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validated(rules.is_url("url", "http://qdrant.qdrant.svc:6333")))
]
NodeUrl = Annotated[
    str,
    Field(
        max_length=512,
        description="Base URL of one node.",
        json_schema_extra=validated(rules.is_url("nodes", "http://qdrant-0.qdrant.svc:6333")),
    ),
]


class Tls(Model):
    """How the server shows who it is."""

    ca_secret_ref: SecretKeyRef = Field(
        description="Certificates (PEM) of the authorities that may vouch for the server, and no others."
    )


class NamespaceSelector(Model):
    """Namespaces that have all of some labels."""

    match_labels: Annotated[
        dict[str, Annotated[str, Field(max_length=MAX_LABEL_LENGTH)]], Field(min_length=1, max_length=MAX_LABELS)
    ]


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

    url: QdrantUrl = Field(description="Base URL of Qdrant's REST API, as http://qdrant.qdrant.svc:6333.")
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
        default=None, description="Whom an https server has to be vouched for by. Default: the system's authorities."
    )
    restore_sources: tuple[HostName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=32,
        description="Hosts that a MemoryRestore by url may name, as backups.example.com or backups.example.com:8443;"
        " without a port it is 443; at most 32. The operator fetches from them. Default: none.",
        json_schema_extra=distinct(),
    )
    allowed_namespaces: Literal["Same", "All"] | NamespaceSelector | None = Field(
        default=None,
        description="From which other namespaces AgentMemories may refer to this connection: Same (none), All, or"
        " those with all of matchLabels. Its Secrets are read in its own namespace only. Default: Same.",
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
