"""What can go wrong with a call."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field of a request."""

    field: str
    message: str


class ApiError(Exception):
    """The API refused, or could not do it: its problem (RFC 9457) as attributes.

    Attributes:
        status: of HTTP.
        type: path of the page that explains this kind of error; empty where something before the API answered.
        detail: what is wrong, and the way out.
        errors: the first wrong fields.
        more_errors: how many more there are.
        request_id: to be found in the API's log.
    """

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        self.type = str(document.get("type", ""))
        self.title = str(document.get("title", ""))
        self.detail = str(document.get("detail", ""))
        self.request_id = str(document.get("request_id", ""))
        self.errors = tuple(FieldProblem(error["field"], error["message"]) for error in document.get("errors", ()))
        self.more_errors = int(document.get("more_errors", 0))
        super().__init__(f"{status} {self.title}: {self.detail}" if self.title else f"{status} {self.detail}")


class ApiUnreachable(Exception):
    """No answer came: a write may have taken effect, and is safe to repeat with the same idempotency key."""


def error_of(result: dict[str, Any]) -> ApiError | None:
    """The error of one item of a batch; None of one that was stored."""
    return ApiError(result["error"]["status"], result["error"]) if "error" in result else None


def problem_of(status: int, body: bytes) -> ApiError:
    """The error of an answer, whatever its body is."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "detail" not in document:
        return ApiError(status, {"detail": body[:200].decode(errors="replace")})
    return ApiError(status, document)
