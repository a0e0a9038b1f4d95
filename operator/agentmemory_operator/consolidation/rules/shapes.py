"""Whether a value is what a schema says: the few keywords of JSON Schema that we ask models for. Pure.

The schema is ours and small, the value may be anything: its depth is never followed beyond the schema's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def fault_in(value: Any, schema: Schema) -> str | None:
    """The first place where a value is not what the schema says, as a path of the schema; None where it is.

    Nothing of the value stands in it.
    """
    return next(_faults(value, schema, ""), None)


def _faults(value: Any, schema: Schema, path: str) -> Iterator[str]:
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{path or 'the answer'} is not of type {kind}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path} is not one of the allowed values"
    elif isinstance(value, dict):
        yield from _faults_of_object(value, schema, path)
    elif isinstance(value, list):
        yield from _faults_of_list(value, schema, path)
    elif isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
            yield f"{path} is too short or too long"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path} is too small or too large"


def _faults_of_object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    known = schema["properties"]
    if not value.keys() <= known.keys():
        yield f"{path or 'the answer'} has unknown fields"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing".removeprefix(".")
    for name, child in known.items():
        if name in value:
            yield from _faults(value[name], child, f"{path}.{name}".removeprefix("."))


def _faults_of_list(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if len(value) > schema["maxItems"]:
        yield f"{path} has too many items"
        return
    for item in value:
        yield from _faults(item, schema["items"], f"{path}[]")
