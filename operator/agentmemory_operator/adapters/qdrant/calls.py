"""What is done around calls to Qdrant, whichever method of ours makes them.

A read of points that timed out is tried once more. A process that stood still, or one lost packet, is over by the time
a read is given up: a second try is answered at once. A server that is slow or away is not helped by twice the calls. So
second tries are paid from a budget, as Finagle's are (https://finagle.github.io/blog/2016/02/08/retry-budgets/), and
there are none while nothing answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from agentmemory_operator.adapters.http.egress import Egress, HostSession, trust_of
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.base import Writing
from agentmemory_operator.ports.tracing import Tracer

# Of a connection.
URL_FIELD, NODES_FIELD = "spec.url", "spec.nodes"
# Below the 5 s after which the server closes an idle connection: a write sent into a closed one has an unknown outcome.
KEEP_ALIVE_S = 4.0

# The calls that send a body and change nothing.
_READS = ("/points/count", "/points/scroll", "/points/query", "/points/search")

# Reads that pay for one second try.
READS_A_TRY = 10
# What is saved up: a pause of the process interrupts everything under way at once.
MOST_TRIES = 10
# Of the time that a read was given, what its second try gets.
AGAIN_SHARE = 0.5


async def nothing() -> None:
    """Ask nobody."""


def doubted(doubt: str) -> NoReturn:
    """Raise that a server is not as it was just made."""
    raise StoreUnavailable(doubt)


class CallAnswer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWatch:
    """What is done around each call.

    Attributes:
        before_write: called right before each call that changes something; what it raises stops the call.
        writing: entered around it.
        after_move: called after an alias was pointed somewhere, whatever came of it; what it raises is told.
        doubt: told what is not as this process just made it; raises.
        count_call: told method and outcome of each: 2xx, 4xx, 5xx or unreachable.
        tracer: traces each.
    """

    before_write: Callable[[], None]
    count_call: Callable[[str, str], None]
    tracer: Tracer
    writing: Writing = nullcontext
    after_move: Callable[[], Awaitable[None]] = nothing
    doubt: Callable[[str], NoReturn] = doubted

    async def around(
        self, method: str, path: str, send: Callable[[Mapping[str, str]], Awaitable[CallAnswer]]
    ) -> CallAnswer:
        """Send a call and do around it what this says.

        Args:
            send: sends it with these headers besides its own.
        """
        if not is_write(method, path):
            return await self._traced(method, send)
        self.before_write()
        async with self.writing():
            return await self._traced(method, send)

    async def _traced(self, method: str, send: Callable[[Mapping[str, str]], Awaitable[CallAnswer]]) -> CallAnswer:
        outcome = "unreachable"
        with self.tracer.span(f"qdrant {method}", kind="client") as span:
            try:
                answer = await send(span.headers)
                outcome = f"{answer.status // 100}xx"
                span.note("http.response.status_code", answer.status)
                return answer
            finally:
                self.count_call(method, outcome)


def session_to(
    url: str, *, api_key: str | None, ca_pem: str | None, egress: Egress, field: str = URL_FIELD, **options: Any
) -> HostSession:
    """The connections to one server.

    Args:
        options: of aiohttp's connector.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """
    # The default Accept-Encoding makes the server compress, which costs 40 ms a call.
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    headers |= {"api-key": api_key} if api_key else {}
    ssl = trust_of(url, ca_pem) or True
    return HostSession(egress, url, field=field, headers=headers, ssl=ssl, keepalive_timeout=KEEP_ALIVE_S, **options)


def is_write(method: str, path: str) -> bool:
    """Whether a call changes something."""
    return method != "GET" and not (method == "POST" and path.partition("?")[0].endswith(_READS))


class ReadRetries:
    """The budget of one server, shared by all that read from it: a tenth of the reads, and one to begin with."""

    def __init__(self) -> None:
        self._paid = READS_A_TRY
        self._is_away = False

    def asked(self) -> None:
        """Count a read, second tries left out."""
        self._paid = min(self._paid + 1, READS_A_TRY * MOST_TRIES)

    def answered(self) -> None:
        """Note an answer, whatever it says: the server is there."""
        self._is_away = False

    def lost(self) -> None:
        """Note a read that ended without an answer: until one comes the server is held to be away."""
        self._is_away = True

    def take(self) -> bool:
        """Whether a read may be tried again, and pay for it."""
        if self._is_away or self._paid < READS_A_TRY:
            return False
        self._paid -= READS_A_TRY
        return True
