"""The kinds as Kubernetes knows them: names, printer columns, schema; and the CRDs made of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentmemory_operator.domain.documents import (
    AgentMemoryDocument,
    MemoryRestoreDocument,
    MemorySnapshotDocument,
    QdrantConnectionDocument,
)
from agentmemory_operator.domain.resources import API_VERSION, GROUP, VERSION
from agentmemory_operator.domain.restore_status import MemoryRestoreStatus
from agentmemory_operator.domain.schema import Schema, structural
from agentmemory_operator.domain.snapshot_status import MemorySnapshotStatus
from agentmemory_operator.domain.status import AgentMemoryStatus, QdrantConnectionStatus


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; a wide one shows with `-o wide`."""

    name: str
    type: str
    json_path: str
    description: str
    is_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of the group."""

    name: str
    plural: str
    short_name: str
    description: str
    document: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]


_READY = '.status.conditions[?(@.type=="Ready")].status'
_READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'
_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Since it was created.")

AGENT_MEMORY = Kind(
    name="AgentMemory",
    plural="agentmemories",
    short_name="amem",
    description="One agent's long-term memory: a tuned Qdrant collection, and how search ranks what is in it.",
    document=AgentMemoryDocument,
    status=AgentMemoryStatus,
    columns=(
        Column("Agent", "string", ".status.agent", "The agent's name in the API."),
        Column("Preset", "string", ".status.effective.preset", "The preset in force."),
        Column("Ready", "string", _READY, "Whether it serves."),
        Column("Points", "integer", ".status.collection.points", "Points in the collection, approximately."),
        Column("Last-Snapshot", "date", ".status.lastSnapshot.time", "Since the last snapshot was made."),
        _AGE,
        Column("Alias", "string", ".status.collection.alias", "The collection's stable name.", is_wide=True),
        Column("Physical", "string", ".status.collection.physical", "The collection behind it.", is_wide=True),
        Column("State", "string", ".status.collection.state", "Qdrant's word for its state.", is_wide=True),
        Column("Drift", "integer", ".status.driftCount", "Changes past this object that stay.", is_wide=True),
        Column("Generation", "integer", ".status.observedGeneration", "Last generation acted on.", is_wide=True),
    ),
)

QDRANT_CONNECTION = Kind(
    name="QdrantConnection",
    plural="qdrantconnections",
    short_name="qconn",
    description="A Qdrant server or cluster, and how to reach it.",
    document=QdrantConnectionDocument,
    status=QdrantConnectionStatus,
    columns=(
        Column("URL", "string", ".spec.url", "Base URL of its REST API."),
        Column("Ready", "string", _READY, "Whether it answers and is recent enough."),
        Column("Version", "string", ".status.version", "Qdrant's version."),
        Column("Peers", "integer", ".status.peers", "Servers of the cluster."),
        _AGE,
        Column("Reason", "string", _READY_REASON, "Why it is ready or not.", is_wide=True),
        Column("Capabilities", "string", ".status.capabilities", "What the server can do.", is_wide=True),
    ),
)

_SUCCEEDED = '.status.conditions[?(@.type=="Succeeded")].status'
_REASON = '.status.conditions[?(@.type=="Succeeded")].reason'
_VERIFIED = '.status.conditions[?(@.type=="Verified")].status'

MEMORY_SNAPSHOT = Kind(
    name="MemorySnapshot",
    plural="memorysnapshots",
    short_name="msnap",
    description="One snapshot of one agent's memory, made once and proven.",
    document=MemorySnapshotDocument,
    status=MemorySnapshotStatus,
    columns=(
        Column("Agent-Memory", "string", ".spec.agentMemoryRef.name", "Whose snapshot it is."),
        Column("Succeeded", "string", _SUCCEEDED, "Whether it was made."),
        Column("Verified", "string", _VERIFIED, "Whether it was proven."),
        Column("Points", "integer", ".status.points.after", "Points of the collection."),
        Column("Bytes", "integer", ".status.sizeBytes", "Size of the file."),
        _AGE,
        Column("Reason", "string", _REASON, "Why it has succeeded or not.", is_wide=True),
        Column("Progress", "string", ".status.progress", "What it is at.", is_wide=True),
        Column("Qdrant", "string", ".status.qdrantVersion", "Version of the server that made it.", is_wide=True),
        Column("File", "string", ".status.name", "The file's name in Qdrant.", is_wide=True),
    ),
)

MEMORY_RESTORE = Kind(
    name="MemoryRestore",
    plural="memoryrestores",
    short_name="mrest",
    description="One restore of one agent's memory, made once.",
    document=MemoryRestoreDocument,
    status=MemoryRestoreStatus,
    columns=(
        Column("Target", "string", ".spec.target.name", "The agent whose memories are replaced."),
        Column("Snapshot", "string", ".spec.source.snapshotRef.name", "What is restored."),
        Column("Succeeded", "string", _SUCCEEDED, "Whether it was done."),
        Column("Progress", "string", ".status.progress", "What it is at."),
        _AGE,
        Column("Reason", "string", _REASON, "Why it has succeeded or not.", is_wide=True),
        Column("Mode", "string", ".spec.mode", "Swap or InPlace.", is_wide=True),
        Column("Previous", "string", ".status.previousCollection.physical", "What was replaced.", is_wide=True),
    ),
)

KINDS = (AGENT_MEMORY, QDRANT_CONNECTION, MEMORY_SNAPSHOT, MEMORY_RESTORE)


def object_schema(kind: Kind) -> Schema:
    """Return the schema of a whole object; of metadata a CRD says no more than that it is there."""
    schema = structural(kind.document)
    properties = {
        "apiVersion": {"description": API_VERSION, "type": "string"},
        "kind": {"description": kind.name, "type": "string"},
        "metadata": {"type": "object"},
        "spec": schema["properties"]["spec"],
        "status": structural(kind.status),
    }
    return schema | {"description": kind.description, "required": ["spec"], "properties": properties}


def render_crd(kind: Kind) -> dict[str, Any]:
    """Return the kind's CustomResourceDefinition."""
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


def _rendered_names(kind: Kind) -> dict[str, Any]:
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
