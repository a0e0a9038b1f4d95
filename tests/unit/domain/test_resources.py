"""The kinds as data: described, bounded, without defaults that would override a preset."""

from collections.abc import Iterator
from typing import Any, get_args

import cel
import pytest

from agentmemory_operator.domain.definitions import KINDS, object_schema
from agentmemory_operator.domain.presets import DEFAULT_PRESET, PRESETS
from agentmemory_operator.domain.resources import API_VERSION, AgentMemorySpec, QdrantConnectionSpec
from agentmemory_operator.domain.schema import ANY_TYPE, INT_OR_STRING, RULES

Node = dict[str, Any]


def nodes(schema: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield every field of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


SPEC_FIELDS = [
    pytest.param(node, id=f"{kind.name}.{path}")
    for kind in KINDS
    for path, node in nodes(object_schema(kind)["properties"]["spec"], "spec")
]
FIELDS = [
    pytest.param(node, id=f"{kind.name}.{path}")
    for kind in KINDS
    for path, node in nodes(object_schema(kind), "")
    if "metadata" not in path
]
ALL_RULES = sorted(
    {rule["rule"] for kind in KINDS for _, node in nodes(object_schema(kind), "") for rule in node.get(RULES, ())}
)


@pytest.mark.parametrize("node", FIELDS)
def test_a_field_is_described_for_kubectl_explain(node: Node) -> None:
    assert node["description"].endswith(".") or node["description"] in {API_VERSION, *(kind.name for kind in KINDS)}


@pytest.mark.parametrize("node", SPEC_FIELDS)
def test_no_field_has_a_default_that_would_be_written_into_objects(node: Node) -> None:
    assert "default" not in node


@pytest.mark.parametrize("node", SPEC_FIELDS)
def test_a_field_is_bounded(node: Node) -> None:
    """Unbounded text, lists and numbers cost the API server's CEL budget, and nobody needs them."""
    bounds = {
        "string": {"maxLength", "enum"},
        "array": {"maxItems"},
        "integer": {"maximum"},
        "number": {"maximum"},
    }
    wanted = bounds.get(node.get("type", ""))
    assert wanted is None or wanted & node.keys()


@pytest.mark.parametrize("node", SPEC_FIELDS)
def test_a_field_has_one_type_that_a_structural_schema_allows(node: Node) -> None:
    assert [key in node for key in ("type", INT_OR_STRING, ANY_TYPE)].count(True) == 1
    assert not node.keys() & {"$ref", "anyOf", "allOf", "title", "const"}


@pytest.mark.parametrize("model", [AgentMemorySpec, QdrantConnectionSpec])
def test_what_is_optional_is_none_when_it_is_not_given(model: Any) -> None:
    optional = [field for field in model.model_fields.values() if not field.is_required()]

    assert {field.default for field in optional} == {None}


@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_rule_compiles(rule: str) -> None:
    assert set(cel.compile(rule).variables()) <= {"self", "oldSelf", "int"}


def test_a_message_stands_on_one_line_and_names_a_way_out() -> None:
    for kind in KINDS:
        for _, node in nodes(object_schema(kind), ""):
            for rule in node.get(RULES, ()):
                assert "\n" not in rule["message"]
                assert len(rule["message"]) > len("must be")


def test_a_field_that_a_rule_blames_exists() -> None:
    for kind in KINDS:
        for path, node in nodes(object_schema(kind), ""):
            known = {below for below, _ in nodes(node, "")}
            assert {rule.get("fieldPath", "") for rule in node.get(RULES, ())} <= known, path


def test_the_presets_of_the_schema_are_those_there_are() -> None:
    (choice, _) = get_args(AgentMemorySpec.model_fields["preset"].annotation)

    assert set(get_args(choice)) == set(PRESETS)
    assert DEFAULT_PRESET in PRESETS
