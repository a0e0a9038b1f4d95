"""Parse and check manifests by the rules of admission and the checks of a preset's figures, without a cluster.

For any JSON, a parser returns an object or raises SpecInvalid with up to 20 errors. `find_errors` returns a list.
"""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from agentmemory_operator.errors import FieldError, SpecInvalid
from agentmemory_operator.spec.kinds.admission import FurtherCheck, find_problems
from agentmemory_operator.spec.kinds.agent_memory import (
    API_VERSION,
    GROUP,
    Access,
    AgentMemory,
    MemoryRestore,
    MemorySnapshot,
    Metadata,
)
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
from agentmemory_operator.spec.kinds.model_base import Model
from agentmemory_operator.spec.kinds.preset_checks import find_preset_faults
from agentmemory_operator.spec.kinds.schema import as_plain_json, structural_schema

_MAX_REPORTED = 20
_MAX_QUOTED_CHARS = 60
# Similarity of two names (difflib, at most 1): from `_LIKE` a name is suggested, from `_SLIP` it counts as a typo of a
# kind or of the group. "Memory" and AgentMemory have 0.71. "agentmemory.io", maybe another vendor's group, has 0.83.
_LIKE, _SLIP = 0.6, 0.84

_Document = TypeVar("_Document", bound=Model)
# Rules that stored objects may violate, because they were added later. Admission applies them when an object is
# written, `find_errors` to every manifest, and the parsers never.
_LATER_RULES = (snapshot_rules.KEY,)
# Checks that the CRD in a cluster cannot contain: they depend on the preset's figures in this version.
_FURTHER: dict[type[Model], FurtherCheck] = {AgentMemoryDocument: find_preset_faults}
_schema_of = cache(structural_schema)
_DOCUMENTS: dict[str, type[Model]] = {
    "AgentMemory": AgentMemoryDocument,
    "QdrantConnection": QdrantConnectionDocument,
    "MemorySnapshot": MemorySnapshotDocument,
    "MemoryRestore": MemoryRestoreDocument,
}


