"""What is done around every control call to Qdrant, whichever method of ours makes it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agentmemory_operator.ports.tracing import Tracer

# The calls that send a body and change nothing.
_READS = ("/points/count", "/points/scroll", "/points/query", "/points/search")


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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

    async def around(self, method: str, path: str, send: Callable[[Mapping[str, str]], Awaitable[Answer]]) -> Answer:
        """Send a call and do around it what this says.

        Args:
            send: sends it with these headers besides its own.
        """
        if is_write(method, path):
            self.before_write()
        outcome = "unreachable"
        with self.tracer.span(f"qdrant {method}", kind="client") as span:
            try:
                answer = await send(span.headers)
                outcome = f"{answer.status // 100}xx"
                span.note("http.response.status_code", answer.status)
                return answer
            finally:
                self.count_call(method, outcome)


def is_write(method: str, path: str) -> bool:
    """Tell whether a call changes something."""
    return method != "GET" and not (method == "POST" and path.partition("?")[0].endswith(_READS))
