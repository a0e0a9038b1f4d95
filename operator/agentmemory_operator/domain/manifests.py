"""Manifests as they come, to parsed objects: as strict as admission, and every error at once.

Whatever JSON comes in, the answer is an object or SpecInvalid.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from agentmemory_operator.domain.admission import problems_of
from agentmemory_operator.domain.documents import (
    AgentMemoryDocument,
    MemoryRestoreDocument,
    MemorySnapshotDocument,
    ObjectMeta,
    QdrantConnectionDocument,
)
from agentmemory_operator.domain.model import Model
from agentmemory_operator.domain.resources import (
    GROUP,
    AgentMemory,
    MemoryRestore,
    MemorySnapshot,
    Metadata,
    QdrantConnection,
)
from agentmemory_operator.domain.schema import plain, structural
from agentmemory_operator.errors import FieldError, SpecInvalid

_MAX_TOLD = 20

_Document = TypeVar("_Document", bound=Model)
_schema_of = cache(structural)
_DOCUMENTS: dict[str, type[Model]] = {
    "AgentMemory": AgentMemoryDocument,
    "QdrantConnection": QdrantConnectionDocument,
    "MemorySnapshot": MemorySnapshotDocument,
    "MemoryRestore": MemoryRestoreDocument,
}


def parse_agent_memory(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> AgentMemory:
    """Return the AgentMemory that a document describes.

    Args:
        document: the whole object, from a manifest or from the API server.
        old: the object it replaces; with it, what may not change is checked too.

    Raises:
        SpecInvalid: `InvalidSpec`, naming every wrong field.
    """
    parsed = _parsed(AgentMemoryDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return AgentMemory.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_connection(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> QdrantConnection:
    """Return the QdrantConnection that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(QdrantConnectionDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return QdrantConnection.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_snapshot(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemorySnapshot:
    """Return the MemorySnapshot that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(MemorySnapshotDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemorySnapshot.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_restore(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemoryRestore:
    """Return the MemoryRestore that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(MemoryRestoreDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemoryRestore.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def errors_of(document: Mapping[str, Any]) -> list[FieldError]:
    """Return everything that admission would refuse in a document; a kind that is not ours has nothing to refuse."""
    model = _DOCUMENTS.get(str(document.get("kind")))
    if model is None or str(document.get("apiVersion", "")).partition("/")[0] != GROUP:
        return []
    schema = _schema_of(model)
    return problems_of(model, schema, plain(schema, document), old=None)[1]


def _parsed(model: type[_Document], document: object, old: object) -> _Document:
    schema = _schema_of(model)
    parsed, problems = problems_of(model, schema, plain(schema, document), old=plain(schema, old))
    if parsed is None or problems:
        raise SpecInvalid("InvalidSpec", _told(problems))
    return parsed


def _told(problems: list[FieldError]) -> str:
    """Return the problems as one message; text that is no valid Unicode is escaped."""
    told = "; ".join(map(str, problems[:_MAX_TOLD]))
    more = f"; and {len(problems) - _MAX_TOLD} more" if len(problems) > _MAX_TOLD else ""
    return (told + more).encode(errors="backslashreplace").decode()


def _metadata_of(meta: ObjectMeta) -> Metadata:
    return Metadata(
        name=meta.name,
        namespace=meta.namespace or "default",
        uid=meta.uid or "",
        generation=meta.generation or 1,
        creation_timestamp=meta.creation_timestamp or "",
        deletion_timestamp=meta.deletion_timestamp,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        finalizers=list(meta.finalizers or ()),
        resource_version=meta.resource_version or "",
    )


def _status_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status as it came; on creation the API server drops what stands there."""
    status = document.get("status")
    return dict(status) if isinstance(status, Mapping) else {}
