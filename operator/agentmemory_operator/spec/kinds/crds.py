"""Definitions of the kinds (names, printer columns, schemas), and the CRDs that are generated from them.

Editors get a JSON Schema: the structural schemas without the extensions of Kubernetes. JSON Schema cannot express CEL
rules; `agentmemory validate` applies them to files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, GROUP, VERSION
from agentmemory_operator.spec.kinds.documents import (
    AgentMemoryDocument,
    MemoryRestoreDocument,
    MemorySnapshotDocument,
    QdrantConnectionDocument,
)
from agentmemory_operator.spec.kinds.schema import INT_OR_STRING, Schema, structural_schema
from agentmemory_operator.spec.kinds.status_agent_memory import AgentMemoryStatus
from agentmemory_operator.spec.kinds.status_connection import QdrantConnectionStatus
from agentmemory_operator.spec.kinds.status_snapshot import MemoryRestoreStatus, MemorySnapshotStatus

DIALECT = "https://json-schema.org/draft/2020-12/schema"
METADATA: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}},
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`. A wide one is printed only with `-o wide`."""

    name: str
    type: str
    json_path: str
    description: str
    is_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KindDefinition:
    """Names, models and printer columns of one kind. Its CRD is generated from them."""

    name: str
    plural: str
    short_name: str
    description: str
    document: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]


def _wide(name: str, type_: str, json_path: str, description: str) -> Column:
    return Column(name, type_, json_path, description, is_wide=True)


_READY = '.status.conditions[?(@.type=="Ready")].status'
_IN_SYNC = '.status.conditions[?(@.type=="InSync")].status'
# Prints the most important false condition: a column prints the first match, and conditions are ordered so.
_NOT_SO = '.status.conditions[?(@.status=="False")].reason'
_READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'
_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since creation.")

AGENT_MEMORY = KindDefinition(
    name="AgentMemory",
    plural="agentmemories",
    short_name="amem",
    description="Long-term memory of one agent: a tuned Qdrant collection, and how search results are ranked.",
    document=AgentMemoryDocument,
    status=AgentMemoryStatus,
    columns=(
        Column("Ready", "string", _READY, "Whether the collection serves requests."),
        Column("Synced", "string", _IN_SYNC, "Whether the collection matches the object."),
        Column("Reason", "string", _NOT_SO, "Reason of the first condition that is False."),
        Column("Memories", "integer", ".status.collection.memories", "Number of memories at the last pass."),
        Column("Last-Snapshot", "date", ".status.lastSnapshot.time", "Time since the last snapshot."),
        _AGE,
        _wide("Agent", "string", ".status.agent", "Name of the agent in the API."),
        _wide("Preset", "string", ".status.effective.preset", "Preset in force."),
        _wide("Alias", "string", ".status.collection.alias", "Stable name of the collection."),
        _wide("Physical", "string", ".status.collection.physical", "Collection that the alias points at."),
        _wide("State", "string", ".status.collection.state", "Qdrant's state of the collection."),
        _wide("Drift", "integer", ".status.driftCount", "Changes made directly in Qdrant that are kept."),
        _wide("Generation", "integer", ".status.observedGeneration", "Last generation that the operator acted on."),
    ),
)

QDRANT_CONNECTION = KindDefinition(
    name="QdrantConnection",
    plural="qdrantconnections",
    short_name="qconn",
    description="A Qdrant server or cluster, and how to reach it.",
    document=QdrantConnectionDocument,
    status=QdrantConnectionStatus,
    columns=(
        Column("URL", "string", ".spec.url", "Base URL of the REST API."),
        Column("Ready", "string", _READY, "Whether the server answers and its version is supported."),
        Column("Version", "string", ".status.version", "Qdrant version."),
        Column("Peers", "integer", ".status.peers", "Nodes of the cluster."),
        _AGE,
        _wide("Reason", "string", _READY_REASON, "Reason of the condition Ready."),
        _wide("Capabilities", "string", ".status.capabilities", "Features that the server supports."),
    ),
)

_SUCCEEDED = '.status.conditions[?(@.type=="Succeeded")].status'
_REASON = '.status.conditions[?(@.type=="Succeeded")].reason'
_VERIFIED = '.status.conditions[?(@.type=="Verified")].status'

