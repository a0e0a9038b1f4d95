"""Tool schemas: valid for OpenAI and MCP, with arguments that the API accepts."""

from typing import Any

import jsonschema_rs
import mcp_types
import pytest
from openai.types.chat import ChatCompletionToolParam
from pydantic import TypeAdapter

from agentmemory_operator.entrypoints.api.memories.item_requests import ItemIn, PutParameters
from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn, SearchIn
from agentmemory_operator.memories.rules.model_tools import build_tools, render_mcp_tools, render_openai_tools
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import CORTEX, PRESETS

AGENTS: list[tuple[MemoryType, ...] | None] = [None, (), *(revisions[-1].types for revisions in PRESETS.values())]
API_FIELDS = {
    "remember": set(MemoryIn.model_fields),
    "search": set(SearchIn.model_fields),
    "upsertMemory": {*ItemIn.model_fields, *PutParameters.model_fields},
}
ARGUMENTS: list[tuple[str, dict[str, Any], bool]] = [
    ("remember", {"content": "c"}, True),
    ("remember", {"content": "c", "type": "fact", "importance": "high", "tags": ["a"], "key": "k"}, True),
    ("remember", {"content": "c", "type": "no such type"}, False),
    ("remember", {"type": "fact"}, False),
    ("remember", {"content": "c", "user_id": "somebody"}, False),
    ("search", {"query": "q", "types": ["fact", "task"], "top_k": 5}, True),
    ("search", {"query": "q", "top_k": 0}, False),
    ("upsertMemory", {"content": "c", "metadata": {"a": [1]}, "key": "k"}, True),
    ("upsertMemory", {"content": "x" * 8193}, False),
    ("upsertMemory", {"content": "c", "namespace": ["memories", "somebody"]}, False),
]


@pytest.mark.parametrize("types", AGENTS)
def test_openai_form_is_valid_for_its_client(types: tuple[MemoryType, ...] | None) -> None:
    rendered = render_openai_tools(build_tools(types))

    assert TypeAdapter(list[ChatCompletionToolParam]).validate_python(rendered) == rendered


@pytest.mark.parametrize("types", AGENTS)
def test_mcp_form_is_valid_for_its_types(types: tuple[MemoryType, ...] | None) -> None:
    listed = mcp_types.ListToolsResult.model_validate({"tools": render_mcp_tools(build_tools(types))})

    assert [tool.name for tool in listed.tools] == ["remember", "search", "upsertMemory"]
    assert [tool.annotations and tool.annotations.read_only_hint for tool in listed.tools] == [False, True, False]


@pytest.mark.parametrize("types", AGENTS)
def test_every_parameter_exists_in_the_api(types: tuple[MemoryType, ...] | None) -> None:
    for tool in build_tools(types):
        jsonschema_rs.meta.validate(tool.parameters)
        assert set(tool.parameters["properties"]) <= API_FIELDS[tool.name] - {"user_id", "namespace", "vector"}


@pytest.mark.parametrize(("name", "arguments", "is_taken"), ARGUMENTS)
def test_arguments_are_validated(name: str, arguments: dict[str, Any], is_taken: bool) -> None:
    [parameters] = [tool.parameters for tool in build_tools(CORTEX.types) if tool.name == name]

    assert jsonschema_rs.is_valid(parameters, arguments) is is_taken


@pytest.mark.parametrize("preset", PRESETS)
def test_agent_types_are_listed_with_meaning(preset: str) -> None:
    types = PRESETS[preset][-1].types
    remember, *_ = build_tools(types)
    offered = remember.parameters["properties"]["type"]

    assert offered.get("enum", []) == [type_.name for type_ in types]
    for type_ in types:
        assert type_.meaning
        assert f"{type_.name} = {type_.meaning}" in offered["description"]


def test_all_preset_types_are_listed_without_agent() -> None:
    remember, *_ = build_tools(None)
    description = remember.parameters["properties"]["type"]["description"]

    named = {type_.name for revisions in PRESETS.values() for type_ in revisions[-1].types}
    assert {name for name in named if f"{name} = " in description} == named


def test_custom_type_takes_the_preset_meaning() -> None:
    remember, *_ = build_tools([MemoryType("decision", None), MemoryType("recipe", None)])

    description = remember.parameters["properties"]["type"]["description"]
    assert "decision = a choice that was made" in description
    assert description.endswith("; recipe.")


def test_only_fields_of_the_agent_types_are_offered() -> None:
    [cognitive, *_], [cortex, *_] = (build_tools(PRESETS[name][-1].types) for name in ("cognitive", "cortex"))

    properties = cognitive.parameters["properties"]
    assert properties["event_type"]["enum"] == list(PRESETS["cognitive"][-1].types[0].event_types)
    assert "Required of memories of type semantic" in properties["domain"]["description"]
    assert not {"event_type", "domain"} & cortex.parameters["properties"].keys()
