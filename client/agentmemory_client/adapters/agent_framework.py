"""Context provider of the Microsoft Agent Framework. It needs the extra `agent-framework`.

Before a run it adds what is known of the user and what bears on the input, as a message of the user: text that others
may have written must not become an instruction. After the run it stores the input and the response.

If the memory is unavailable, the run continues without it, and a warning is logged; the run's messages are then not
stored. Other errors of the API are raised: the settings are wrong.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agent_framework import AgentSession, ContextProvider, Message, SessionContext

from agentmemory_client.adapters.common import build_context, outages_logged, store_turns
from agentmemory_client.handles import User
from agentmemory_client.memory_calls import ConversationOptions
from agentmemory_client.memory_calls import Message as Turn
from agentmemory_client.texts import is_visible

ROLES = ("user", "assistant")


class AgentMemoryProvider(ContextProvider):
    """Recalls and stores the conversations of a user.

    Args:
        user: User of a blocking `Client`, or a function that returns the user of a session. Use the function if one
            agent serves several users.
        source_id: Name of the provider, unique among those of an agent.
        budget_tokens: Maximum number of tokens that the memories take in the prompt, from 64.
    """

    def __init__(
        self,
        user: User | Callable[[AgentSession], User],
        *,
        source_id: str = "agentmemory",
        budget_tokens: int = 1000,
    ) -> None:
        super().__init__(source_id)
        self._user = user
        self._budget_tokens = budget_tokens

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Add a context for the last message of the user."""
        turns, text = list(_turns(context.input_messages)), ""
        with outages_logged("no memories for this run"):
            text = await asyncio.to_thread(
                build_context, self._user_of(session), turns, budget_tokens=self._budget_tokens
            )
        if text:
            context.extend_messages(self.source_id, [Message(role="user", contents=[text])])

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Store the input and the response, but no messages of other providers."""
        response = context.response.messages if context.response else []
        turns = list(_turns([*context.input_messages, *response]))
        options: ConversationOptions = {"session_id": context.session_id} if context.session_id else {}
        with outages_logged("the messages of this run are not stored"):
            await asyncio.to_thread(store_turns, self._user_of(session), turns, **options)

    def _user_of(self, session: AgentSession) -> User:
        return self._user if isinstance(self._user, User) else self._user(session)


def _turns(messages: Iterable[Message]) -> Iterator[Turn]:
    """Yield the messages of users and assistants that have text. Calls of tools and their results have none."""
    for message in messages:
        if message.role in ROLES and is_visible(message.text):
            yield {"role": message.role, "content": message.text}
