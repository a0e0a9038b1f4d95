"""One API call without its transport: the request, the interpretation of the response, and the retry policy."""

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import httpx

from agentmemory_client.problems import ApiUnreachable, read_problem

T = TypeVar("T")
Token: TypeAlias = str | Callable[[], str] | None
Outcome: TypeAlias = httpx.Response | httpx.TransportError
DEFAULT_URL = "http://127.0.0.1:8080"
TOO_MANY_REQUESTS = 429
# 429 and 503: the API did nothing. 504: the call may have taken effect, but repeating it is safe.
RETRIED_STATUSES = frozenset({TOO_MANY_REQUESTS, 503, 504})
INITIAL_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address of the API, credentials and retry policy.

    Attributes:
        token: Sent as `Authorization: Bearer`. A callable is called before each attempt.
        timeout_s: Timeout in seconds to connect, to write, and between two received bytes.
        retries: Attempts after the first.
        wait_max_s: Longest wait between two attempts in seconds; it also caps the API's `Retry-After`.
        in_flight: Maximum number of calls sent at the same time. Further calls wait in the client.
    """

    url: str = DEFAULT_URL
    token: Token = field(default=None, repr=False)
    timeout_s: float = 30.0
    retries: int = 3
    wait_max_s: float = 30.0
    in_flight: int = 64

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ValueError(f"in_flight: {self.in_flight}: at least 1 call must be allowed")
        try:
            scheme = httpx.URL(self.url).scheme
        except httpx.InvalidURL as error:
            raise ValueError(f"url: {self.url!r}: {error}") from error
        if scheme not in ("http", "https"):
            raise ValueError(f"url: {self.url!r} has no http:// or https:// before it")
        if self.token is not None and not callable(self.token):
            check_token(self.token)

    @property
    def client_options(self) -> dict[str, Any]:
        """Options for the constructor of an httpx client."""
        # The client's slots already bound the connections. A limit here would count a wait for one as a timeout.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.in_flight)
        return {"base_url": self.url.rstrip("/"), "timeout": self.timeout_s, "limits": limits}

    @property
    def authorization(self) -> dict[str, str]:
        """Header that authenticates the caller, with the current token; empty without one.

        Raises:
            ValueError: If a callable returned a token with characters that a header cannot contain.
        """
        token = check_token(self.token()) if callable(self.token) else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def retry_pause_s(self, attempt: int, outcome: Outcome, *, times: int | None = None) -> float | None:
        """Return the pause in seconds before the next attempt, or None if the outcome is final.

        An outcome is final after the last attempt, or if its status is not in `RETRIED_STATUSES`.

        Args:
            attempt: Number of the attempt, counted from 0.
            times: Attempts after the first; None for `retries`.
        """
        if attempt >= (self.retries if times is None else times):
            return None
        if isinstance(outcome, httpx.TransportError):
            return self.backoff_s(attempt, None)
        return (
            self.backoff_s(attempt, outcome.headers.get("Retry-After"))
            if outcome.status_code in RETRIED_STATUSES
            else None
        )

    def backoff_s(self, attempt: int, retry_after: str | None) -> float:
        """Return the wait in seconds after an attempt, at most `wait_max_s`.

        It is `retry_after` if the API sent whole seconds. Otherwise it is exponential with jitter: `INITIAL_BACKOFF_S`,
        doubled after each attempt, times a random factor from 0.5 to 1.

        Args:
            attempt: Number of the attempt, counted from 0.
        """
        if retry_after is not None and retry_after.isdigit():
            return min(float(retry_after), self.wait_max_s)
        # Random jitter spreads the retries of many callers.
        return min(INITIAL_BACKOFF_S * 2.0**attempt * random.uniform(0.5, 1.0), self.wait_max_s)

    @contextmanager
    def transport_errors(self) -> Iterator[None]:
        """Convert transport errors to ApiUnreachable."""
        try:
            yield
        except httpx.TransportError as error:
            raise ApiUnreachable(
                f"no answer from {self.url} ({type(error).__name__}): is the API running there?"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One API call. Every call is safe to retry; writes carry an idempotency key.

    Attributes:
        read: Builds the result from the JSON of the response.
        key: Idempotency key; None if the call needs none.
        headers: Further headers.
        has_etag: True if the response has a header `ETag`, which `read` gets as the field `etag`.
        on_not_found: Builds the result if a retry finds the object deleted (404): an earlier attempt has deleted it.
        timeout_s: Timeout in seconds for a slow call; None for the connection's.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    parameters: Mapping[str, Any] | None = None
    body: Any = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    has_etag: bool = False
    on_not_found: Callable[[], T] | None = None
    timeout_s: float | None = None

    def request(self, connection: Connection) -> dict[str, Any]:
        """Build the arguments of an httpx request, with the current token. Raises: As `Connection.authorization`."""
        headers: dict[str, str | bytes] = {**connection.authorization, **self.headers}
        headers |= {"Idempotency-Key": self.key.encode()} if self.key else {}
        sent: dict[str, Any] = {"method": self.method, "url": self.path, "headers": headers}
        sent |= {"timeout": self.timeout_s} if self.timeout_s else {}
        return (
            sent | ({"params": self.parameters} if self.parameters else {}) | ({"json": self.body} if self.body else {})
        )

    def read_outcome(self, connection: Connection, outcome: Outcome, *, is_repeated: bool) -> T:
        """Return the result of the last attempt.

        Raises:
            ApiError: If the response is an error, or its body is not JSON.
            ApiUnreachable: If there was no response. A write may have taken effect.
        """
        with connection.transport_errors():
            answer = response_of(outcome)
        if answer.status_code == 404 and is_repeated and self.on_not_found:
            return self.on_not_found()
        document = read_json(answer)
        if self.has_etag:
            # A proxy that compresses the response makes the tag a weak one.
            document["etag"] = answer.headers.get("ETag", "").removeprefix("W/").strip('"') or None
        return self.read(document)

    def next_page(self, **mark: str) -> "Call[T]":
        """Return the call for the next page. `mark` is the pagination parameter and its value."""
        return replace(self, parameters={**(self.parameters or {}), **mark})


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Entries that are read page by page.

    Attributes:
        first: Reads the first page. A page has `results` and `next_{mark}`, which is None on the last page.
        mark: Name of the pagination parameter.
    """

    first: Call[Any]
    mark: str = "cursor"

    def next_page(self, page: Any) -> Call[Any] | None:
        """Return the call for the page after `page`, or None if `page` is the last."""
        mark = getattr(page, f"next_{self.mark}")
        return None if mark is None else self.first.next_page(**to_json({self.mark: mark}))