MEMORY_SNAPSHOT = KindDefinition(
    name="MemorySnapshot",
    plural="memorysnapshots",
    short_name="msnap",
    description="One verified snapshot of one agent's memory.",
    document=MemorySnapshotDocument,
    status=MemorySnapshotStatus,
    columns=(
        Column("Agent-Memory", "string", ".spec.agentMemoryRef.name", "AgentMemory of the snapshot."),
        Column("Succeeded", "string", _SUCCEEDED, "Whether the snapshot was made."),
        Column("Verified", "string", _VERIFIED, "Whether the snapshot is verified."),
        Column("Points", "integer", ".status.points.after", "Number of points in the snapshot."),
        Column("Bytes", "integer", ".status.sizeBytes", "Size of the file in bytes."),
        _AGE,
        _wide("Reason", "string", _REASON, "Reason of the condition Succeeded."),
        _wide("Progress", "string", ".status.progress", "Current step."),
        _wide("Qdrant", "string", ".status.qdrantVersion", "Qdrant version of the server that made it."),
        _wide("File", "string", ".status.name", "File name in Qdrant."),
    ),
)

MEMORY_RESTORE = KindDefinition(
    name="MemoryRestore",
    plural="memoryrestores",
    short_name="mrest",
    description="One restore of one agent's memory.",
    document=MemoryRestoreDocument,
    status=MemoryRestoreStatus,
    columns=(
        Column("Target", "string", ".spec.target.name", "AgentMemory whose memories are replaced."),
        Column("Snapshot", "string", ".spec.source.snapshotRef.name", "MemorySnapshot that is restored."),
        Column("Succeeded", "string", _SUCCEEDED, "Whether the restore succeeded."),
        Column("Progress", "string", ".status.progress", "Current step."),
        _AGE,
        _wide("Reason", "string", _REASON, "Reason of the condition Succeeded."),
        _wide("Mode", "string", ".spec.mode", "Swap or InPlace."),
        _wide("Previous", "string", ".status.previousCollection.physical", "Collection that was replaced."),
    ),
)

KINDS = (AGENT_MEMORY, QDRANT_CONNECTION, MEMORY_SNAPSHOT, MEMORY_RESTORE)


def object_schema(kind: KindDefinition) -> Schema:
    """Return the schema of a whole object. Metadata is only an object in it: the API server itself validates that."""
    schema = structural_schema(kind.document)
    properties = {
        "apiVersion": {"description": API_VERSION, "type": "string"},
        "kind": {"description": kind.name, "type": "string"},
        "metadata": {"type": "object"},
        "spec": schema["properties"]["spec"],
        "status": structural_schema(kind.status),
    }
    return schema | {"description": kind.description, "required": ["spec"], "properties": properties}


def render_crd(kind: KindDefinition) -> dict[str, Any]:
    """Render the CustomResourceDefinition of a kind, with one version, which is served and stored."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _rendered_columns(kind.columns),
        "schema": {"openAPIV3Schema": object_schema(kind)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": _rendered_names(kind), "scope": "Namespaced", "versions": [version]},
    }


def _rendered_names(kind: KindDefinition) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": [kind.short_name],
        "categories": ["memory"],
    }


def _rendered_columns(columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "jsonPath": column.json_path,
            "description": column.description,
            **({"priority": 1} if column.is_wide else {}),
        }
        for column in columns
    ]


def editor_schema() -> dict[str, Any]:
    """Return one JSON Schema that validates a document of any of the kinds. Documents of other kinds pass."""
    cases = [{"if": _is(kind), "then": _kind_schema(kind)} for kind in KINDS]
    return {"$schema": DIALECT, "title": f"Kinds of {GROUP}", "type": "object", "allOf": cases}


def _is(kind: KindDefinition) -> Schema:
    group = {"type": "string", "pattern": f"^{GROUP.replace('.', '[.]')}/"}
    return {"required": ["apiVersion", "kind"], "properties": {"apiVersion": group, "kind": {"const": kind.name}}}


def _kind_schema(kind: KindDefinition) -> Schema:
    schema = object_schema(kind)
    fields = schema["properties"] | {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind.name}}
    closed = closed_schema(schema | {"properties": fields})
    required = ["apiVersion", "kind", "metadata", "spec"]
    return closed | {"required": required, "properties": closed["properties"] | {"metadata": METADATA}}


def closed_schema(node: Schema) -> Schema:
    """Convert a node of a structural schema, with those below it, to JSON Schema that rejects unknown fields."""
    schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get(INT_OR_STRING):
        schema["type"] = ["integer", "string"]
    if "properties" in node:
        schema["properties"] = {name: closed_schema(child) for name, child in node["properties"].items()}
        schema["additionalProperties"] = False
    elif isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = closed_schema(node["additionalProperties"])
    if "items" in node:
        schema["items"] = closed_schema(node["items"])
    return schema
