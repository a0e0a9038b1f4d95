"""A call of the API without the waiting: what is sent, how an answer is read, and when to ask again."""

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import httpx

from agentmemory_client.problems import ApiUnreachable, problem_of

T = TypeVar("T")
Token: TypeAlias = str | Callable[[], str] | None
Outcome: TypeAlias = httpx.Response | httpx.TransportError
DEFAULT_URL = "http://127.0.0.1:8080"
TOO_MANY = 429
# The API did nothing (429, 503), or may have (504, where repeating is safe all the same).
RETRIED = frozenset({TOO_MANY, 503, 504})
FIRST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the API is and how patiently it is asked.

    Attributes:
        token: sent as `Authorization: Bearer`; a callable is asked for each attempt.
        retries: attempts after the first.
        wait_max_s: the longest wait between two attempts, whatever the API asks for.
        in_flight: calls that are sent at the same time; further ones wait in the client.
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
        """The options of an httpx client."""
        # `in_flight` bounds the calls, so that none waits for a connection, which httpx counts as a time-out.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.in_flight)
        return {"base_url": self.url.rstrip("/"), "timeout": self.timeout_s, "limits": limits}

    @property
    def authorization(self) -> dict[str, str]:
        """The headers that say who calls, now.

        Raises:
            ValueError: a callable returned a token that no header can carry.
        """
        token = check_token(self.token()) if callable(self.token) else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def pause_s(self, attempt: int, outcome: Outcome, *, times: int | None = None) -> float | None:
        """How long to wait for another attempt; None: this one, counted from 0, is the last.

        Args:
            times: attempts after the first; None is as many as the connection has.
        """
        if attempt >= (self.retries if times is None else times):
            return None
        if isinstance(outcome, httpx.TransportError):
            return self.wait_s(attempt, None)
        return self.wait_s(attempt, outcome.headers.get("Retry-After")) if outcome.status_code in RETRIED else None

    def wait_s(self, attempt: int, retry_after: str | None) -> float:
        """How long to wait after an attempt, counted from 0: as long as the API says, else twice as long."""
        if retry_after is not None and retry_after.isdigit():
            return min(float(retry_after), self.wait_max_s)
        # Spread, so that many callers do not come back at once.
        return min(FIRST_WAIT_S * 2.0**attempt * random.uniform(0.5, 1.0), self.wait_max_s)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Raise ApiUnreachable where no answer comes."""
        try:
            yield
        except httpx.TransportError as error:
            raise ApiUnreachable(
                f"no answer from {self.url} ({type(error).__name__}): is the API running there?"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One call: all of them may be repeated, writes because they carry an idempotency key.

    Attributes:
        read: makes the result of the answer's JSON.
        gone: the result where a repeated call finds nothing more to do (404).
        timeout_s: of a call that may take long; None is the connection's.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    parameters: Mapping[str, Any] | None = None
    body: Any = None
    key: str | None = None
    gone: Callable[[], T] | None = None
    timeout_s: float | None = None

    def request(self, connection: Connection) -> dict[str, Any]:
        """The arguments of an httpx request."""
        headers: dict[str, str | bytes] = {**connection.authorization}
        headers |= {"Idempotency-Key": self.key.encode()} if self.key else {}
        sent: dict[str, Any] = {"method": self.method, "url": self.path, "headers": headers}
        sent |= {"timeout": self.timeout_s} if self.timeout_s else {}
        return (
            sent | ({"params": self.parameters} if self.parameters else {}) | ({"json": self.body} if self.body else {})
        )

    def settle(self, connection: Connection, outcome: Outcome, *, is_repeated: bool) -> T:
        """The result of the last attempt.

        Raises:
            ApiError: the answer is an error.
            ApiUnreachable: there is none.
        """
        with connection.reaching():
            answer = answer_in(outcome)
        if answer.status_code == 404 and is_repeated and self.gone:
            return self.gone()
        return self.read(json_in(answer))

    def after(self, **mark: str) -> "Call[T]":
        """The call that reads the page after, which a mark names."""
        return replace(self, parameters={**(self.parameters or {}), **mark})


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Entries that are read page by page.

    Attributes:
        first: reads the first page: `results`, and the mark of the page after, None on the last.
        mark: the parameter that takes the mark; it stands in `next_{mark}`.
    """

    first: Call[Any]
    mark: str = "cursor"

    def after(self, page: Any) -> Call[Any] | None:
        """The call that reads the page after, None after the last."""
        mark = getattr(page, f"next_{self.mark}")
        return None if mark is None else self.first.after(**json_of({self.mark: mark}))


def is_refused(outcome: Outcome) -> bool:
    """Whether the API did nothing because the caller asks too much at once."""
    return isinstance(outcome, httpx.Response) and outcome.status_code == TOO_MANY


def check_token(token: str) -> str:
    """Return a token that a header can carry.

    Raises:
        ValueError: it has other characters, which are not shown.
    """
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError(
            "token: must be printable ASCII text without white space around it; a token read from a file may end in a"
            " line break: strip it"
        )
    return token


def answer_in(outcome: Outcome) -> httpx.Response:
    """The answer of the last attempt.

    Raises:
        httpx.TransportError: there is none.
    """
    if isinstance(outcome, httpx.TransportError):
        raise outcome
    return outcome


def json_in(answer: httpx.Response) -> Any:
    """The JSON of an answer, None where it has no content.

    Raises:
        ApiError: the answer is an error.
    """
    if not answer.is_success:
        raise problem_of(answer.status_code, answer.content)
    return answer.json() if answer.content else None


def path_of(agent: str, *parts: str) -> str:
    """The path of an agent or of what is below it."""
    return "/".join(("/v1/agents", *map(_segment, (agent, *parts))))


def _segment(name: str) -> str:
    # As they are, these lead to another endpoint; percent-encoded, httpx sends them as they are.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def new_key() -> str:
    """An idempotency key."""
    return str(uuid.uuid4())


def json_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them: times as text, at any depth."""
    return {name: _json_of(value) for name, value in values.items()}


def _json_of(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Mapping():
            return json_of(value)
        case list() | tuple():
            return [_json_of(part) for part in value]
        case _:
            return value
