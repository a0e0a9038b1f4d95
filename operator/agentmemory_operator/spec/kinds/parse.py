"""Manifests as they come, to parsed objects: as strict as admission and the figures of the preset, every error at once.

Whatever JSON comes in, the answer is an object or SpecInvalid.
"""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from agentmemory_operator.errors import FieldError, SpecInvalid
from agentmemory_operator.spec.kinds.admission import Further, problems_of
from agentmemory_operator.spec.kinds.agent_memory import (
    API_VERSION,
    GROUP,
    Access,
    AgentMemory,
    MemoryRestore,
    MemorySnapshot,
    Metadata,
)
from agentmemory_operator.spec.kinds.base import Model
from agentmemory_operator.spec.kinds.cel import other_kinds as snapshot_rules
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.documents import (
    AccessDocument,
    AgentMemoryDocument,
    MemoryRestoreDocument,
    MemorySnapshotDocument,
    ObjectMeta,
    QdrantConnectionDocument,
)
from agentmemory_operator.spec.kinds.over_preset import faults_over_preset
from agentmemory_operator.spec.kinds.schema import plain, structural

_MAX_TOLD = 20
_SHOWN_CHARS = 60
# How alike two names are, of 1 (difflib): like enough to be offered, and so like that nothing else can be meant.
# "Memory" is like AgentMemory at 0.71; "agentmemory.io", which may be somebody's group, is at 0.83.
_LIKE, _SLIP = 0.6, 0.84

_Document = TypeVar("_Document", bound=Model)
# They came when objects were there that break them. Admission asks them of what is new; what is there goes on.
_LATER_RULES = (snapshot_rules.KEY,)
# What a definition in the cluster does not know: the preset's figures are those of this version.
_FURTHER: dict[type[Model], Further] = {AgentMemoryDocument: faults_over_preset}
_schema_of = cache(structural)
_DOCUMENTS: dict[str, type[Model]] = {
    "AgentMemory": AgentMemoryDocument,
    "QdrantConnection": QdrantConnectionDocument,
    "MemorySnapshot": MemorySnapshotDocument,
    "MemoryRestore": MemoryRestoreDocument,
}


def parse_agent_memory(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> AgentMemory:
    """The AgentMemory that a document describes.

    Args:
        document: the whole object, from a manifest or from the API server.
        old: the object it replaces; with it, what may not change is checked too.

    Raises:
        SpecInvalid: `InvalidSpec`, naming every wrong field.
    """
    parsed = _parsed(AgentMemoryDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return AgentMemory.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_access(document: Mapping[str, Any]) -> Access | None:
    """Who may call, as the AgentMemory says it now, whatever else is wrong with it; None where it says nothing.

    Raises:
        SpecInvalid: `InvalidSpec`, naming every wrong field of `spec.access`; of a spec that is no object, the spec.
    """
    spec = document.get("spec")
    part = {"access": spec.get("access")} if isinstance(spec, Mapping) else spec
    return _parsed(AccessDocument, {"spec": part}, None).spec.access


def told_of_access(document: Mapping[str, Any]) -> str:
    """Who the retrieval API lets in while an AgentMemory is not valid, as one sentence."""
    try:
        parse_access(document)
    except SpecInvalid:
        return "spec.access is invalid too: until it is corrected, the API rejects every caller"
    return (
        "Until it is corrected, the API uses the last valid settings and the current spec.access; API pods that start"
        " later do not serve this agent, and no snapshots are taken"
    )


def parse_connection(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> QdrantConnection:
    """The QdrantConnection that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(QdrantConnectionDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return QdrantConnection.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_snapshot(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemorySnapshot:
    """The MemorySnapshot that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(MemorySnapshotDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemorySnapshot.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_restore(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemoryRestore:
    """The MemoryRestore that a document describes; otherwise as `parse_agent_memory`."""
    parsed = _parsed(MemoryRestoreDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemoryRestore.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a document says that it is of our group, whatever its kind."""
    return str(document.get("apiVersion", "")).partition("/")[0] == GROUP


def kind_error(document: Mapping[str, Any]) -> FieldError | None:
    """Why the API server has no such kind, as far as that can be known without it; None where it may have it.

    Refused are kinds that our group does not have, and kinds of ours in a group that cannot have them (`v1`, `apps/v1`:
    Kubernetes' own, without a dot) or whose name is nearly ours. A kind of another group is that group's business.
    """
    version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            return FieldError(field, f"{_quoted(value)}: every Kubernetes object has one, as text")
    group = str(version).rpartition("/")[0] or str(version)
    if is_ours(document):
        return _error_in_our_group(str(version), str(kind))
    near, likeness = (
        _nearest(str(kind), _SLIP),
        difflib.SequenceMatcher(None, group.lower()[:_SHOWN_CHARS], GROUP).ratio(),
    )
    if near and ("." not in group or likeness >= _SLIP):
        return FieldError(
            "apiVersion", f"{_quoted(version)} has no kind {_quoted(kind)}: for {near} give {API_VERSION}"
        )
    return None


def _error_in_our_group(version: str, kind: str) -> FieldError | None:
    if kind not in _DOCUMENTS:
        near = _nearest(kind, _LIKE)
        way_out = f"did you mean {near}?" if near else f"use one of {', '.join(_DOCUMENTS)}"
        return FieldError("kind", f"{_quoted(kind)} is not a kind of {GROUP}: {way_out}")
    return None if version == API_VERSION else FieldError("apiVersion", f"{_quoted(version)}: give {API_VERSION}")


def errors_of(document: Mapping[str, Any]) -> list[FieldError]:
    """Everything that admission would refuse in a document; of kinds of other groups, all but `kind_error`."""
    if unknown := kind_error(document):
        return [unknown]
    if not is_ours(document):
        return []
    model = _DOCUMENTS[document["kind"]]
    schema = _schema_of(model)
    return problems_of(model, schema, plain(schema, document), old=None, further=_FURTHER.get(model))[1]


def _nearest(kind: str, cutoff: float) -> str | None:
    known = {name.lower(): name for name in _DOCUMENTS}
    near = difflib.get_close_matches(kind.lower()[:_SHOWN_CHARS], known, n=1, cutoff=cutoff)
    return known[near[0]] if near else None


def _quoted(value: object) -> str:
    return json.dumps(value)[:_SHOWN_CHARS] if isinstance(value, str | None) else "no text"


def _parsed(model: type[_Document], document: object, old: object) -> _Document:
    schema = _schema_of(model)
    parsed, problems = problems_of(
        model,
        schema,
        plain(schema, document),
        old=plain(schema, old),
        spared=_LATER_RULES,
        further=_FURTHER.get(model),
    )
    if parsed is None or problems:
        raise SpecInvalid("InvalidSpec", _told(problems))
    return parsed


def _told(problems: list[FieldError]) -> str:
    """The problems as one message; text that is no valid Unicode is escaped."""
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
    """The status as it came; on creation the API server drops what stands there."""
    status = document.get("status")
    return dict(status) if isinstance(status, Mapping) else {}
