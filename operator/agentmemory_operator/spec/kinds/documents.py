"""Whole objects as they are written in manifests: envelope, metadata and spec."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.agent_memory import Access, AgentMemorySpec
from agentmemory_operator.spec.kinds.cel import agent_memory as rules
from agentmemory_operator.spec.kinds.connection import QdrantConnectionSpec
from agentmemory_operator.spec.kinds.model_base import Model, ObjectName
from agentmemory_operator.spec.kinds.schema import validation_rules
from agentmemory_operator.spec.kinds.spec_snapshot import MemoryRestoreSpec, MemorySnapshotSpec

Namespace = Annotated[str, Field(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")]


class ObjectMeta(Model):
    """Fields of Kubernetes' ObjectMeta, so that unknown fields and wrong types in metadata are rejected."""

    name: ObjectName
    generate_name: str | None = None
    namespace: Namespace | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    self_link: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = Field(default=None, strict=False)
    owner_references: Any = None
    managed_fields: Any = None


class KindDocument(Model):
    """Fields of all kinds. The API version equals `agent_memory.API_VERSION`."""

    api_version: Literal["agentmemory.dev/v1alpha1"]
    metadata: ObjectMeta
    status: Any = None


class AgentMemoryDocument(KindDocument):
    """A whole AgentMemory."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.AGENT_MEMORY))

    kind: Literal["AgentMemory"]
    spec: AgentMemorySpec


class _AccessSpec(Model):
    access: Access | None = None


class AccessDocument(Model):
    """The access part of an AgentMemory. It is parsed separately, so it applies even if other parts are invalid."""

    spec: _AccessSpec


class QdrantConnectionDocument(KindDocument):
    """A whole QdrantConnection."""

    kind: Literal["QdrantConnection"]
    spec: QdrantConnectionSpec


class MemorySnapshotDocument(KindDocument):
    """A whole MemorySnapshot."""

    kind: Literal["MemorySnapshot"]
    spec: MemorySnapshotSpec


class MemoryRestoreDocument(KindDocument):
    """A whole MemoryRestore."""

    kind: Literal["MemoryRestore"]
    spec: MemoryRestoreSpec
