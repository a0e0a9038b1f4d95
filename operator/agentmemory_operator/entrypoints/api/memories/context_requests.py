"""Request and response models of the context call, and its rendering."""

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import (
    WHOLE,
    Body,
    Content,
    Filters,
    FilterTags,
    Id,
    Namespace,
    Numbers,
    QueryTimes,
    Role,
    ScopeNames,
    Time,
    TypeNames,
    UserId,
)
from agentmemory_operator.entrypoints.api.memories.conversation_requests import MAX_MESSAGES
from agentmemory_operator.entrypoints.api.memory_schemas import Answer
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.filters import Selection, TagsMatch
from agentmemory_operator.search.context import ALL_SECTIONS, ContextAnswer, ContextRequest
from agentmemory_operator.search.rules.context_budget import ContextLine, LeftOutReason
from agentmemory_operator.search.rules.context_text import SectionName, speaker_of
from agentmemory_operator.spec.times import render_time

DEFAULT_BUDGET_TOKENS = 2_000
MIN_BUDGET_TOKENS, MAX_BUDGET_TOKENS = 64, 32_000
MAX_LEFT_OUT = 100

Json = dict[str, Any]
BudgetTokens = Annotated[int, Field(ge=MIN_BUDGET_TOKENS, le=MAX_BUDGET_TOKENS), WHOLE]


class ContextMessageIn(Body):
    """A message that the caller's prompt has already."""

    role: Role = Field(description="Role of the speaker.")
    content: Content = Field(description="Text of the message.")


class ContextIn(Body, QueryTimes):
    """A request for the context of a prompt. The section `relevant` needs `query`, `messages` or `vector`."""

    user_id: UserId = Field(description="User whose memories are used.")
    include_scopes: ScopeNames | None = Field(
        default=None, description="Shared scopes to search too. Default: `global` if the caller may read it."
    )
    query: Content | None = Field(default=None, description="Text to search for.")
    messages: Annotated[list[ContextMessageIn], Field(min_length=1, max_length=MAX_MESSAGES)] | None = Field(
        default=None,
        description="Messages of the prompt, oldest first, instead of `query`: the last one of the user is searched"
        " for, and memories with the text of one are left out.",
    )
    vector: Numbers | None = Field(default=None, description="Vector to search for, with the agent's dimensions.")
    budget_tokens: BudgetTokens = Field(
        default=DEFAULT_BUDGET_TOKENS, description="Maximum number of tokens of the text, 64 to 32,000."
    )
    sections: Annotated[list[SectionName], Field(min_length=1, max_length=len(ALL_SECTIONS))] = Field(
        default=list(ALL_SECTIONS), description="Sections to fill. Default: all."
    )
    session_id: Id | None = Field(default=None, description="Session with the recent turns. Default: no turns.")
    types: TypeNames | None = Field(default=None, min_length=1, description="Of `relevant`: only these types.")
    tags: FilterTags | None = Field(
        default=None, min_length=1, description="Of `relevant`: only memories with any of these tags."
    )
    tags_match: TagsMatch = Field(default="any", description="`any`: memories have one of the tags; `all`: every tag.")
    namespace: Namespace = Field(
        default=[], description="Of `relevant`: only memories with a namespace that starts with these parts."
    )
    filters: Filters = Field(
        default={}, description="Of `relevant`: conditions on fields, as in a search. See docs/filters.md."
    )

    @model_validator(mode="after")
    def _check_question(self) -> "ContextIn":
        if self.query is not None and self.messages is not None:
            raise PydanticCustomError("one_of", "send one of query and messages", {"field": "query"})
        if "relevant" in self.sections and self.query is None and self.messages is None and self.vector is None:
            message = "send query, messages or vector for the section relevant"
            raise PydanticCustomError("one_of", "{message}", {"message": message, "field": "query"})
        if self.sections == ["recent"] and self.session_id is None:
            raise PydanticCustomError("one_of", "required for the section recent", {"field": "session_id"})
        return self

    def context_request(self, *, default_scopes: tuple[str, ...], default_time_zone: str | None) -> ContextRequest:
        """Convert to the `ContextRequest` of the use case.

        Args:
            default_scopes: Shared scopes to search if the body has no `include_scopes`.
            default_time_zone: Zone from the request header, used if the body names none. None without the header.

        Raises:
            RequestInvalid: If `filters` are invalid.
        """
        selection = Selection(
            user_id=self.user_id,
            scopes=default_scopes if self.include_scopes is None else tuple(self.include_scopes),
            types=tuple(self.types or ()),
            tags=tuple(self.tags or ()),
            tags_match=self.tags_match,
            namespace=tuple(self.namespace),
            criterion=parse_filters(self.filters),
        )
        return ContextRequest(
            selection=selection,
            budget=self.budget_tokens,
            query=self.query,
            messages=[(message.role, message.content) for message in self.messages or ()],
            vector=self.vector,
            session_id=self.session_id,
            sections=tuple(self.sections),
            **self.time_options(default_time_zone),
        )


