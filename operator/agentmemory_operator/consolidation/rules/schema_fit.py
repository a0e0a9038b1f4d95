"""Fit a model's answer to a schema: keep the parts that match, drop the rest. Pure.

Models rarely ignore a schema, but often violate it in one place: an extra field, `"High"` for `"high"`, one memory of
ten without sources. The rest of such an answer is useful, so only the part that does not match is dropped:

| part of the answer | if it does not match |
|---|---|
| a field that the schema does not name | ignored |
| an item of a list, or an item beyond `maxItems` | dropped and counted |
| an optional field | dropped and counted |
| a required field | the object that contains it does not match |
| every item of a list | the list does not match |

The schema is trusted and small; the value is untrusted. Recursion is never deeper than the schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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


class SchemaMismatch(Exception):
    """A value does not match its schema. The message contains a path of the schema and no part of the value."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A value that matches its schema.

    Attributes:
        dropped: Number of items and optional fields that were left out because they do not match.
    """

    value: Any
    dropped: int


def fit(value: Any, schema: Schema, path: str = "") -> Fitted:
    """Return the part of a value that matches a schema.

    Strings match an `enum` regardless of case and surrounding spaces; the result has the spelling of the schema. A
    float without a fraction matches `integer`.

    Args:
        path: Path of the value in the schema, for error messages; empty for the whole answer.

    Raises:
        SchemaMismatch: If the value or a required part of it does not match, or if parts were dropped and nothing
            remains.
    """
    kind = schema["type"]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise SchemaMismatch(f"{path or 'the answer'} is not of type {kind}")
    if isinstance(value, dict):
        return _fit_object(value, schema, path)
    if isinstance(value, list):
        return _fit_list(value, schema, path)
    return Fitted(_fit_scalar(value, schema, path), 0)


def _fit_object(value: dict[str, Any], schema: Schema, path: str) -> Fitted:
    required = schema.get("required", ())
    fitted_fields: dict[str, Any] = {}
    dropped, fault = 0, ""
    for name, child in schema["properties"].items():
        child_path = f"{path}.{name}".removeprefix(".")
        if name not in value:
            if name in required:
                raise SchemaMismatch(f"{child_path} is missing")
            continue
        try:
            fitted = fit(value[name], child, child_path)
        except SchemaMismatch as misfit:
            if name in required:
                raise
            dropped, fault = dropped + 1, fault or str(misfit)
        else:
            fitted_fields[name] = fitted.value
            dropped += fitted.dropped
    # Reject an object of nothing but bad parts, which is a wrong answer, not an empty one.
    if fault and not any(fitted_fields.values()):
        raise SchemaMismatch(fault)
    return Fitted(fitted_fields, dropped)


def _fit_list(value: list[Any], schema: Schema, path: str) -> Fitted:
    fitted_items: list[Any] = []
    dropped, fault = 0, ""
    for item in value:
        if len(fitted_items) == schema["maxItems"]:
            break
        try:
            fitted = fit(item, schema["items"], f"{path}[]")
        except SchemaMismatch as misfit:
            fault = fault or str(misfit)
        else:
            fitted_items.append(fitted.value)
            dropped += fitted.dropped
    if fault and not fitted_items:
        raise SchemaMismatch(fault)
    return Fitted(fitted_items, dropped + len(value) - len(fitted_items))


def _fit_scalar(value: Any, schema: Schema, path: str) -> Any:
    if "enum" in schema:
        folded = value.strip().casefold() if isinstance(value, str) else value
        matches = [name for name in schema["enum"] if name == value or name.casefold() == folded]
        if not matches:
            raise SchemaMismatch(f"{path} is not one of the allowed values")
        # Prefer the exact spelling, if names differ only in case.
        return value if value in matches else matches[0]
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
            raise SchemaMismatch(f"{path} is too short or too long")
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise SchemaMismatch(f"{path} is too small or too large")
    return value
