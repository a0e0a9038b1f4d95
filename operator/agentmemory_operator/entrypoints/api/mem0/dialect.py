"""Paths, credentials and error bodies of mem0's dialects, as `Edge` needs them."""

from collections.abc import Mapping

import orjson
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.problems import Problem

MEM0_PREFIX = "/mem0/"


def read_authorization(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the credentials of a request as an `Authorization` header with the scheme Bearer.

    mem0's clients send `Authorization: Token KEY`, or `X-API-Key: KEY`, which counts only without `Authorization`.
    """
    authorization = headers.get(b"authorization", b"")
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() == b"token":
        return b"Bearer " + token
    key = headers.get(b"x-api-key", b"")
    return b"Bearer " + key if key and not authorization else authorization


def is_batch_deletion(method: str, path: str) -> bool:
    """Return whether a request is mem0's deletion of several memories, the only DELETE with a body that is read."""
    return method == "DELETE" and path.rstrip("/").endswith("/v1/batch")


def problem_response(problem: Problem, request_id: str, *, status: int | None = None) -> Response:
    """Render a problem as mem0's servers do: the message as `detail` and as `error`, which different clients read.

    Args:
        status: Status of the response; None uses that of the problem.
    """
    body = problem.body(request_id)
    content = {"error": body["detail"], "detail": body["detail"], "errors": body["errors"], "request_id": request_id}
    return Response(
        orjson.dumps(content),
        status or problem.type.status,
        media_type="application/json",
        headers=dict(problem.headers),
    )
