"""Tools by which a language model stores and searches memories: parameters, and descriptions of each memory type.

The model cannot choose the owner: the process that executes a call adds the user, and the namespace of items.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.collections.rules.rebuild_costs import CHARS_PER_TOKEN, MAX_TOKENS
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import PRESETS

Json = dict[str, Any]

_BOUNDS = ("enum", "minLength", "maxLength", "minItems", "maxItems")
# A visible character of the scripts in use today. The class is shorter than the API's own, which is ten times as long,
# because these schemas are part of each prompt.
_VISIBLE = (
    "[!-~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0619\u0904-\u10ff\u1e00-\u1fff\u2190-\u27bf\u3041-\u312f\u3400-\ud7a3"
    "\U0001f300-\U0001faff]"
)
_NO_CONTROL = r"[^\x00-\x1f\x7f-\x9f]*"
# The lookahead excludes a final newline, before which `$` also matches in Python.
_NAME = rf"^{_NO_CONTROL}{_VISIBLE}{_NO_CONTROL}$(?!\n)"

PREFERRED_TYPE = "fact"
"""Default type of a memory if the agent has it; else the agent's first type."""

# Subset of the RFC 3339 times that the API accepts, because models write no leap seconds and no year before 1980.
TIME_PATTERN = (
    "^(19[89][0-9]|2[0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    "T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$(?!\\n)"
)
MAX_TOP_K = 50
"""Maximum number of results of one call. It is below the API's limit, because results become part of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Tool that a language model can call: name and texts for the model, and a schema of the arguments.

    Attributes:
        parameters: JSON Schema of an object.
        reads_only: True if a call changes no memory.
        replaces: True if a call may replace an existing memory.
    """

    name: str
    title: str
    description: str
    parameters: Json
    reads_only: bool = False
    replaces: bool = False


def build_tools(types: Sequence[MemoryType] | None) -> list[Tool]:
    """Return the tools of an agent.

    Args:
        types: Memory types of the agent. None or empty allows any type; the descriptions are those of all presets.
    """
    return [_remember(types), _search(types), _upsert()]


def with_api_bounds(tool: Tool, api_schemas: Mapping[str, Json]) -> Tool:
    """Return a tool with the API's bounds on each parameter. Bounds that the tool already has take precedence.

    Args:
        api_schemas: JSON Schema of each field in the API.
    """
    schemas = tool.parameters["properties"]
    properties = {name: _bounded(schema, api_schemas.get(name, {})) for name, schema in schemas.items()}
    return replace(tool, parameters=tool.parameters | {"properties": properties})


def _bounded(schema: Json, api: Json) -> Json:
    bounds = {name: api[name] for name in _BOUNDS if name in api and "enum" not in schema}
    items = {"items": _bounded(schema["items"], api["items"])} if "items" in schema and "items" in api else {}
    return bounds | schema | items


def render_openai_tools(tools: Iterable[Tool]) -> list[Json]:
    """Render the tools as the value of `tools` in a request for a chat completion."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def render_mcp_tools(tools: Iterable[Tool]) -> list[Json]:
    """Render the tools as the result of `tools/list` in the Model Context Protocol."""
    return [
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": tool.parameters,
            "annotations": {
                "readOnlyHint": tool.reads_only,
                "destructiveHint": tool.replaces,
                "idempotentHint": tool.reads_only,
                "openWorldHint": False,
            },
        }
        for tool in tools
    ]


def _remember(types: Sequence[MemoryType] | None) -> Tool:
    return Tool(
        name="remember",
        title="Remember",
        description=(
            "Keep something for later conversations: what the user says of themselves, decides, wants or corrects, and"
            " what you learn. One statement a call, as a sentence that can be understood alone, with names in the place"
            " of pronouns. Do not keep small talk, passwords or keys."
        ),
        parameters=object_schema(
            {
                "content": content_schema("The statement."),
                "type": _type(types) | {"description": f"What kind of memory it is. {_meanings(types)}"},
                "importance": {
                    "type": "string",
                    "enum": ["low", "medium", "high", "critical"],
                    "description": "How much it would cost to forget it; medium when in doubt.",
                },
                "tags": {"type": "array", "items": _text(), "description": "Labels to search by."},
                "key": _text("Of a fact that may change: the same key for the same question, such as user.city."),
                "subject": _text("Of a status: what it is the status of, in the same words each time."),
                "status_value": _text("Of a status: the status itself, in a word, such as open or done."),
                "valid_from": time_schema("Since when it is true, if not since now."),
                "knowledge_category": _text("Topic of what is known."),
                "speaker": _text("Who said it, by name, where several speak."),
                "role": {
                    "type": "string",
                    "enum": ["user", "assistant", "tool", "system"],
                    "description": "What the one who said it is.",
                },
            }
            | _required_fields(types or ()),
            required=["content"],
        )
        | _rules_of_types(types or ()),
    )


def _rules_of_types(types: Sequence[MemoryType]) -> Json:
    """Return each type's required fields and allowed event types as `allOf` of JSON Schema; empty without any."""
    default = next((type_.name for type_ in types if type_.name == PREFERRED_TYPE), types[0].name if types else "")
    rules = []
    for type_ in types:
        required = [*type_.required, *(["session_id"] if _needs_session(type_) else [])]
        words = {"properties": {"event_type": {"enum": list(type_.event_types)}}} if type_.event_types else {}
        then = ({"required": required} if required else {}) | words
        # A call without a type uses the default type, and also matches `properties` without `required`.
        type_condition = {} if type_.name == default else {"required": ["type"]}
        if then:
            rules.append({"if": {"properties": {"type": {"const": type_.name}}} | type_condition, "then": then})
    return {"allOf": rules} if rules else {}


