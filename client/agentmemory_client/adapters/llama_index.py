"""Memory block of LlamaIndex. It needs the extra `llama-index`.

`Memory` moves the oldest messages of a chat into its blocks, and inserts the text of each block into the prompt. This
block stores those messages, and recalls what is known of the user and what bears on the latest message.

If the memory is unavailable, the chat continues without it, and a warning is logged; messages that leave the chat
history at that time are not stored. Other errors of the API are raised: the settings are wrong.
"""

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from pydantic import Field

from agentmemory_client.adapters.common import build_context, outages_logged, store_turns
from agentmemory_client.handles import User
from agentmemory_client.memory_calls import ConversationOptions, Message

ROLES = {MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant"}
ROLES |= {MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}
CHARS_PER_TOKEN = 4


class AgentMemoryBlock(BaseMemoryBlock[str]):
    """Long-term memories of one user as a block of a `Memory`.

    Attributes:
        user: User of a blocking `Client`.
        budget_tokens: Maximum number of tokens that the memories take in the prompt, from 64.
    """

    name: str = "agentmemory"
    description: str | None = "Memories of earlier conversations with the user."
    user: User = Field(exclude=True)
    budget_tokens: int = 1000

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        with outages_logged("no memories for this chat"):
            turns = _turns(messages or ())
            return await asyncio.to_thread(build_context, self.user, turns, budget_tokens=self.budget_tokens)
        return ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        with outages_logged(f"{len(messages)} messages are not stored"):
            for session_id, group in groupby(messages, lambda message: message.additional_kwargs.get("session_id")):
                options: ConversationOptions = {"session_id": session_id} if session_id else {}
                await asyncio.to_thread(store_turns, self.user, _turns(group), **options)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Remove whole memories from the end, at least the given tokens of 4 characters; None if none remains."""
        room = len(content) - tokens_to_truncate * CHARS_PER_TOKEN
        # A memory is one line that begins with its number. The last line ends the frame.
        *lines, end = content.splitlines()
        while lines and (len("\n".join([*lines, end])) > room or not lines[-1][:1].isdigit()):
            lines.pop()
        return "\n".join([*lines, end]) if lines else None


def _turns(messages: Iterable[ChatMessage]) -> list[Message]:
    """Return the messages of users and assistants. Calls of tools and their results are left out."""
    return [
        {"role": ROLES[message.role], "content": message.content or ""} for message in messages if message.role in ROLES
    ]
