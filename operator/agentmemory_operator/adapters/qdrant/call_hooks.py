"""Hooks around control calls to Qdrant, retry budget for reads of points, and HTTP session of both.

A read of points that timed out is retried once. The usual causes, a pause of this process or one lost packet, are over
by then, so the retry succeeds. But retries double the load of a server that is slow or unavailable. Therefore each
retry is charged to a budget (https://finagle.github.io/blog/2016/02/08/retry-budgets/). After a read has failed without
a response, no read is retried until the next response.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from agentmemory_operator.adapters.http.egress import Egress, HostSession, build_tls_context
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.base import WriteContext
from agentmemory_operator.ports.tracing import Tracer

# Fields of a QdrantConnection.
URL_FIELD, NODES_FIELD = "spec.url", "spec.nodes"
# Seconds after which idle connections are closed here. The server closes them after 5 s, and a write into a connection
# that it has closed has an unknown outcome.
KEEP_ALIVE_S = 4.0

# Ends of the paths of POST calls that do not count as writes.
_READS = ("/points/count", "/points/scroll", "/points/query", "/points/search", "/facet")

# Number of reads, counted without retries, that permit one retry.
READS_PER_RETRY = 10
# Maximum number of saved retries. More than one, because a pause of the process interrupts all concurrent reads.
MAX_SAVED_RETRIES = 10
# Timeout of a retry, as a fraction of the read's timeout.
RETRY_TIMEOUT_SHARE = 0.5


async def do_nothing() -> None:
    """Do nothing: the default of `CallHooks.after_move`."""


def raise_unexpected_state(message: str) -> NoReturn:
    """Raise StoreUnavailable with the given message: the default of `CallHooks.report_unexpected_state`."""
    raise StoreUnavailable(message)


class CallResponse(NamedTuple):
    """Response to a call, of any HTTP status, with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHooks:
    """Hooks around each call of `QdrantControl`, except downloads.

    Attributes:
        before_write: Called right before each call that counts as a write (`is_write`). An exception stops the call.
        writing: Context to enter around each call that counts as a write.
        after_move: Called after an attempt to move an alias that succeeded, or failed with StoreUnavailable. Its
            exception replaces the result.
        report_unexpected_state: Called with a message if the server is not in the state that this process just wrote;
            must raise.
        count_call: Called with method and outcome of each call: the class of its status, such as 2xx, or unreachable.
        tracer: Creates a span for each call.
    """

    before_write: Callable[[], None]
    count_call: Callable[[str, str], None]
    tracer: Tracer
    writing: WriteContext = nullcontext
    after_move: Callable[[], Awaitable[None]] = do_nothing
    report_unexpected_state: Callable[[str], NoReturn] = raise_unexpected_state

    async def around(
        self, method: str, path: str, send: Callable[[Mapping[str, str]], Awaitable[CallResponse]]
    ) -> CallResponse:
        """Send a call inside the hooks.

        Args:
            send: Sends the call. Its argument contains additional headers, such as the trace context.
        """
        if not is_write(method, path):
            return await self._traced(method, send)
        self.before_write()
        async with self.writing():
            return await self._traced(method, send)

    async def _traced(self, method: str, send: Callable[[Mapping[str, str]], Awaitable[CallResponse]]) -> CallResponse:
        outcome = "unreachable"
        with self.tracer.span(f"qdrant {method}", kind="client") as span:
            try:
                response = await send(span.headers)
                outcome = f"{response.status // 100}xx"
                span.note("http.response.status_code", response.status)
                return response
            finally:
                self.count_call(method, outcome)


def build_qdrant_session(
    url: str, *, api_key: str | None, ca_pem: str | None, egress: Egress, field: str = URL_FIELD, **options: Any
) -> HostSession:
    """Build the session for calls to one server.

    Args:
        api_key: Sent with each call; None for a server without authentication.
        ca_pem: Trusted CA certificates in PEM. None trusts the system's.
        field: Field with the URL, for error messages.
        options: Options of aiohttp's connector.

    Raises:
        SpecInvalid: If `url` is https, and `ca_pem` contains no certificate.
    """
    # Replace aiohttp's default Accept-Encoding: with it, the server compresses responses, which costs 40 ms per call.
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    headers |= {"api-key": api_key} if api_key else {}
    ssl = build_tls_context(url, ca_pem) or True
    return HostSession(egress, url, field=field, headers=headers, ssl=ssl, keepalive_timeout=KEEP_ALIVE_S, **options)


def is_write(method: str, path: str) -> bool:
    """Return whether a call counts as a write: any method but GET, except POST to a path that ends in `_READS`."""
    return method != "GET" and not (method == "POST" and path.partition("?")[0].endswith(_READS))


class ReadRetries:
    """Retry budget for the reads of one server: one retry at the start and one more per ten reads, ten at most.

    Several stores of the same server can share it.
    """

    def __init__(self) -> None:
        self._paid = READS_PER_RETRY
        self._is_away = False

    def record_read(self) -> None:
        """Count a read, which adds a tenth of a retry to the budget. Do not call this for retries."""
        self._paid = min(self._paid + 1, READS_PER_RETRY * MAX_SAVED_RETRIES)

    def record_response(self) -> None:
        """Record a response of any status: the server is available."""
        self._is_away = False

    def record_failure(self) -> None:
        """Record a read without a response: no retries until the next response."""
        self._is_away = True

    def try_take(self) -> bool:
        """Return whether a read may be retried; if so, charge the budget."""
        if self._is_away or self._paid < READS_PER_RETRY:
            return False
        self._paid -= READS_PER_RETRY
        return True