def _needs_session(type_: MemoryType) -> bool:
    return type_.ttl is not None and type_.ttl.idle_hours is not None


def _required_fields(types: Sequence[MemoryType]) -> Json:
    """Return the schemas of the fields that some types require."""
    fields: dict[str, Json] = {}
    if names := [type_.name for type_ in types if _needs_session(type_)]:
        fields["session_id"] = _text(f"The conversation: required of memories of type {', '.join(names)}.")
    for name in dict.fromkeys(name for type_ in types for name in type_.required):
        requiring_types = [type_ for type_ in types if name in type_.required]
        fields[name] = _text(f"Required of memories of type {', '.join(type_.name for type_ in requiring_types)}.")
        words = dict.fromkeys(word for type_ in requiring_types for word in type_.event_types)
        if name == "event_type" and all(type_.event_types for type_ in requiring_types):
            fields[name] |= {"enum": list(words)}
    return fields


def _search(types: Sequence[MemoryType] | None) -> Tool:
    return Tool(
        name="search",
        title="Search memories",
        description=(
            "Find what was remembered, best first. Call it before answering what may depend on earlier conversations,"
            " and before asking the user something that they may have said already."
        ),
        parameters=object_schema(
            {
                "query": content_schema(
                    "What to look for, as a question or in the words of what may have been remembered."
                ),
                "types": _some(
                    _type(types), f"Only memories of these types; leave it out to search all. {_meanings(types)}"
                ),
                "tags": _some(_text(), "Only memories with any of these labels."),
                "at_time": time_schema("Only what was true at that time, also what was replaced since."),
                "reference_time": time_schema("When the query is asked, if not now: yesterday is the day before."),
                "top_k": {"type": "integer", "minimum": 1, "maximum": MAX_TOP_K, "description": "How many at most."},
                "min_similarity": {
                    "type": "number",
                    "minimum": -1,
                    "maximum": 1,
                    "description": "Least similarity of what is found; leave it out for the agent's own.",
                },
            },
            required=["query"],
        ),
        reads_only=True,
    )


def _upsert() -> Tool:
    return Tool(
        name="upsertMemory",
        title="Create or replace a memory by its key",
        description=(
            "Keep something under a key, in the place of what was kept under it before. For what has one current value:"
            " a name, a setting, a plan. The answer has success, memory_id, key and message."
        ),
        parameters=object_schema(
            {
                "content": content_schema("The text to keep.") | {"maxLength": MAX_TOKENS * CHARS_PER_TOKEN},
                "metadata": {"type": "object", "description": "Anything else that belongs to it, as JSON."},
                "key": _text("What it is found by; the same key replaces. Without one it is kept under a new key."),
            },
            required=["content"],
        ),
        replaces=True,
    )


def object_schema(properties: Mapping[str, Json], *, required: Sequence[str]) -> Json:
    """Return the schema of an object without further properties."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


def _text(description: str = "") -> Json:
    """Return the schema of a name or label."""
    return {"type": "string", "minLength": 1, "pattern": _NAME} | ({"description": description} if description else {})


def content_schema(description: str) -> Json:
    """Return the schema of a text that is not blank."""
    return {"type": "string", "minLength": 1, "pattern": _VISIBLE, "description": description}


def _some(items: Json, description: str) -> Json:
    """Return the schema of a non-empty list."""
    return {"type": "array", "items": items, "minItems": 1, "description": description}


def time_schema(description: str) -> Json:
    """Return the schema of a time with an offset."""
    return {"type": "string", "format": "date-time", "pattern": TIME_PATTERN, "description": description}


def _type(types: Sequence[MemoryType] | None) -> Json:
    return {"type": "string", "enum": [type_.name for type_ in types]} if types else _text()


def _meanings(types: Sequence[MemoryType] | None) -> str:
    """Describe each type: those of the agent, else those of every preset."""
    # If several presets have a type of the same name, the first preset wins.
    meanings = {type_.name: type_.meaning for revisions in reversed(PRESETS.values()) for type_ in revisions[-1].types}
    if types:
        return _lines((type_.name, type_.meaning or meanings.get(type_.name, "")) for type_ in types)
    return f"The agent's object says which it takes; without one: {_lines(meanings.items())}"


def _lines(meanings: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name} = {meaning}" if meaning else name for name, meaning in meanings) + "."
