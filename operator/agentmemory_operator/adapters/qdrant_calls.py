"""What is done around every call of the official Qdrant client, whichever method of ours makes it."""

from collections.abc import Callable
from typing import Any

from qdrant_client import AsyncQdrantClient
from qdrant_client.http.api_client import SendAsync

# The calls that send a body and change nothing.
_READS = ("/points/count", "/points/scroll", "/points/query", "/points/search")


def check_writes(client: AsyncQdrantClient, before_write: Callable[[], None]) -> None:
    """Call `before_write` right before each call that changes something; what it raises stops the call."""

    async def checked(request: Any, send: SendAsync) -> Any:
        if is_write(request.method, request.url.path):
            before_write()
        return await send(request)

    client.http.client.add_middleware(checked)


def is_write(method: str, path: str) -> bool:
    """Tell whether a call changes something."""
    return method != "GET" and not (method == "POST" and path.endswith(_READS))
