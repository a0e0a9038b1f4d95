"""All error responses: statuses and `application/problem+json` bodies (RFC 9457).

`/problems/{name}` serves the entries of `PROBLEMS`, and `docs/http-api.md` lists them. The table from exceptions to
problems is in `error_reasons.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.preconditions import etag_header
from agentmemory_operator.error_reasons import row_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    FieldError,
    Forbidden,
    NotOwned,
    RequestInvalid,
    SpecInvalid,
    TransientError,
    Unauthenticated,
)
from agentmemory_operator.memories.rules.preconditions import PreconditionFailed

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "/problems/"
# Seconds until a retry. An invalid object stays invalid until a user edits it, so earlier retries are useless.
MISCONFIGURED_RETRY_AFTER_S = 30.0
# Limits that keep the response small, because errors may quote input of any length.
MAX_FIELD_CHARS, MAX_MESSAGE_CHARS, MAX_DETAIL_CHARS = 256, 512, 4096


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of error, with the title and explanation that `/problems/{name}` returns."""

    name: str
    status: int
    title: str
    explanation: str

    @property
    def uri(self) -> str:
        """The `type` of a problem: the path of the page that explains it."""
        return TYPE_PREFIX + self.name


INVALID_JSON = ProblemType(
    "invalid-json",
    400,
    "The body is not JSON",
    "Send one JSON document in UTF-8, with each key of an object once. Nothing was written.",
)
BAD_REQUEST = ProblemType("bad-request", 400, "The request cannot be read", "Correct the request. Nothing was written.")
UNAUTHORIZED = ProblemType(
    "unauthorized",
    401,
    "No valid token",
    "Send the header `Authorization: Bearer TOKEN`: the token of a ServiceAccount for the audience `agentmemory`, or "
    "in development the API's token.",
)
FORBIDDEN = ProblemType(
    "forbidden",
    403,
    "The caller is not allowed to do this",
    "The caller's subject in `spec.access.subjects` of the AgentMemory lacks this verb, user or scope; or the "
    "request names an `author` other than the caller without the verb `impersonate`. Nothing was written.",
)
CROSS_ORIGIN = ProblemType(
    "cross-origin",
    403,
    "Cross-origin request rejected",
    "Without authentication (`AGENTMEMORY_AUTH=none`) the API answers only its own pages, so that no other web page "
    "can read memories: on loopback `Host` must name this machine, and `Origin` must be the "
    "API's own or absent. To allow other clients, set `AGENTMEMORY_AUTH=token`. Nothing was read or written.",
)
NOT_FOUND = ProblemType(
    "not-found",
    404,
    "Not found",
    "The path, the agent or the memory does not exist, belongs to another user, or the caller may not see it. Agents "
    "come from AgentMemory objects; a request never creates one.",
)
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed", 405, "Method not allowed", "The header `Allow` lists the methods of the path."
)
CONFLICT = ProblemType(
    "conflict",
    409,
    "The request conflicts with stored data",
    "A superseded memory cannot be superseded again (supersede its newest version), and an "
    "Idempotency-Key cannot be reused with another body. Nothing was written.",
)
PRECONDITION_FAILED = ProblemType(
    "precondition-failed",
    412,
    "The stored version is another",
    "`If-Match` names another version than the stored one, or `If-None-Match: *` was sent and the item is stored "
    "already. The header `ETag` and the field `etag` have the tag of the stored version; without them nothing is "
    "stored. Nothing was written: read, decide, and repeat the request with that tag.",
)
TOO_SLOW = ProblemType(
    "too-slow",
    408,
    "The body arrives too slowly",
    "While the server waits for a body, send at least 30 KiB in any 30 seconds, or all of it. Nothing was written.",
)
BODY_TOO_LARGE = ProblemType(
    "body-too-large", 413, "The body is too large", "At most 1 MiB, for a batch 16 MiB. Nothing was written."
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type",
    415,
    "Unsupported content type",
    "Send `Content-Type: application/json`, or `application/x-ndjson` for an import. Nothing was written.",
)
INVALID_REQUEST = ProblemType(
    "invalid-request",
    422,
    "The request has invalid fields",
    "`errors` lists each field, what is wrong and what is allowed. Nothing was written.",
)
OVERLOADED = ProblemType(
    "overloaded",
    429,
    "Too many concurrent requests",
    "The caller, or all callers together, reached the limit of concurrent requests or of bytes in their bodies; "
    "see `detail`. Nothing was written. Retry after `Retry-After` seconds.",
)
RATE_LIMITED = ProblemType(
    "rate-limited",
    429,
    "Too many requests",
    "Each caller has a limit of requests per second and process. Nothing was written. Retry after `Retry-After` "
    "seconds.",
)
INTERNAL_ERROR = ProblemType(
    "internal-error", 500, "Internal error", "A fault of the API; see its log for this `request_id`."
)
STORE_REJECTED = ProblemType(
    "store-rejected",
    502,
    "Qdrant refused the request",
    "Qdrant rejected the call permanently. `detail` has its message for a search or a list; for a write it is in the "
    "API's log. Usual causes: the API key of the QdrantConnection, or a collection that was changed manually.",
)
AGENT_MISCONFIGURED = ProblemType(
    "agent-misconfigured",
    503,
    "The agent's object is invalid",
    "Correct the AgentMemory object or what it refers to; see `detail`. Nothing was written.",
)
STORE_UNAVAILABLE = ProblemType(
    "store-unavailable", 503, "Qdrant is unavailable", "Nothing was written. Retry after `Retry-After` seconds."
)
COLLECTION_MISSING = ProblemType(
    "collection-missing",
    503,
    "The agent's collection is not available",
    "Qdrant answers, but the agent's collection or alias was not created yet, "
    "was deleted, or belongs to another owner: see the Ready condition of the AgentMemory (`kubectl get amem`). "
    "Nothing was written.",
)
AGENT_CLOSED = ProblemType(
    "agent-closed",
    503,
    "The agent is being restored",
    "No memory is read or written until the restore ends: see its MemoryRestore (`kubectl get mrest`). Nothing "
    "was written. Retry after `Retry-After` seconds.",
)
KEYS_UNAVAILABLE = ProblemType(
    "keys-unavailable",
    503,
    "Keys unavailable",
    "The memory has a privacy zone, and its keys or their wrapping key are not available: see "
    "the condition KeysUnavailable of the AgentMemory. Nothing was written. Retry after `Retry-After` seconds.",
)
EMBEDDER_UNAVAILABLE = ProblemType(
    "embedder-unavailable",
    503,
    "The embedding service is unavailable",
    "Nothing was written. Retry after `Retry-After` seconds.",
)
EMBEDDER_ANSWER_INVALID = ProblemType(
    "embedder-answer-invalid",
    502,
    "The embedding service returned unusable vectors",
    "Several attempts returned vectors that are all zeros, not finite or beyond float32: check the service and its "
    "model. Nothing was written. Retry after `Retry-After` seconds.",
)
UNAVAILABLE = ProblemType("unavailable", 503, "Not ready", "Retry after `Retry-After` seconds.")
OUTCOME_UNKNOWN = ProblemType(
    "outcome-unknown",
    504,
    "The write may or may not have taken effect",
    "Qdrant's answer was lost, or what follows the write could not be done: see `detail`. Repeat the request with the "
    "same Idempotency-Key: it stores one memory at most. Without a key, read before you repeat it.",
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
    PRECONDITION_FAILED,
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
    EMBEDDER_ANSWER_INVALID,
    EMBEDDER_UNAVAILABLE,
    UNAVAILABLE,
    OUTCOME_UNKNOWN,
)

