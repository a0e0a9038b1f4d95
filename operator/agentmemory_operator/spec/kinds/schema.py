"""Convert pydantic models to structural schemas, the form that the Kubernetes API server accepts.

The CRD contains the schema, and `parse` applies the same one offline, CEL rules included. `parse` lists the exceptions.
The rule for URLs, which several kinds share, is here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.config import JsonDict

Schema = dict[str, Any]

RULES = "x-kubernetes-validations"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
MAP_TYPE = "x-kubernetes-map-type"
LIST_KEYS = "x-kubernetes-list-map-keys"

# Largest integer up to which all integers are exact as floats.
_EXACT = 2**53

# Keys of pydantic's schemas that are not copied: some are converted, and the others must not be in the CRD.
_DROPPED = ("title", "default", "additionalProperties", "anyOf", "$ref", "$defs", "const")

_PORT = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# An IPv6 host. Brackets are escaped for the regex, and the backslashes again for the CEL string.
_IPV6 = r"\\[[0-9A-Fa-f:.]+\\]"
_HTTP_URL = f"^https?://([A-Za-z0-9._-]+|{_IPV6})(:{_PORT})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?$"


@dataclass(frozen=True, slots=True)
class CelRule:
    """A CEL rule over `self`.

    Attributes:
        message: Error and remedy, without line breaks.
        field_path: Field to report, relative to `self`, such as ".weights". None reports `self`.
    """

    rule: str
    message: str
    field_path: str | None = None


def url_rule(name: str, example: str) -> CelRule:
    """Return the rule that the field `name` is an http or https URL without user, query and fragment."""
    return CelRule(
        f"self.matches('{_HTTP_URL}')",
        f"{name} must be an http:// or https:// URL without user, query or fragment, for example {example}",
    )


def validation_rules(*rules: CelRule) -> JsonDict:
    """Return the schema keys that contain the rules, for `json_schema_extra` of a model or field."""
    return {RULES: [_rendered(rule) for rule in rules]}


def list_map_keys(*keys: str) -> JsonDict:
    """Return the schema keys of a list with unique entries. These fields, all required, identify an entry."""
    return {LIST_TYPE: "map", LIST_KEYS: [*keys]}


def atomic_map() -> JsonDict:
    """Return the schema key of an object that is always replaced as a whole, so managedFields has one entry for it."""
    return {MAP_TYPE: "atomic"}


def set_list() -> JsonDict:
    """Return the schema key of a list whose entries, all scalars, are unique."""
    return {LIST_TYPE: "set"}


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model: references inlined, no defaults, manifest names."""
    raw = model.model_json_schema(by_alias=True)
    return _inlined(raw, raw.get("$defs", {}))


def as_plain_json(schema: Schema, value: Any) -> Any:
    """Convert a value to the form in which the API server reads it.

    Mappings become dicts, sequences become lists, and null is dropped from fields of the schema. Whole numbers become
    int or float as the schema requires, because CEL distinguishes them. Values without a schema are unchanged.
    """
    if isinstance(value, Mapping) and "properties" in schema:
        fields = ((str(name), child, schema["properties"].get(str(name))) for name, child in value.items())
        return {
            name: as_plain_json(node or {}, child) for name, child, node in fields if child is not None or node is None
        }
    if isinstance(value, Sequence) and not isinstance(value, str) and "items" in schema:
        return [as_plain_json(schema["items"], child) for child in value]
    return _number(schema, value)


def _number(schema: Schema, value: Any) -> Any:
    if schema.get("type") == "number" and type(value) is int and abs(value) <= _EXACT:
        return float(value)
    is_integral = isinstance(value, float) and value.is_integer()
    return int(value) if is_integral and (schema.get("type") == "integer" or schema.get(INT_OR_STRING)) else value


def _rendered(rule: CelRule) -> JsonDict:
    field_path: JsonDict = {} if rule.field_path is None else {"fieldPath": rule.field_path}
    return {"rule": rule.rule, "message": rule.message} | field_path


def _inlined(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Return the node without references. Keys next to a reference override those of its target."""
    base = _target(node, defs)
    schema = base | {key: value for key, value in node.items() if key not in _DROPPED}
    if node.get(INT_OR_STRING):
        return {key: value for key, value in schema.items() if key == "description" or key.startswith("x-")}
    if "const" in node:
        schema["enum"] = [node["const"]]
    if isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = _inlined(node["additionalProperties"], defs)
    if "items" in schema:
        schema["items"] = _inlined(schema["items"], defs)
    if "properties" in schema:
        schema["properties"] = {name: _inlined(child, defs) for name, child in schema["properties"].items()}
    return _ordered(_bounded(schema))


def _bounded(schema: Schema) -> Schema:
    """Add the format of integers, and a rule for fractional lower bounds."""
    if schema.get("type") == "integer":
        return schema | {"format": "int64"}
    if float(schema.get("minimum", 0)).is_integer():
        return schema
    # Use a rule, because the API server compares integers with the bound rounded down (0 >= 0.5).
    lower, upper = schema["minimum"], schema["maximum"]
    return schema | validation_rules(CelRule(f"self >= {lower}", f"must be {lower:g}..{upper:g}"))


def _target(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Return the definition that `$ref` names, else the first alternative of `anyOf` that is not null, else {}."""
    if "$ref" in node:
        return _inlined(defs[node["$ref"].rpartition("/")[2]], defs)
    alternatives = [alternative for alternative in node.get("anyOf", ()) if alternative.get("type") != "null"]
    return _inlined(alternatives[0], defs) if alternatives else {}


def _ordered(schema: Schema) -> Schema:
    """Order the keys for readers: description and type, then bounds, then fields."""
    first = ("description", "type", "format", "enum")
    last = ("required", "properties", "additionalProperties", "items")
    remaining = sorted(key for key in schema if key not in first + last)
    return {key: schema[key] for key in (*first, *remaining, *last) if key in schema}
