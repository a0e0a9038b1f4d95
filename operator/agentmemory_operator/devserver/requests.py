"""HTTP in and out: JSON bodies, query parameters, the answer's envelope."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.devserver.fields import Document, read_object
from agentmemory_operator.devserver.problems import Problem, malformed, malformed_parameter

# Limit of the server's default configuration.
MAX_BODY_BYTES = 32 * 1024 * 1024
_JSON = [(b"content-type", b"application/json")]
_ORDERINGS = ("weak", "medium", "strong")

Answer: TypeAlias = Callable[[Request], Awaitable[Any]]


class JsonResponse(Response):
    """A response whose body is already serialised."""

    def __init__(self, document: Document, *, status: int = 200) -> None:
        """Serialise the document."""
        self.status_code = status
        self.background = None
        self.body = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
        self.raw_headers = [*_JSON, (b"content-length", str(len(self.body)).encode())]


def answering(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that wraps results and problems as the server does; a response is sent as it is."""

    async def endpoint(request: Request) -> Response:
        started = time.perf_counter()
        try:
            result = await answer(request)
        except Problem as problem:
            return problem_response(problem, started)
        if isinstance(result, Response):
            return result
        return JsonResponse({"result": result, "status": "ok", "time": time.perf_counter() - started})

    return endpoint


def problem_response(problem: Problem, started: float) -> Response:
    """Return the server's form of an error."""
    document = {"status": {"error": problem.message}, "time": time.perf_counter() - started}
    return JsonResponse(document, status=problem.status)


async def read_body(request: Request) -> Document:
    """Return the body, which has to be a JSON object.

    Raises:
        Problem: 400 for anything else, 413 beyond the size limit.
    """
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise Problem(413, f"Payload error: JSON payload ({length} bytes) is larger than allowed: {MAX_BODY_BYTES}")
    try:
        document = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise malformed(str(error)) from error
    return read_object(document, "body")


def read_wait(request: Request) -> bool:
    """Return whether the caller wants to wait for the update, after checking the parameters of updates."""
    parameters = request.query_params
    ordering = parameters.get("ordering")
    if ordering is not None and ordering not in _ORDERINGS:
        raise malformed_parameter(f"unknown variant `{ordering}`, expected one of `weak`, `medium`, `strong`")
    wait = parameters.get("wait", "false")
    if wait not in ("true", "false"):
        raise malformed_parameter(f"provided string was not `true` or `false`: `{wait}`")
    return wait == "true"