_PROBLEM_OF_NAME = {problem.name: problem for problem in PROBLEMS}
# Errors that the web framework raises.
_PROBLEM_OF_STATUS = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED, 413: BODY_TOO_LARGE, 422: INVALID_REQUEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error response: kind, detail for this request, invalid fields, and headers such as `Retry-After`.

    Attributes:
        more_errors: Number of invalid fields that `errors` does not list.
        extra: Further fields of the JSON object.
    """

    type: ProblemType
    detail: str
    errors: tuple[FieldError, ...] = ()
    more_errors: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, request_id: str, *, max_errors: int = RequestInvalid.MAX_ERRORS) -> dict[str, Any]:
        """Build the JSON object of the response, or of one item of a batch.

        Args:
            max_errors: Maximum number of invalid fields to list. A smaller limit shortens the detail in proportion.
        """
        listed = self.errors[:max_errors]
        return {
            "type": self.type.uri,
            "title": self.type.title,
            "status": self.type.status,
            "detail": _clean(self.detail, MAX_DETAIL_CHARS * max_errors // RequestInvalid.MAX_ERRORS),
            "errors": [
                {"field": _clean(error.field, MAX_FIELD_CHARS), "message": _clean(error.message, MAX_MESSAGE_CHARS)}
                for error in listed
            ],
            "more_errors": self.more_errors + len(self.errors) - len(listed),
            "request_id": request_id,
            **self.extra,
        }

    def response(self, request_id: str) -> Response:
        """Build the HTTP response, of type `application/problem+json` and with the status of the kind."""
        content = orjson.dumps(self.body(request_id))
        return Response(content, self.type.status, media_type=MEDIA_TYPE, headers=dict(self.headers))


class ProblemRaised(Exception):
    """Error of the HTTP layer, such as a malformed body or an exceeded limit, with its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_of(error: AgentMemoryError) -> Problem:
    """Convert an error of a use case to a problem, with `Retry-After`, `WWW-Authenticate` or `ETag` where it applies.

    The detail includes `server_message`, so only the caller of the failed request may get it.
    """
    type_ = _PROBLEM_OF_NAME[row_of(error)[1]]
    errors = error.errors if isinstance(error, RequestInvalid | Forbidden) else ()
    more_errors = error.more_errors if isinstance(error, RequestInvalid) else 0
    detail = f"{error}: {error.server_message}" if error.server_message else str(error)
    extra = {"etag": error.etag} if isinstance(error, PreconditionFailed) else {}
    return Problem(
        type=type_, detail=detail, errors=errors, more_errors=more_errors, headers=_headers_of(error), extra=extra
    )


