"""What a hook takes, beside conversations."""

from pydantic import Field

from agentmemory_operator.entrypoints.api.requests import Body, MemoryIn


class HookIn(Body):
    """A memory to store."""

    memory: MemoryIn = Field(description="The memory. Its author is `hook:NAME`.")
