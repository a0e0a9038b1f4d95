"""OpenAI's client over `HostTransport`, and the meaning of error responses of compatible services.

The transport follows no redirect, limits the size of responses, and sends the key only to the configured URL.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import openai

from agentmemory_operator.adapters.http.egress import HostSession
from agentmemory_operator.adapters.http.httpx_transport import BASE_URL, build_httpx_client, find_reason
from agentmemory_operator.adapters.http.service_session import NO_KEY
from agentmemory_operator.errors import SpecInvalid

MAX_DELAY_S = 8.0
"""Maximum backoff in seconds. A wait that the service requests may be longer."""

_RETRIED = (408, 409, 429)
OK = 200
_REDIRECTS = range(300, 400)
INPUT_ERROR_STATUSES = (400, 413, 422)
"""Statuses that usually mean a fault of the input, most often that it exceeds the model's limit."""

# Error codes that are safe to show, unlike error texts, which may quote the input.
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ServiceError(Exception):
    """The service responded with an error.

    Args:
        body: Body of the response, as parsed by the client.

    Attributes:
        code: The service's error code; empty if it has none that is safe to show.
        error_text: The service's error text. Not for users: it may quote the input.
        retry_after_s: Wait in seconds that the service requests; None if it requests none.
    """

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(str(status))
        self.status = status
        self.code, self.error_text = _error_of(body)
        self.retry_after_s = _retry_after_s(headers)

    @property
    def is_transient(self) -> bool:
        """True if the same request may succeed later: 408, 409, 429, from 500, and 200 with an error."""
        return self.status in _RETRIED or self.status >= 500 or self.status == OK

    @property
    def summary(self) -> str:
        """Status for messages to users, without the service's own error code."""
        return "200 with an error" if self.status == OK else str(self.status)

    @property
    def is_failure(self) -> bool:
        """True if the service failed while processing the request, so that the input may be the cause."""
        return self.status in (500, OK)

    @property
    def effective_status(self) -> int:
        """The status, but 401 for a 400 that reports a wrong API key."""
        return 401 if self.status == 400 and "api key" in self.error_text.lower() else self.status


def openai_client(host: HostSession, url: str) -> openai.AsyncOpenAI:
    """Build OpenAI's client for the service at the base URL `url`. Only the session needs to be closed."""
    return openai.AsyncOpenAI(
        # Pass placeholders, because the session has the real key and URL.
        api_key=NO_KEY,
        base_url=BASE_URL,
        max_retries=0,
        # Cast, because the client accepts an httpx client, but its type hints name only the class of httpx's successor.
        http_client=cast(Any, build_httpx_client(host, url)),
    )


@contextmanager
def map_service_errors(secret_field: str) -> Iterator[None]:
    """Convert the errors of one call: raise the cause instead of the client's wrapper.

    Args:
        secret_field: Field that names the key, for error messages.

    Raises:
        ServiceError: If the service responded with an error.
        SpecInvalid: If the key cannot be sent as a header, or the egress policy forbids the host.
        openai.OpenAIError, aiohttp.ClientError, OSError: If there was no response, or it was too large.
    """
    try:
        yield
    except openai.APIStatusError as exc:
        # Use `from None`, because the text of the original exception is the service's error text.
        raise ServiceError(exc.status_code, exc.body, exc.response.headers) from None
    except openai.APIConnectionError as exc:
        reason = find_reason(exc) or exc
    else:
        return
    if isinstance(reason, ValueError):
        # Report a key with a line break, which aiohttp rejects as a header value.
        message = f"{secret_field}: the key cannot be sent as a header: store it as one line"
        raise SpecInvalid("InvalidSpec", message) from reason
    raise reason


def raise_if_error(document: Any) -> None:
    """Raise if a body with status 200 is an error, as some gateways and servers send it.

    Raises:
        ServiceError: If the document is an error.
    """
    if isinstance(document, dict) and (document.get("error") or document.get("object") == "error"):
        raise ServiceError(OK, document, {})


def permanent_error(refused: ServiceError, service: str, *, block: str, model: str) -> SpecInvalid:
    """Build the exception for a status that only a changed spec can fix, such as a wrong key or model.

    Args:
        refused: Error response of the service.
        service: Description of the service, for the message.
        block: Path in the object to URL, key and model.
    """
    status = refused.effective_status
    remedies = {401: f"correct the key in {block}.secretRef", 403: f"the key has no access to model {model!r}"}
    remedy = remedies.get(status, f"correct {block}.model ({model!r}) or baseURL")
    if status in _REDIRECTS:
        remedy = "it redirects, which is not followed: correct baseURL"
    return SpecInvalid("InvalidSpec", f"{service} answered {status}: {remedy}")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that the service requests, in seconds; None if it is missing, a date, negative or infinite."""
    header = headers.get("retry-after")
    try:
        delay_s = float(header) if header else None
    except ValueError:
        return None
    return delay_s if delay_s is not None and 0 <= delay_s < float("inf") else None


def _error_of(body: Any) -> tuple[str, str]:
    """Return the service's error code and its error text. The text may quote the input."""
    # Unwrap the list with one error that Gemini returns, because the client does not.
    document = body[0] if isinstance(body, list) and body else body
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return "", ""
    codes = (error.get(name) for name in ("code", "status", "type"))
    code = next((code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), "")
    return code, str(error.get("message") or "")


def retry_delay_s(exc: Exception, attempt: int, *, first_s: float, jitter: Callable[[], float]) -> float:
    """Return the seconds to wait after a failed attempt.

    A wait that the service requests is returned without a limit. Otherwise the wait is an exponential backoff, at most
    `MAX_DELAY_S` (8 s), of which jitter removes up to half.

    Args:
        exc: Error of the attempt.
        attempt: Number of the attempt, from 1.
        first_s: Upper bound of the first wait in seconds.
        jitter: Returns a random number from 0 to 1.
    """
    requested_s = exc.retry_after_s if isinstance(exc, ServiceError) else None
    if requested_s is not None:
        return requested_s
    max_delay_s = min(first_s * 2.0 ** (attempt - 1), MAX_DELAY_S)
    return max_delay_s * (0.5 + jitter() / 2)
