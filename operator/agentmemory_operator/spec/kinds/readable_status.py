"""What of an object's status can be read: whoever may write a status may write anything there.

The API server holds statuses to our schemas, a folder of manifests to nothing; and a text that is to be a time is held
to less by it than by those who read it. What is not as the schema has it counts as not there: one object's status must
not end the pass over another.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import ValidationError

from agentmemory_operator.spec.kinds.base import StatusModel
from agentmemory_operator.spec.kinds.schema import Schema, structural
from agentmemory_operator.spec.kinds.status_agent_memory import AgentMemoryStatus
from agentmemory_operator.spec.kinds.status_connection import QdrantConnectionStatus
from agentmemory_operator.spec.kinds.status_restore import MemoryRestoreStatus
from agentmemory_operator.spec.kinds.status_snapshot import MemorySnapshotStatus
from agentmemory_operator.spec.times import parse_time

Json = dict[str, Any]

_MODELS: Mapping[str, type[StatusModel]] = {
    "AgentMemory": AgentMemoryStatus,
    "QdrantConnection": QdrantConnectionStatus,
    "MemorySnapshot": MemorySnapshotStatus,
    "MemoryRestore": MemoryRestoreStatus,
}
# A later version's field, and text of another form, are read without harm.
_HARMLESS = frozenset({"extra_forbidden", "string_pattern_mismatch", "string_too_short", "string_too_long"})
_LAST_INT = 2**63
_FILLED: Json = {"reason": "Unknown", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}
# What is written of it is held to the schema as a whole.
_WHOLE = (MemoryRestoreStatus,)

_schema_of = cache(structural)


def with_readable_status(document: Json) -> Json:
    """An object without the fields of its status that cannot be read; the same object if all can."""
    status, model = document.get("status"), _MODELS.get(str(document.get("kind")))
    if status is None or model is None:
        return document
    if not isinstance(status, Mapping):
        return {name: value for name, value in document.items() if name != "status"}
    wrong = _unreadable(model, status)
    told = {name: value for name, value in status.items() if name not in wrong}
    if any(one.keys().isdisjoint({name}) for one in told.get("conditions") or () for name in _FILLED):
        told["conditions"] = [_FILLED | one for one in told["conditions"]]
    return document if told == status else document | {"status": told}


def _unreadable(model: type[StatusModel], status: Mapping[str, Any]) -> set[str]:
    """The fields of a status that are not as the schema has them; null is as good as no field."""
    wrong = {
        name for name, value in status.items() if not isinstance(name, str) or value is None or not _is_json(value)
    }
    told = {name: value for name, value in status.items() if name not in wrong}
    try:
        model.model_validate_json(json.dumps(told), strict=True)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False, include_context=False, include_input=False):
            path = error["loc"]
            if not path:
                # Not even JSON to the parser: nothing of it is known.
                return set(status)
            is_filled = error["type"] == "missing" and path[0] == "conditions" and path[-1] in _FILLED
            is_harmless = error["type"] in _HARMLESS and model not in _WHOLE
            if not (is_filled or is_harmless):
                wrong.add(str(path[0]))
    return wrong | {path[0] for path in _odd(_schema_of(model), told, ())}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _odd(schema: Schema, value: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield where there is a time that cannot be read, or a number that nothing here counts to."""
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
