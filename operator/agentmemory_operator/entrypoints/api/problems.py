"""Every error answer: which error has which status, and its `application/problem+json` body (RFC 9457).

`PROBLEMS` is what `/problems/{name}` serves and what `docs/http-api.md` lists; `PROBLEM_OF` is the one table from
exceptions to problems.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from agentmemory_operator.errors import (
    AgentClosed,
    AgentMemoryError,
    Conflict,
    EmbedderUnavailable,
    FieldError,
    Forbidden,
    KeysUnavailable,
    NotFound,
    NotOwned,
    NotServed,
    OutcomeUnknown,
    RequestInvalid,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TransientError,
    Unauthenticated,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "/problems/"
# An object that is wrong changes when somebody edits it: asking more often than this is no use.
MISCONFIGURED_RETRY_AFTER_S = 30.0
# What a caller sent may be quoted in an error: its answer is to be short, however long that was.
FIELD_MAX, MESSAGE_MAX, DETAIL_MAX = 256, 512, 4096


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One documented kind of error."""

    name: str
    status: int
    title: str
    explanation: str

    @property
    def uri(self) -> str:
        """The `type` of a problem: a path on the API itself that explains it."""
        return TYPE_PREFIX + self.name


INVALID_JSON = ProblemType(
    "invalid-json", 400, "The body is not JSON", "Send one JSON document in UTF-8. Nothing was written."
)
BAD_REQUEST = ProblemType("bad-request", 400, "The request cannot be read", "Correct the request. Nothing was written.")
UNAUTHORIZED = ProblemType(
    "unauthorized",
    401,
    "No valid token",
    "Send the header `Authorization: Bearer TOKEN`: the token of a ServiceAccount for the audience `agentmemory`, or "
    "in development the token of this API.",
)
FORBIDDEN = ProblemType(
    "forbidden",
    403,
    "The caller may not do this with the agent",
    "The AgentMemory object names the caller in `spec.access.subjects`, without this verb, user or scope; or the "
    "request names an `author` who is not the caller, without the verb `impersonate`. Nothing was written.",
)
CROSS_ORIGIN = ProblemType(
    "cross-origin",
    403,
    "A web page of another site asks",
    "Without authentication (`AGENTMEMORY_AUTH=none`) the API answers no page but its own, so that none which somebody "
    "on this machine opens reads memories: `Host` names this machine where it listens on loopback, `Origin` is the "
    "API's own or absent. To let others in, set `AGENTMEMORY_AUTH=token`. Nothing was read or written.",
)
NOT_FOUND = ProblemType(
    "not-found",
    404,
    "There is no such thing",
    "The path, the agent or the memory does not exist, belongs to another user, or the caller may not see it. Agents "
    "are never created by a request: they come from AgentMemory objects.",
)
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed", 405, "The path has no such method", "The header `Allow` names the methods of the path."
)
CONFLICT = ProblemType(
    "conflict",
    409,
    "The request contradicts what is stored",
    "A memory that is superseded already cannot be superseded again (supersede its newest version), and an "
    "Idempotency-Key cannot be used again with another body. Nothing was written.",
)
TOO_SLOW = ProblemType(
    "too-slow",
    408,
    "The body comes too slowly",
    "Send at least 30 KiB of a body in any 30 seconds in which the server waits for it, or all of it. Nothing was "
    "written.",
)
BODY_TOO_LARGE = ProblemType(
    "body-too-large", 413, "The body is too large", "At most 1 MiB, for a batch 16 MiB. Nothing was written."
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type",
    415,
    "The body is not declared as JSON",
    "Send `Content-Type: application/json`; with an import `application/x-ndjson`. Nothing was written.",
)
INVALID_REQUEST = ProblemType(
    "invalid-request",
    422,
    "Fields of the request are wrong",
    "`errors` names each field, what is wrong with it and what is allowed. Nothing was written.",
)
OVERLOADED = ProblemType(
    "overloaded",
    429,
    "Too much at once",
    "The caller has as many requests, or as many bytes of bodies, under way as it may, or all callers together have; "
    "`detail` says which. Nothing was written. Try again after `Retry-After` seconds.",
)
RATE_LIMITED = ProblemType(
    "rate-limited",
    429,
    "The caller asks too often",
    "Each caller has so many requests a second, of this process. Nothing was written. Try again after `Retry-After` "
    "seconds.",
)
INTERNAL_ERROR = ProblemType(
    "internal-error", 500, "Unexpected error", "A fault of this API; its log has more under the `request_id`."
)
STORE_REJECTED = ProblemType(
    "store-rejected",
    502,
    "Qdrant refused the request",
    "Qdrant answered that it will not do this, now or later; `detail` has its words about a search or a list, its own "
    "log those about a write. Mostly the API key of the QdrantConnection, or a collection that was changed by hand.",
)
AGENT_MISCONFIGURED = ProblemType(
    "agent-misconfigured",
    503,
    "The agent cannot be served as its object stands",
    "The AgentMemory object, or what it refers to, must be corrected; `detail` says what. Nothing was written.",
)
STORE_UNAVAILABLE = ProblemType(
    "store-unavailable", 503, "Qdrant is away", "Nothing was written. Try again after `Retry-After` seconds."
)
COLLECTION_MISSING = ProblemType(
    "collection-missing",
    503,
    "The agent's collection is not there",
    "Qdrant answers. The collection that the agent's memories are in, or the alias that leads to it, was not made yet, "
    "or was deleted, or is another owner's: the Ready condition of the AgentMemory says which (`kubectl get amem`). "
    "Nothing was written.",
)
AGENT_CLOSED = ProblemType(
    "agent-closed",
    503,
    "A snapshot is being restored into the agent",
    "Its memories are neither read nor written until that ends: see its MemoryRestore (`kubectl get mrest`). Nothing "
    "was written. Try again after `Retry-After` seconds.",
)
KEYS_UNAVAILABLE = ProblemType(
    "keys-unavailable",
    503,
    "Keys unavailable",
    "The memory has a privacy zone, whose keys, or the wrapping key that they are under, cannot be had for now: see "
    "the condition KeysUnavailable of the AgentMemory. Nothing was written. Try again after `Retry-After` seconds.",
)
EMBEDDER_UNAVAILABLE = ProblemType(
    "embedder-unavailable",
    503,
    "The embedding service is away",
    "Nothing was written. Try again after `Retry-After` seconds.",
)
UNAVAILABLE = ProblemType("unavailable", 503, "Not ready", "Try again after `Retry-After` seconds.")
OUTCOME_UNKNOWN = ProblemType(
    "outcome-unknown",
    504,
    "The write may or may not have taken effect",
    "Qdrant's answer was lost. Sending the same request with the same Idempotency-Key is safe and ends in one memory.",
)

