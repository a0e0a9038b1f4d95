"""What is done around every call of the official Qdrant client, whichever method of ours makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.adapters.qdrant_sdk import AsyncQdrantClient, SendAsync
from agentmemory_operator.ports import Tracer

# The calls that send a body and change nothing.
_READS = ("/points/count", "/points/scroll", "/points/query", "/points/search")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWatch:
    """What is done around each call.

    Attributes:
        before_write: called right before each call that changes something; what it raises stops the call.
        count_call: told method and outcome of each: 2xx, 4xx, 5xx or unreachable.
        tracer: traces each.
    """

    before_write: Callable[[], None]
    count_call: Callable[[str, str], None]
    tracer: Tracer


def watch_calls(client: AsyncQdrantClient, watch: CallWatch) -> None:
    """Do around each call of the client what the watch says."""

    async def watched(request: Any, send: SendAsync) -> Any:
        if is_write(request.method, request.url.path):
            watch.before_write()
        outcome = "unreachable"
        with watch.tracer.span(f"qdrant {request.method}", kind="client") as span:
            request.headers.update(span.headers)
            try:
                response = await send(request)
                outcome = f"{response.status_code // 100}xx"
                span.note("http.response.status_code", response.status_code)
                return response
            finally:
                watch.count_call(request.method, outcome)

    client.http.client.add_middleware(watched)


def is_write(method: str, path: str) -> bool:
    """Tell whether a call changes something."""
    return method != "GET" and not (method == "POST" and path.endswith(_READS))
