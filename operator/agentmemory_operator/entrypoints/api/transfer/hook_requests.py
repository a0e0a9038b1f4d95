"""What a hook takes."""

from typing import Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.requests import Body, MemoryIn


class HookIn(Body):
    """A memory to store."""

    memory: MemoryIn = Field(description="The memory. Its author is `hook:NAME`.")

    @model_validator(mode="before")
    @classmethod
    def _is_no_conversation(cls, sent: Any) -> Any:
        if isinstance(sent, dict) and "messages" in sent:
            message = 'messages are not taken yet: send one memory, as {"memory": {...}}'
            raise PydanticCustomError("no_messages", "{message}", {"message": message, "field": "messages"})
        return sent
