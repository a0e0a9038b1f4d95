"""The kinds as schemas: described, bounded, without defaults that would override a preset."""

from collections.abc import Iterator
from typing import Any, get_args

import cel
import pytest

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemorySpec
from agentmemory_operator.spec.kinds.connection import QdrantConnectionSpec
from agentmemory_operator.spec.kinds.crds import KINDS, object_schema
from agentmemory_operator.spec.kinds.schema import INT_OR_STRING, RULES
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS

Node = dict[str, Any]


def nodes(schema: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield every field of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


SCHEMAS = {kind.name: object_schema(kind) for kind in KINDS}
SPEC_FIELDS = {
    f"{kind}.{path}": node
    for kind, schema in SCHEMAS.items()
    for path, node in nodes(schema["properties"]["spec"], "spec")
}
FIELDS = {
    f"{kind}{path}": node
    for kind, schema in SCHEMAS.items()
    for path, node in nodes(schema, "")
    if "metadata" not in path
}
ALL_RULES = sorted({rule["rule"] for node in FIELDS.values() for rule in node.get(RULES, ())})


def test_every_field_has_a_description() -> None:
    undescribed = {API_VERSION, *(kind.name for kind in KINDS)}
    described = {path: node["description"] for path, node in FIELDS.items()}

    assert {path: text for path, text in described.items() if not text.endswith(".") and text not in undescribed} == {}


def test_no_field_has_a_stored_default() -> None:
    assert [path for path, node in SPEC_FIELDS.items() if "default" in node] == []


def test_every_field_is_bounded() -> None:
    """Unbounded text, lists and numbers exceed the API server's CEL budget."""
    bounds = {
        "string": {"maxLength", "enum"},
        "array": {"maxItems"},
        "integer": {"maximum"},
        "number": {"maximum"},
    }

    def is_bounded(node: Node) -> bool:
        required = bounds.get(node.get("type", ""))
        return required is None or bool(required & node.keys())

    assert [path for path, node in SPEC_FIELDS.items() if not is_bounded(node)] == []


def test_every_field_has_one_structural_type() -> None:
    def is_structural(node: Node) -> bool:
        has_one_type = [key in node for key in ("type", INT_OR_STRING)].count(True) == 1
        return has_one_type and not node.keys() & {"$ref", "anyOf", "allOf", "title", "const"}

    assert [path for path, node in SPEC_FIELDS.items() if not is_structural(node)] == []


@pytest.mark.parametrize("model", [AgentMemorySpec, QdrantConnectionSpec])
def test_optional_fields_default_to_none(model: Any) -> None:
    optional = [field for field in model.model_fields.values() if not field.is_required()]

    assert {field.default for field in optional} == {None}


@pytest.mark.parametrize("rule", ALL_RULES)
def test_rule_compiles(rule: str) -> None:
    bound_by_the_rule = {"zone"}

    assert set(cel.compile(rule).variables()) - bound_by_the_rule <= {"self", "oldSelf", "int"}


def test_rule_messages_are_one_line() -> None:
    for kind in KINDS:
        for _, node in nodes(object_schema(kind), ""):
            for rule in node.get(RULES, ()):
                assert "\n" not in rule["message"]
                assert len(rule["message"]) > len("must be")


def test_field_paths_of_rules_exist() -> None:
    for kind in KINDS:
        for path, node in nodes(object_schema(kind), ""):
            paths = {below for below, _ in nodes(node, "")}
            assert {rule.get("fieldPath", "") for rule in node.get(RULES, ())} <= paths, path


def test_schema_lists_all_presets() -> None:
    (choice, _) = get_args(AgentMemorySpec.model_fields["preset"].annotation)

    assert set(get_args(choice)) == set(PRESETS)
    assert DEFAULT_PRESET in PRESETS
