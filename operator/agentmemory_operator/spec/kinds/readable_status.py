"""Drop the fields of a status that the operator cannot read. Users with write access to statuses can write such fields.

The API server validates statuses against the schema; files in a folder are not validated at all. The API server's check
of times is also less strict than the parser here. A top-level field that violates the schema is treated as absent,
unless it is harmless to read. So the status of one object cannot end the pass over another.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import ValidationError

from agentmemory_operator.spec.kinds.model_base import StatusModel
from agentmemory_operator.spec.kinds.schema import Schema, structural_schema
from agentmemory_operator.spec.kinds.status_agent_memory import AgentMemoryStatus
from agentmemory_operator.spec.kinds.status_connection import QdrantConnectionStatus
from agentmemory_operator.spec.kinds.status_snapshot import MemoryRestoreStatus, MemorySnapshotStatus
from agentmemory_operator.spec.times import parse_time

Json = dict[str, Any]

_MODELS: Mapping[str, type[StatusModel]] = {
    "AgentMemory": AgentMemoryStatus,
    "QdrantConnection": QdrantConnectionStatus,
    "MemorySnapshot": MemorySnapshotStatus,
    "MemoryRestore": MemoryRestoreStatus,
}
# Errors that are harmless to read: a field of a later version, and text of another form or length.
_HARMLESS = frozenset({"extra_forbidden", "string_pattern_mismatch", "string_too_short", "string_too_long"})
_LAST_INT = 2**63
_FILLED: Json = {"reason": "Unknown", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}
# Statuses that the operator validates as a whole when it writes them: drop harmless violations too.
_WHOLE = (MemoryRestoreStatus,)

_schema_of = cache(structural_schema)


def with_readable_status(document: Json) -> Json:
    """Return an object without the unreadable fields of its status, and with missing fields of conditions filled in.

    A status that is not an object is dropped as a whole. If nothing changes, the same object is returned.
    """
    status, model = document.get("status"), _MODELS.get(str(document.get("kind")))
    if status is None or model is None:
        return document
    if not isinstance(status, Mapping):
        return {name: value for name, value in document.items() if name != "status"}
    unreadable = _unreadable(model, status)
    readable = {name: value for name, value in status.items() if name not in unreadable}
    if any(condition.keys().isdisjoint({name}) for condition in readable.get("conditions") or () for name in _FILLED):
        readable["conditions"] = [_FILLED | condition for condition in readable["conditions"]]
    return document if readable == status else document | {"status": readable}


def _unreadable(model: type[StatusModel], status: Mapping[str, Any]) -> set[str]:
    """Return the top-level fields that are null, or violate the schema in a way that is not harmless to read."""
    unreadable = {
        name for name, value in status.items() if not isinstance(name, str) or value is None or not _is_json(value)
    }
    remaining = {name: value for name, value in status.items() if name not in unreadable}
    try:
        model.model_validate_json(json.dumps(remaining), strict=True)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False, include_context=False, include_input=False):
            path = error["loc"]
            if not path:
                # Drop every field: the parser rejects the status as JSON.
                return set(status)
            is_filled = error["type"] == "missing" and path[0] == "conditions" and path[-1] in _FILLED
            is_harmless = error["type"] in _HARMLESS and model not in _WHOLE
            if not (is_filled or is_harmless):
                unreadable.add(str(path[0]))
    return unreadable | {path[0] for path in _odd(_schema_of(model), remaining, ())}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _odd(schema: Schema, value: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of times that cannot be parsed, and of integers outside 64 bits."""
    if isinstance(value, Mapping):
        fields = schema.get("properties") or {}
        for name, child in value.items():
            if name in fields:
                yield from _odd(fields[name], child, (*path, name))
    elif isinstance(value, list):
        for child in value:
            yield from _odd(schema.get("items") or {}, child, path)
    elif not _is_read(schema, value):
        yield path


def _is_read(schema: Schema, value: object) -> bool:
    if isinstance(value, int):
        return -_LAST_INT <= value < _LAST_INT
    return not isinstance(value, str) or schema.get("format") != "date-time" or _is_time(value)


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
