"""Request and response models of conversations and hooks."""

from typing import Annotated, Any

from pydantic import Field

from agentmemory_operator.distillation.conversations import Conversation, SpokenTurn, StoredConversation
from agentmemory_operator.entrypoints.api.fields import Author, Body, Content, Id, Numbers, Role, Time, UserId, ZoneName
from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn
from agentmemory_operator.entrypoints.api.memory_schemas import Answer

MAX_MESSAGES = 256
_MESSAGES = "messages"


class TurnIn(Body):
    """One turn of a conversation, stored as one memory."""

    role: Role = Field(description="Role of the speaker.")
    content: Content = Field(description="Text of the turn.")
    speaker: Id | None = Field(default=None, description="Name of the speaker.")
    at: Time | None = Field(default=None, description="Time of the turn. Default: now, in the order of the turns.")
    vector: Numbers | None = Field(
        default=None, description="Vector of the content. Required with provider `none`, otherwise not allowed."
    )


class ConversationIn(Body):
    """Turns to store; if the agent has a language model, memories are distilled from them."""

    user_id: UserId = Field(description="Owner of the memories: a user, `group:NAME` or `global`.")
    messages: Annotated[list[TurnIn], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="Turns in the order of the conversation."
    )
    session_id: Id | None = Field(default=None, description="Session of the conversation.")
    author: Author | None = Field(
        default=None, description="Author. Default: the caller; another one needs the verb impersonate."
    )
    zone: ZoneName | None = Field(
        default=None,
        description="Privacy zone of the turns, one that the object allows. Turns with a zone are not distilled."
        " Default: none.",
    )

    def conversation(self, *, stored_by: str | None, idempotency_key: str | None) -> Conversation:
        """Convert to the `Conversation` of the use case.

        Args:
            stored_by: Authenticated caller, who becomes the author if the body names none. None if there is no caller.
            idempotency_key: Key from the request header; None if the client sends none.
        """
        values = {name: value for name, value in dict(self).items() if name != _MESSAGES}
        turns = tuple(SpokenTurn(**dict(turn)) for turn in self.messages)
        return Conversation(**values, turns=turns, stored_by=stored_by, idempotency_key=idempotency_key)


class ConversationOut(Answer):
    """Result of storing a conversation."""

    turns: list[str | None] = Field(
        description="IDs of the turns; null for a turn that was not stored, which `warnings` explains."
    )
    run: str | None = Field(
        description="ID of the distillation run that follows; null if there is none, which `warnings` explains."
    )
    warnings: list[str]


def is_conversation(sent: Any) -> bool:
    """Return whether a body has the field `messages`, which a conversation has and a memory lacks."""
    return isinstance(sent, dict) and _MESSAGES in sent


def choose_model(sent: Any) -> type[Body]:
    """Return ConversationIn for a body with `messages`, else MemoryIn."""
    return ConversationIn if is_conversation(sent) else MemoryIn


def render_conversation(stored: StoredConversation) -> dict[str, Any]:
    """Render the JSON of `ConversationOut`."""
    return {"turns": stored.turns, "run": stored.run, "warnings": stored.warnings}


class HookIn(Body):
    """Body of a signed request to a hook: one memory to store."""

    memory: MemoryIn = Field(description="The memory. Its author is `hook:NAME`.")
