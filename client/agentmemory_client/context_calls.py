"""The call that builds a context for a prompt; it becomes a method of a user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from agentmemory_client.exchange import Call, build_path, to_json
from agentmemory_client.values import Answer, read_value

SectionName = Literal["facts", "relevant", "recent"]


class ContextMessage(TypedDict):
    """A message that the prompt has already.

    Attributes:
        role: user, assistant, tool or system.
    """

    role: str
    content: str


class ContextOptions(TypedDict, total=False):
    """Options of a context. docs/context.md explains each."""

    messages: Sequence[ContextMessage]
    vector: Sequence[float]
    include_scopes: Sequence[str]
    budget_tokens: int
    sections: Sequence[SectionName]
    session_id: str
    reference_time: datetime | str
    time_zone: str
    types: Sequence[str]
    tags: Sequence[str]
    tags_match: Literal["any", "all"]
    namespace: Sequence[str]
    filters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLine(Answer):
    """A memory in the text of a context.

    Attributes:
        number: Number of its line in the text.
        user_id: Its owner: the user, or a shared scope.
        text: Its line without the number.
        cut: True if the end of the memory is missing.
        score: Score of the search; None if the search did not find it.
    """

    number: int
    memory_id: str
    user_id: str
    type: str
    created_at: datetime
    text: str
    tokens: int
    speaker: str | None = None
    cut: bool = False
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSection(Answer):
    """A section of a context."""

    name: str
    lines: tuple[ContextLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Answer):
    """A text for a prompt, and the memories in it.

    Attributes:
        text: The whole text, to put into the prompt unchanged.
        tokens: Tokens of the text, as `tokenizer` counts them; at most `budget_tokens`.
        left_out: Memories that are not in their section, each with `section`, `memory_id` and `reason`.
        more_left_out: Number of further ones.
        generation: Generation of the object whose settings ranked.
    """

    text: str
    tokens: int
    budget_tokens: int
    tokenizer: str
    sections: tuple[ContextSection, ...]
    left_out: tuple[dict[str, Any], ...] = ()
    more_left_out: int = 0
    generation: int = 0
    took_ms: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[ContextLine, ...]:
        """All lines, in the order of the text."""
        return tuple(line for section in self.sections for line in section.lines)


def context(agent: str, user_id: str, query: str | None = None, **options: Unpack[ContextOptions]) -> Call[Context]:
    """Build one text for a prompt: facts about the user, memories that bear on the query, turns of a session.

    Without `query`, the option `messages` has the question, or `vector`.
    """
    query_field = {} if query is None else {"query": query}
    body = to_json({"user_id": user_id, **query_field, **options})
    return Call(method="POST", path=build_path(agent, "context"), body=body, read=read_context)


def read_context(document: dict[str, Any]) -> Context:
    """Build a context from its JSON."""
    sections = [
        read_value(
            ContextSection, section | {"lines": tuple(read_value(ContextLine, line) for line in section["lines"])}
        )
        for section in document["sections"]
    ]
    return read_value(Context, document | {"sections": tuple(sections)})