PROBLEMS: tuple[ProblemType, ...] = (
    INVALID_JSON,
    BAD_REQUEST,
    UNAUTHORIZED,
    FORBIDDEN,
    CROSS_ORIGIN,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    CONFLICT,
    TOO_SLOW,
    BODY_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    INVALID_REQUEST,
    OVERLOADED,
    RATE_LIMITED,
    INTERNAL_ERROR,
    STORE_REJECTED,
    AGENT_MISCONFIGURED,
    STORE_UNAVAILABLE,
    COLLECTION_MISSING,
    AGENT_CLOSED,
    KEYS_UNAVAILABLE,
    EMBEDDER_UNAVAILABLE,
    UNAVAILABLE,
    OUTCOME_UNKNOWN,
)

PROBLEM_OF: Mapping[type[AgentMemoryError], ProblemType] = {
    RequestInvalid: INVALID_REQUEST,
    Unauthenticated: UNAUTHORIZED,
    Forbidden: FORBIDDEN,
    NotFound: NOT_FOUND,
    Conflict: CONFLICT,
    SpecInvalid: AGENT_MISCONFIGURED,
    NotOwned: AGENT_MISCONFIGURED,
    StoreRejected: STORE_REJECTED,
    StoreUnavailable: STORE_UNAVAILABLE,
    NotServed: COLLECTION_MISSING,
    AgentClosed: AGENT_CLOSED,
    KeysUnavailable: KEYS_UNAVAILABLE,
    EmbedderUnavailable: EMBEDDER_UNAVAILABLE,
    OutcomeUnknown: OUTCOME_UNKNOWN,
    TransientError: UNAVAILABLE,
    AgentMemoryError: INTERNAL_ERROR,
}

# Errors that the web framework raises by itself.
_PROBLEM_OF_STATUS = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED, 413: BODY_TOO_LARGE, 422: INVALID_REQUEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error answer."""

    type: ProblemType
    detail: str
    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, request_id: str, *, errors_max: int = RequestInvalid.MAX) -> dict[str, Any]:
        """The JSON object of the answer, or of one item of a batch.

        Args:
            errors_max: how many wrong fields are named; where it is less than usual, the detail is as much shorter.
        """
        told = self.errors[:errors_max]
        return {
            "type": self.type.uri,
            "title": self.type.title,
            "status": self.type.status,
            "detail": _clean(self.detail, DETAIL_MAX * errors_max // RequestInvalid.MAX),
            "errors": [
                {"field": _clean(error.field, FIELD_MAX), "message": _clean(error.message, MESSAGE_MAX)}
                for error in told
            ],
            "more_errors": self.more_errors + len(self.errors) - len(told),
            "request_id": request_id,
        }

    def response(self, request_id: str) -> Response:
        """The answer."""
        content = orjson.dumps(self.body(request_id))
        return Response(content, self.type.status, media_type=MEDIA_TYPE, headers=dict(self.headers))


class ProblemRaised(Exception):
    """An error of the HTTP side itself: a body, a token or a path that never reaches a use case."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_of(error: AgentMemoryError) -> Problem:
    """What an error of a use case looks like outside."""
    type_ = next(PROBLEM_OF[cls] for cls in type(error).__mro__ if cls in PROBLEM_OF)
    errors = error.errors if isinstance(error, RequestInvalid | Forbidden) else ()
    more = error.more if isinstance(error, RequestInvalid) else 0
    detail = f"{error}: {error.words}" if error.words else str(error)
    return Problem(type=type_, detail=detail, errors=errors, more_errors=more, headers=_headers_of(error))


def problem_of_status(status: int, headers: Mapping[str, str] | None, way_out: str = "") -> Problem:
    """The problem for a status that the web framework chose."""
    type_ = _PROBLEM_OF_STATUS.get(status, BAD_REQUEST if status < 500 else INTERNAL_ERROR)
    said = f"{way_out}; " if way_out else ""
    detail = f"{HTTPStatus(status).phrase}: {said}see /openapi.json, or /docs in a browser"
    return Problem(type=type_, detail=detail, headers=dict(headers or {}))


def _headers_of(error: AgentMemoryError) -> dict[str, str]:
    match error:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="agentmemory"'}
        case TransientError():
            seconds = error.retry_after_s
        case SpecInvalid() | NotOwned():
            seconds = MISCONFIGURED_RETRY_AFTER_S
        case _:
            return {}
    return {"Retry-After": str(max(math.ceil(seconds), 1))}


def _clean(text: str, max_chars: int) -> str:
    """Shorten, and replace what UTF-8 cannot carry: a lone surrogate may be quoted in the error about it."""
    shown = text if len(text) <= max_chars else f"{text[: max_chars - 1]}\u2026"
    return shown.encode("utf-8", "replace").decode()
