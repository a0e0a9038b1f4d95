"""OpenAI's client over the transport that all adapters share, and what the answers of compatible services mean.

It follows no redirect, reads up to a bound, and sends the key to the one address that it is for.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import openai

from agentmemory_operator import __version__
from agentmemory_operator.adapters.http.egress import Egress, HostSession, trust_of
from agentmemory_operator.adapters.http.httpx_transport import BASE_URL, client_of, reason_behind
from agentmemory_operator.errors import SpecInvalid

# The client insists on a key; services of one's own often want none.
NO_KEY = "none"
# Requests under way at once are bounded where they come in.
MAX_CONNECTIONS = 512
# Below the 5 s after which many servers close an idle connection.
KEEP_ALIVE_S = 4.0

MAX_DELAY_S = 8.0
"""The longest wait that is our own choice; a service may ask for another."""

_RETRIED = (408, 409, 429)
OK = 200
_REDIRECTS = range(300, 400)
ABOUT_TEXTS = (400, 413, 422)
"""What a service answers because of what it was sent to read: mostly that is longer than its model takes."""

# What services call a kind of error; their sentences may quote a text.
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ServiceRefused(Exception):
    """The service answered, and not with what it was asked for.

    Args:
        body: of its answer, as far as the client could read it.

    Attributes:
        status: of HTTP.
        code: what it calls the error; empty where it says nothing that can be told.
        words: its own, which are not for people: they may quote a text.
        retry_after_s: the wait that it asks for; None is no wish.
    """

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(str(status))
        self.status = status
        self.code, self.words = _error_of(body)
        self.retry_after_s = _retry_after_s(headers)

    @property
    def may_pass(self) -> bool:
        """Whether the same may be taken later."""
        return self.status in _RETRIED or self.status >= 500 or self.status == OK

    @property
    def summary(self) -> str:
        """Status for messages to users; a code of the service's own is left out."""
        return "200 with an error" if self.status == OK else str(self.status)

    @property
    def is_failure(self) -> bool:
        """True if the service failed while it worked on the request: what it was sent may be the cause."""
        return self.status in (500, OK)

    @property
    def known_status(self) -> int:
        """The status, 401 for a wrong key also where the service has another."""
        return 401 if self.status == 400 and "api key" in self.words.lower() else self.status


def session_of(egress: Egress, where: str, key: str | None, *, field: str) -> HostSession:
    """Calls to a service.

    Args:
        where: its base URL.
        field: that holds it, for people.
    """
    return HostSession(
        *(egress, where),
        field=field,
        proxies=("all",),
        headers={
            "Authorization": f"Bearer {key or NO_KEY}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"agentmemory/{__version__}",
        },
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEP_ALIVE_S,
        ssl=trust_of(where, None) or True,
    )


def openai_client(host: HostSession, where: str) -> openai.AsyncOpenAI:
    """The client of a service; it holds nothing that has to be closed besides the session."""
    return openai.AsyncOpenAI(
        # The session has the key and the address.
        api_key=NO_KEY,
        base_url=BASE_URL,
        max_retries=0,
        # Takes httpx's as well as its successor's, of which alone its types know.
        http_client=cast(Any, client_of(host, where)),
    )


@contextmanager
def told_apart(secret_field: str) -> Iterator[None]:
    """Make one call, and have what kept an answer away raised by itself.

    Args:
        secret_field: that names the key, for people.

    Raises:
        ServiceRefused: the service did not take it.
        SpecInvalid: the key cannot be sent, or the service may not be connected to.
        openai.OpenAIError, aiohttp.ClientError, OSError: no answer came.
    """
    try:
        yield
    except openai.APIStatusError as exc:
        # Without it as the cause: its text is the service's sentence.
        raise ServiceRefused(exc.status_code, exc.body, exc.response.headers) from None
    except openai.APIConnectionError as exc:
        reason = reason_behind(exc) or exc
    else:
        return
    if isinstance(reason, ValueError):
        # A line's end in it, as aiohttp has it.
        message = f"{secret_field}: the key cannot be sent as a header: store it as one line"
        raise SpecInvalid("InvalidSpec", message) from reason
    raise reason


def raise_if_error(document: Any) -> None:
    """Raise the error that a gateway or server sends with status 200; nothing else shows that the call failed.

    Raises:
        ServiceRefused: If the document is an error.
    """
    if isinstance(document, dict) and (document.get("error") or document.get("object") == "error"):
        raise ServiceRefused(OK, document, {})


def refused_for_good(refused: ServiceRefused, where: str, *, block: str, model: str) -> SpecInvalid:
    """What somebody has to mend, of the statuses that are about no text.

    Args:
        where: the service, for people.
        block: of the object, that names URL, key and model.
    """
    status = refused.known_status
    ways = {401: f"correct the key in {block}.secretRef", 403: f"the key has no access to model {model!r}"}
    way = ways.get(status, f"correct {block}.model ({model!r}) or baseURL")
    if status in _REDIRECTS:
        way = "it redirects, which is not followed: correct baseURL"
    return SpecInvalid("InvalidSpec", f"{where} answered {status}: {way}")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that the service asks for, in seconds; a date counts as no wish."""
    header = headers.get("retry-after")
    try:
        wait = float(header) if header else None
    except ValueError:
        return None
    return wait if wait is not None and 0 <= wait < float("inf") else None


def _error_of(body: Any) -> tuple[str, str]:
    """What the service calls the error, and its own words, which are not for people: they may quote a text."""
    # Gemini answers a list of one error, which the client does not open.
    document = body[0] if isinstance(body, list) and body else body
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return "", ""
    codes = (error.get(name) for name in ("code", "status", "type"))
    code = next((code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), "")
    return code, str(error.get("message") or "")


def delay_s(exc: Exception, attempt: int, *, first_s: float, jitter: Callable[[], float]) -> float:
    """Return how long to wait after an attempt: as long as the service asks, else twice as long each time, spread.

    Args:
        attempt: from 1.
        first_s: upper bound of the first wait.
        jitter: draws from 0..1.
    """
    asked = exc.retry_after_s if isinstance(exc, ServiceRefused) else None
    if asked is not None:
        return asked
    ceiling = min(first_s * 2.0 ** (attempt - 1), MAX_DELAY_S)
    return ceiling * (0.5 + jitter() / 2)
