"""As much of JSON Schema as the editors' schema uses, to judge it by."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def problems(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which the value is refused."""
    for case in schema.get("allOf", ()):
        if not list(problems(case["if"], value)):
            yield from problems(case["then"], value, path)
    if not _is_of(schema.get("type"), value) or not _fits(schema, value):
        yield path or "object"
    if isinstance(value, dict):
        yield from _of_object(schema, value, path)
    if isinstance(value, list):
        for number, child in enumerate(value):
            yield from problems(schema.get("items", {}), child, f"{path}[{number}]")


def _of_object(schema: Mapping[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name}" for name in schema.get("required", ()) if name not in value)
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, child in value.items():
        node = known.get(name, rest)
        if isinstance(node, Mapping):
            yield from problems(node, child, f"{path}.{name}")
        elif not node:
            yield f"{path}.{name}"


def _is_of(wanted: str | list[str] | None, value: Any) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    if names is None:
        return True
    return any(isinstance(value, TYPES[name]) and (name == "boolean") == isinstance(value, bool) for name in names)


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    if value not in schema.get("enum", [value]) or schema.get("const", value) != value:
        return False
    if isinstance(value, str):
        fits = re.search(schema.get("pattern", ""), value) is not None
        return fits and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    return True