class ContextLineOut(Answer):
    """A memory in the text."""

    number: int = Field(description="Number of its line in the text.")
    memory_id: str
    user_id: str = Field(description="Its owner: the user, `group:NAME` or `global`.")
    type: str
    created_at: Time
    speaker: str | None = Field(description="Name or role of the speaker; null if nobody said it in a conversation.")
    text: str = Field(description="Its line without the number.")
    tokens: int = Field(description="Tokens of the line.")
    cut: bool = Field(description="True if the end of the memory is missing.")
    score: float | None = Field(description="Score of the search; null if the search did not find it.")


class ContextSectionOut(Answer):
    """A section of the text. Without lines, the text does not have it."""

    name: SectionName
    lines: list[ContextLineOut]


class ContextLeftOutOut(Answer):
    """A memory that was read and is not in the section."""

    section: SectionName
    memory_id: str
    reason: LeftOutReason = Field(
        description="budget: it does not fit; repeated: another line has it or its text; sent: one of `messages` has"
        " its text; locked: its zone's key is unavailable."
    )


class ContextOut(Answer):
    """A text for a prompt, and the memories in it."""

    text: str = Field(description="The whole text, to put into the prompt unchanged.")
    tokens: int = Field(description="Tokens of the text, at most `budget_tokens`.")
    budget_tokens: int
    tokenizer: str = Field(description="Tokenizer that counted: `wordllama/l2_supercat` has the vocabulary of Llama 2.")
    sections: list[ContextSectionOut]
    left_out: list[ContextLeftOutOut] = Field(description="At most 100, in the order in which they were tried.")
    more_left_out: int = Field(description="Number of further memories that were left out.")
    generation: int = Field(description="Generation of the AgentMemory object whose settings were used.")
    took_ms: float
    warnings: list[str] = Field(description="Warnings of the search.")


def render_context(answer: ContextAnswer, budget: int) -> Json:
    """Render the JSON of `ContextOut`."""
    context = answer.context
    return {
        "text": context.text,
        "tokens": context.tokens,
        "budget_tokens": budget,
        "tokenizer": answer.tokenizer,
        "sections": [
            {"name": name, "lines": [_line(line, answer) for line in lines]} for name, lines in context.sections.items()
        ],
        "left_out": [
            {"section": one.section, "memory_id": one.memory_id, "reason": one.reason}
            for one in context.left_out[:MAX_LEFT_OUT]
        ],
        "more_left_out": max(0, len(context.left_out) - MAX_LEFT_OUT),
        "generation": answer.generation,
        "took_ms": round(answer.duration_ms, 3),
        "warnings": answer.warnings,
    }


def _line(line: ContextLine, answer: ContextAnswer) -> Json:
    record = line.record
    return {
        "number": line.number,
        "memory_id": record.id,
        "user_id": record.user_id,
        "type": record.type,
        "created_at": render_time(record.created_at),
        "speaker": speaker_of(record) or None,
        "text": line.text,
        "tokens": line.tokens,
        "cut": line.is_cut,
        "score": answer.scores.get(record.id),
    }