def parse_agent_memory(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> AgentMemory:
    """Parse an AgentMemory.

    Args:
        document: The whole object, from a manifest or the API server.
        old: The object that it replaces, for the rules on changes. None skips these.

    Raises:
        SpecInvalid: If a field is invalid. Reason `InvalidSpec`; the message names up to 20 invalid fields.
    """
    parsed = _parsed(AgentMemoryDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return AgentMemory.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_access(document: Mapping[str, Any]) -> Access | None:
    """Parse only `spec.access` of an AgentMemory, whatever errors the rest has. None if it is not set.

    Raises:
        SpecInvalid: If it is invalid, or the spec is not an object. Reason `InvalidSpec`; the message names up to
            20 fields.
    """
    spec = document.get("spec")
    part = {"access": spec.get("access")} if isinstance(spec, Mapping) else spec
    return _parsed(AccessDocument, {"spec": part}, None).spec.access


def access_notice(document: Mapping[str, Any]) -> str:
    """Return a sentence for users: which callers the API accepts while the AgentMemory is invalid."""
    try:
        parse_access(document)
    except SpecInvalid:
        return "spec.access is invalid too: until it is corrected, the API rejects every caller"
    return (
        "Until it is corrected, the API uses the last valid settings and the current spec.access; API pods that start"
        " later do not serve this agent, and no snapshots are taken"
    )


def parse_connection(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> QdrantConnection:
    """Parse a QdrantConnection. Arguments and errors are those of `parse_agent_memory`."""
    parsed = _parsed(QdrantConnectionDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return QdrantConnection.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_snapshot(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemorySnapshot:
    """Parse a MemorySnapshot. Arguments and errors are those of `parse_agent_memory`."""
    parsed = _parsed(MemorySnapshotDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemorySnapshot.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def parse_restore(document: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> MemoryRestore:
    """Parse a MemoryRestore. Arguments and errors are those of `parse_agent_memory`."""
    parsed = _parsed(MemoryRestoreDocument, document, old)
    metadata = _metadata_of(parsed.metadata)
    return MemoryRestore.model_construct(metadata=metadata, spec=parsed.spec, status=_status_of(document))


def is_own_group(document: Mapping[str, Any]) -> bool:
    """Return whether a document's group is agentmemory.dev, whatever its kind."""
    return str(document.get("apiVersion", "")).partition("/")[0] == GROUP


def kind_error(document: Mapping[str, Any]) -> FieldError | None:
    """Return the error in a document's `apiVersion` or `kind`. None if an API server may have the kind.

    Errors are a missing field, and an unknown kind or version of this group. A kind of this group, or a likely typo of
    one, is also an error in Kubernetes' own groups (`v1`, `apps/v1`: no dot) and in a likely typo of this group. All
    else is accepted unchecked.
    """
    version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            return FieldError(field, f"{_quoted(value)}: every Kubernetes object has one, as text")
    group = str(version).rpartition("/")[0] or str(version)
    if is_own_group(document):
        return _error_in_our_group(str(version), str(kind))
    suggestion, similarity = (
        _nearest(str(kind), _SLIP),
        difflib.SequenceMatcher(None, group.lower()[:_MAX_QUOTED_CHARS], GROUP).ratio(),
    )
    if suggestion and ("." not in group or similarity >= _SLIP):
        return FieldError(
            "apiVersion", f"{_quoted(version)} has no kind {_quoted(kind)}: for {suggestion} give {API_VERSION}"
        )
    return None


def _error_in_our_group(version: str, kind: str) -> FieldError | None:
    if kind not in _DOCUMENTS:
        suggestion = _nearest(kind, _LIKE)
        remedy = f"did you mean {suggestion}?" if suggestion else f"use one of {', '.join(_DOCUMENTS)}"
        return FieldError("kind", f"{_quoted(kind)} is not a kind of {GROUP}: {remedy}")
    return None if version == API_VERSION else FieldError("apiVersion", f"{_quoted(version)}: give {API_VERSION}")


def find_errors(document: Mapping[str, Any]) -> list[FieldError]:
    """Return the errors of admission and of the preset's checks. For kinds of other groups, only `kind_error`."""
    if error := kind_error(document):
        return [error]
    if not is_own_group(document):
        return []
    model = _DOCUMENTS[document["kind"]]
    schema = _schema_of(model)
    return find_problems(model, schema, as_plain_json(schema, document), old=None, further=_FURTHER.get(model))[1]


def _nearest(kind: str, cutoff: float) -> str | None:
    by_lower_name = {name.lower(): name for name in _DOCUMENTS}
    matches = difflib.get_close_matches(kind.lower()[:_MAX_QUOTED_CHARS], by_lower_name, n=1, cutoff=cutoff)
    return by_lower_name[matches[0]] if matches else None


def _quoted(value: object) -> str:
    return json.dumps(value)[:_MAX_QUOTED_CHARS] if isinstance(value, str | None) else "no text"


def _parsed(model: type[_Document], document: object, old: object) -> _Document:
    schema = _schema_of(model)
    parsed, problems = find_problems(
        model,
        schema,
        as_plain_json(schema, document),
        old=as_plain_json(schema, old),
        spared=_LATER_RULES,
        further=_FURTHER.get(model),
    )
    if parsed is None or problems:
        raise SpecInvalid("InvalidSpec", _summary(problems))
    return parsed


def _summary(problems: list[FieldError]) -> str:
    """Join the first 20 errors to one message, with the number of the others. Invalid Unicode is escaped."""
    reported = "; ".join(map(str, problems[:_MAX_REPORTED]))
    suffix = f"; and {len(problems) - _MAX_REPORTED} more" if len(problems) > _MAX_REPORTED else ""
    return (reported + suffix).encode(errors="backslashreplace").decode()


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
    """Return the status, not validated. Empty if there is none or it is not an object."""
    status = document.get("status")
    return dict(status) if isinstance(status, Mapping) else {}
