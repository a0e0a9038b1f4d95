"""Memory block of LlamaIndex. It needs the extra `llama-index`.

`Memory` moves the oldest messages of a chat into its blocks, and inserts the text of each block into the prompt. This
block stores those messages, and recalls what bears on the latest message of the user.

If the memory is unavailable, the chat continues without it, and a warning is logged; messages that leave the chat
history at that time are not stored. Other errors of the API are raised: the settings are wrong.
"""

import asyncio
import re
from itertools import groupby
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from pydantic import Field

from agentmemory_client.adapters.common import (
    find_memories,
    outages_logged,
    render_memories,
    store_turns,
)
from agentmemory_client.handles import User
from agentmemory_client.memory_calls import ConversationOptions, Message

ROLES = {MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant"}
ROLES |= {MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}
CHARS_PER_TOKEN = 4


class AgentMemoryBlock(BaseMemoryBlock[str]):
    """Long-term memories of one user as a block of a `Memory`.

    Attributes:
        user: User of a blocking `Client`.
        top_k: Maximum number of memories.
        max_chars: Maximum number of characters that the memories take in the prompt.
    """

    name: str = "agentmemory"
    description: str | None = "Memories of earlier conversations with the user."
    user: User = Field(exclude=True)
    top_k: int = 10
    max_chars: int = 4000

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        asked = [message for message in messages or () if message.role == MessageRole.USER]
        if not asked:
            return ""
        with outages_logged("no memories for this chat"):
            found = await asyncio.to_thread(find_memories, self.user, asked[-1].content or "", limit=self.top_k)
            # `Memory` inserts the text between tags, which a memory must not close.
            return render_memories(found, limit=self.max_chars).replace("<", "&lt;")
        return ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        with outages_logged(f"{len(messages)} messages are not stored"):
            for session_id, group in groupby(messages, lambda message: message.additional_kwargs.get("session_id")):
                turns: list[Message] = [
                    {"role": ROLES[message.role], "content": message.content or ""}
                    for message in group
                    if message.role in ROLES
                ]
                options: ConversationOptions = {"session_id": session_id} if session_id else {}
                await asyncio.to_thread(store_turns, self.user, turns, **options)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Remove whole memories from the end, at least the given tokens of 4 characters; None if none remains."""
        room = len(content) - tokens_to_truncate * CHARS_PER_TOKEN
        # The first part is the heading. Further lines of a memory are indented.
        parts = re.split(r"\n(?=- )", content)
        while len(parts) > 1 and len("\n".join(parts)) > room:
            parts.pop()
        return "\n".join(parts) if len(parts) > 1 else None
