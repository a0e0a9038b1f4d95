"""JSON Schema of the kinds for editors: the structural schemas without what only Kubernetes understands.

CEL rules have no place in JSON Schema: `agentmemory validate` holds a file to them too.
"""

from typing import Any

from agentmemory_operator.domain.definitions import KINDS, Kind, object_schema
from agentmemory_operator.domain.resources import API_VERSION, GROUP
from agentmemory_operator.domain.schema import INT_OR_STRING, Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
METADATA: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}},
}


def editor_schema(kinds: tuple[Kind, ...] = KINDS) -> dict[str, Any]:
    """Return one JSON Schema that holds a document to its kind; documents of other kinds pass."""
    cases = [{"if": _is(kind), "then": _kind_schema(kind)} for kind in kinds]
    return {"$schema": DIALECT, "title": f"Kinds of {GROUP}", "type": "object", "allOf": cases}


def _is(kind: Kind) -> Schema:
    group = {"type": "string", "pattern": f"^{GROUP.replace('.', '[.]')}/"}
    return {
        "required": ["apiVersion", "kind"],
        "properties": {"apiVersion": group, "kind": {"const": kind.name}},
    }


def _kind_schema(kind: Kind) -> Schema:
    schema = object_schema(kind)
    fields = schema["properties"] | {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind.name}}
    closed = closed_schema(schema | {"properties": fields})
    return closed | {"required": ["apiVersion", "kind", "metadata", "spec"]} | _with_metadata(closed)


def _with_metadata(schema: Schema) -> Schema:
    return {"properties": schema["properties"] | {"metadata": METADATA}}


def closed_schema(node: Schema) -> Schema:
    """Return a node that knows only its own fields, in words of JSON Schema."""
    schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get(INT_OR_STRING):
        schema["type"] = ["integer", "string"]
    if "properties" in node:
        schema["properties"] = {name: closed_schema(child) for name, child in node["properties"].items()}
        schema["additionalProperties"] = False
    elif isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = closed_schema(node["additionalProperties"])
    if "items" in node:
        schema["items"] = closed_schema(node["items"])
    return schema