def is_rate_limited(outcome: Outcome) -> bool:
    """Return whether the API rejected the call with 429, because the caller sends too much at once."""
    return isinstance(outcome, httpx.Response) and outcome.status_code == TOO_MANY_REQUESTS


def check_token(token: str) -> str:
    """Return the token if a header can contain it.

    Raises:
        ValueError: If it has other characters. The message does not contain the token.
    """
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError(
            "token: must be printable ASCII text without white space around it; a token read from a file may end in a"
            " line break: strip it"
        )
    return token


def response_of(outcome: Outcome) -> httpx.Response:
    """Return the response of the last attempt.

    Raises:
        httpx.TransportError: If there was no response.
    """
    if isinstance(outcome, httpx.TransportError):
        raise outcome
    return outcome


def read_json(answer: httpx.Response) -> Any:
    """Parse the body of a response as JSON; None if it is empty.

    Raises:
        ApiError: If the response is an error, or its body is not JSON, for example a proxy's login page.
    """
    with suppress(ValueError):
        if answer.is_success:
            return answer.json() if answer.content else None
    raise read_problem(answer.status_code, answer.content)


def build_path(agent: str, *parts: str) -> str:
    """Build the path of an agent or of a resource below it, with each part percent-encoded."""
    return "/".join(("/v1/agents", *map(_segment, (agent, *parts))))


def _segment(name: str) -> str:
    # As path segments, "." and ".." select another endpoint. httpx sends percent-encoded segments unchanged.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def if_match_header(etag: str | None) -> dict[str, str]:
    """Return the header that restricts a write to a version; none for None.

    Raises:
        ValueError: If `etag` is empty, as of a version that was not read. Nothing was sent.
    """
    if etag is None:
        return {}
    if not etag.strip('"'):
        raise ValueError("if_match: is empty: read the memory or item first")
    return {"If-Match": "*" if etag == "*" else '"{}"'.format(etag.strip('"'))}


def new_idempotency_key() -> str:
    """Return a random idempotency key (UUID version 4), for a write without a key of the caller."""
    return str(uuid.uuid4())


def to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for a JSON body: datetimes become ISO 8601 texts, at any depth."""
    return {name: _json_of(value) for name, value in values.items()}


def _json_of(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Mapping():
            return to_json(value)
        case list() | tuple():
            return [_json_of(part) for part in value]
        case _:
            return value
