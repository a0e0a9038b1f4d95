"""Errors of API calls."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One invalid field of a request."""

    field: str
    message: str


class ApiError(Exception):
    """The API responded with an error. The attributes are its problem document (RFC 9457).

    Attributes:
        status: HTTP status.
        type: Path of the documentation page for this kind of error; empty if a proxy responded instead of the API.
        title: Name of this kind of error; empty if a proxy responded.
        detail: Cause and remedy.
        errors: The first invalid fields.
        more_errors: Number of further invalid fields.
        request_id: Id of the request in the API's log.
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


class PreconditionFailed(ApiError):
    """The stored version is not the one that `if_match` or `if_none_match` names (412). Nothing was written.

    Attributes:
        etag: Tag of the stored version, for `if_match`; None if nothing is stored.
    """

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(status, document)
        self.etag: str | None = document.get("etag")


class ApiUnreachable(Exception):
    """There was no response, or an export ended before its last line.

    A write may have taken effect; repeating it with the same idempotency key is safe.
    """


def build_error(document: dict[str, Any], status: int | None = None) -> ApiError:
    """Build the error of a problem document. `status` is by default that of the document."""
    status = document["status"] if status is None else status
    return (PreconditionFailed if status == 412 else ApiError)(status, document)


def read_error(result: dict[str, Any]) -> ApiError | None:
    """Return the error of one result of a batch, or None if it succeeded."""
    return build_error(result["error"]) if "error" in result else None


def read_problem(status: int, body: bytes) -> ApiError:
    """Build the error of a response. If the body is no problem document, `detail` is its first 200 bytes."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "detail" not in document:
        document = {"detail": body[:200].decode(errors="replace")}
    return build_error(document, status)
