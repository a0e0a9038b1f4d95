"""Structural schemas: what a pydantic model says, in the form that the Kubernetes API server takes.

The same schema is written into the CRD and walked offline by `parse`, CEL rules included, so both refuse the same.
Rules that several kinds have stand here too.
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

# Whole numbers up to here are floats of the same value.
_EXACT = 2**53

# The API server's own defaults and pydantic's notes: no place for them in a structural schema.
_DROPPED = ("title", "default", "additionalProperties", "anyOf", "$ref", "$defs", "const")

_PORT = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# The brackets are escaped for the expression, the backslashes for CEL's text.
_IPV6 = r"\\[[0-9A-Fa-f:.]+\\]"
_HTTP_URL = f"^https?://([A-Za-z0-9._-]+|{_IPV6})(:{_PORT})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?$"


@dataclass(frozen=True, slots=True)
class CelRule:
    """A CEL rule over `self`.

    Attributes:
        message: what is wrong and the way out; without line breaks.
        field_path: the field to blame, relative to `self`, as ".weights"; None blames `self`.
    """

    rule: str
    message: str
    field_path: str | None = None


def is_url(name: str, example: str) -> CelRule:
    """The rule that a field is an HTTP URL without credentials."""
    return CelRule(
        f"self.matches('{_HTTP_URL}')",
        f"{name} must be an http:// or https:// URL without user, query or fragment, for example {example}",
    )


def validated(*rules: CelRule) -> JsonDict:
    """The schema keys that carry the rules; for `json_schema_extra` of a model or a field."""
    return {RULES: [_rendered(rule) for rule in rules]}


def keyed_by(*keys: str) -> JsonDict:
    """The schema keys of a list whose entries are told apart by some fields, all of them required."""
    return {LIST_TYPE: "map", LIST_KEYS: [*keys]}


def of_one_writer() -> JsonDict:
    """The schema key of an object that is replaced whole: nobody keeps a record of who wrote which part."""
    return {MAP_TYPE: "atomic"}


def distinct() -> JsonDict:
    """The schema keys of a list that has each value once."""
    return {LIST_TYPE: "set"}


def structural(model: type[BaseModel]) -> Schema:
    """The model's structural schema: references inlined, no defaults, outside names."""
    raw = model.model_json_schema(by_alias=True)
    return _inlined(raw, raw.get("$defs", {}))


def plain(schema: Schema, value: Any) -> Any:
    """The value as the API server reads it.

    Mappings become dicts and sequences lists; a field that is null is left out; a whole number is an integer or a
    float as the schema says, because CEL keeps the two apart. What the schema does not know stays as it is.
    """
    if isinstance(value, Mapping) and "properties" in schema:
        fields = ((str(name), child, schema["properties"].get(str(name))) for name, child in value.items())
        return {name: plain(node or {}, child) for name, child, node in fields if child is not None or node is None}
    if isinstance(value, Sequence) and not isinstance(value, str) and "items" in schema:
        return [plain(schema["items"], child) for child in value]
    return _number(schema, value)


def _number(schema: Schema, value: Any) -> Any:
    if schema.get("type") == "number" and type(value) is int and abs(value) <= _EXACT:
        return float(value)
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole and (schema.get("type") == "integer" or schema.get(INT_OR_STRING)) else value


def _rendered(rule: CelRule) -> JsonDict:
    placed: JsonDict = {} if rule.field_path is None else {"fieldPath": rule.field_path}
    return {"rule": rule.rule, "message": rule.message} | placed


def _inlined(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """The node without references; what stands beside a reference wins over what it points to."""
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
    """The schema with its number format, and every lower bound as the API server keeps it."""
    if schema.get("type") == "integer":
        return schema | {"format": "int64"}
    if float(schema.get("minimum", 0)).is_integer():
        return schema
    # As a rule, since the API server compares whole numbers with the bound rounded down (0 >= 0.5).
    least, most = schema["minimum"], schema["maximum"]
    return schema | validated(CelRule(f"self >= {least}", f"must be {least:g}..{most:g}"))


def _target(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """What the node refers to: a definition, or the one alternative that is not null."""
    if "$ref" in node:
        return _inlined(defs[node["$ref"].rpartition("/")[2]], defs)
    given = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    return _inlined(given[0], defs) if given else {}


def _ordered(schema: Schema) -> Schema:
    """The schema in the order a reader wants: what it is, then its bounds, then its fields."""
    first = ("description", "type", "format", "enum")
    last = ("required", "properties", "additionalProperties", "items")
    rest = sorted(key for key in schema if key not in first + last)
    return {key: schema[key] for key in (*first, *rest, *last) if key in schema}
