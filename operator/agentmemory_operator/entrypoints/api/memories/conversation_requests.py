"""What a conversation is as it is sent and answered, and what else a hook takes."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from agentmemory_operator.distillation.conversations import Conversation, SpokenTurn, StoredConversation
from agentmemory_operator.entrypoints.api.fields import Author, Content, Id, Numbers, Role, Time, UserId, ZoneName
from agentmemory_operator.entrypoints.api.requests import Body, MemoryIn
from agentmemory_operator.entrypoints.api.schemas import Answer

MESSAGES_MAX = 256
_MESSAGES = "messages"


class TurnIn(Body):
    """What one said."""

    role: Role = Field(description="What the speaker is.")
    content: Content = Field(description="The text itself.")
    speaker: Id | None = Field(default=None, description="Who said it, by name.")
    at: Time | None = Field(default=None, description="When it was said. Default: now, in the order of the turns.")
    vector: Numbers | None = Field(default=None, description="Only, and always, with embedding provider `none`.")


class ConversationIn(Body):
    """Turns to store; where the agent has a model, memories are made of them."""

    user_id: UserId = Field(description="Whose memories: a user, `group:NAME` or `global`.")
    messages: Annotated[list[TurnIn], Field(min_length=1, max_length=MESSAGES_MAX)] = Field(
        description="The turns, in the order in which they were said."
    )
    session_id: Id | None = Field(default=None, description="The session that it is a part of.")
    author: Author | None = Field(
        default=None, description="Who stores it. Default: the caller; another one takes the verb impersonate."
    )
    zone: ZoneName | None = Field(
        default=None,
        description="How the turns are sealed, of the zones that the object allows; no model reads sealed ones."
        " Default: not at all.",
    )

    def conversation(self, *, stored_by: str | None, idempotency_key: str | None) -> Conversation:
        """What the use case takes."""
        said = {name: value for name, value in dict(self).items() if name != _MESSAGES}
        turns = tuple(SpokenTurn(**dict(turn)) for turn in self.messages)
        return Conversation(**said, turns=turns, stored_by=stored_by, idempotency_key=idempotency_key)


class ConversationOut(Answer):
    """A conversation that is durable."""

    turns: list[str | None] = Field(description="Ids of the turns; null: not stored, of which a warning tells.")
    run: str | None = Field(description="Of the distillation that follows; null: none does, of which a warning tells.")
    warnings: list[str]


def is_conversation(sent: Any) -> bool:
    """Whether a body is a conversation, and nothing else that is taken in its place."""
    return isinstance(sent, dict) and _MESSAGES in sent


def body_of(sent: Any) -> type[BaseModel]:
    """The model of a body that is a memory or a conversation."""
    return ConversationIn if is_conversation(sent) else MemoryIn


def conversation(stored: StoredConversation) -> dict[str, Any]:
    """`ConversationOut`."""
    return {"turns": stored.turns, "run": stored.run, "warnings": stored.warnings}


class HookIn(Body):
    """A memory to store."""

    memory: MemoryIn = Field(description="The memory. Its author is `hook:NAME`.")
