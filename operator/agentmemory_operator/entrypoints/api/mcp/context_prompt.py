"""The context call at `/mcp`: a tool for the model, and a prompt that a person chooses in the host.

Both return the text of `POST .../context`, which marks memories as data.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agentmemory_operator.entrypoints.api.fields import MAX_CONTENT_CHARS
from agentmemory_operator.entrypoints.api.memories.context_requests import MIN_BUDGET_TOKENS
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.model_tools import Tool, content_schema, object_schema, time_schema

Json = dict[str, Any]

CONTEXT_TOOL = "get_context"
MAX_BUDGET_TOKENS = 8_000
"""Maximum of one call. It is below the API's limit, because the text becomes part of a prompt."""

PROMPT: Json = {
    "name": "context",
    "title": "What is remembered about a question",
    "description": "Facts about the user, and memories that bear on a question, as data for a prompt.",
    "arguments": [
        {"name": "query", "description": "The question.", "required": True},
        {"name": "budget_tokens", "description": "How many tokens at most; 2,000 by default.", "required": False},
    ],
}


def build_context_tool() -> Tool:
    """Return the tool of the context call."""
    return Tool(
        name=CONTEXT_TOOL,
        title="Get a context",
        description=(
            "Get one text with facts about the user and the memories that bear on a question, within a number of"
            " tokens. Call it once at the start of a task; search for single things after it."
        ),
        parameters=object_schema(
            {
                "query": content_schema("What the task is about, as a question.") | {"maxLength": MAX_CONTENT_CHARS},
                "budget_tokens": {
                    "type": "integer",
                    "minimum": MIN_BUDGET_TOKENS,
                    "maximum": MAX_BUDGET_TOKENS,
                    "description": "How many tokens at most; 2,000 if left out.",
                },
                "reference_time": time_schema("When the query is asked, if not now: yesterday is the day before."),
            },
            required=["query"],
        ),
        reads_only=True,
    )


def context_path(slug: str) -> str:
    """Return the path of the context call of an agent."""
    return f"/v1/agents/{quote(slug, safe='')}/context"


def render_context_result(document: Json) -> Json:
    """Convert the API's answer to the result for the model: the text, and the memory behind each of its lines."""
    lines = [line for section in document["sections"] for line in section["lines"]]
    memories = [{"number": line["number"], "id": line["memory_id"]} for line in lines]
    return {"text": document["text"], "tokens": document["tokens"], "memories": memories}


def prompt_arguments(name: str, arguments: Mapping[str, str]) -> Json:
    """Convert the arguments of a prompt, which are texts, to those of the tool.

    Raises:
        RequestInvalid: If there is no prompt of the name, or `budget_tokens` is no number.
    """
    if name != PROMPT["name"]:
        raise RequestInvalid([FieldError("name", f"there is no prompt {name[:64]!r}: use {PROMPT['name']}")])
    fields: Json = dict(arguments)
    if (budget := fields.get("budget_tokens")) is not None:
        if not (budget.isascii() and budget.isdigit() and len(budget) < 8):
            raise RequestInvalid([FieldError("budget_tokens", "must be a whole number")])
        fields["budget_tokens"] = int(budget)
    return fields