def not_ready_problem(detail: str) -> Problem:
    """Build the 503 problem for a process that cannot serve agents yet; it asks for a retry after a second."""
    return Problem(type=UNAVAILABLE, detail=detail, headers={"Retry-After": "1"})


def problem_of_status(status: int, headers: Mapping[str, str] | None, remedy: str = "") -> Problem:
    """Build the problem for an error of the web framework.

    Args:
        status: HTTP status of the error. An undocumented one becomes BAD_REQUEST below 500, else INTERNAL_ERROR.
        headers: Headers to add to the response. None adds no headers.
        remedy: Text to add to the detail. '' adds no text.
    """
    type_ = _PROBLEM_OF_STATUS.get(status, BAD_REQUEST if status < 500 else INTERNAL_ERROR)
    remedy = f"{remedy}; " if remedy else ""
    detail = f"{HTTPStatus(status).phrase}: {remedy}see /openapi.json, or /docs in a browser"
    return Problem(type=type_, detail=detail, headers=dict(headers or {}))


def _headers_of(error: AgentMemoryError) -> dict[str, str]:
    match error:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="agentmemory"'}
        case PreconditionFailed():
            return etag_header(error.etag)
        case TransientError():
            seconds = error.retry_after_s
        case SpecInvalid() | NotOwned():
            seconds = MISCONFIGURED_RETRY_AFTER_S
        case _:
            return {}
    return {"Retry-After": str(max(math.ceil(seconds), 1))}


def _clean(text: str, max_chars: int) -> str:
    """Shorten a text, and replace lone surrogates, which may be quoted in the error about them."""
    cut = text if len(text) <= max_chars else f"{text[: max_chars - 1]}\u2026"
    return cut.encode("utf-8", "replace").decode()
