"""HTTP in and out: what a request is about, JSON bodies, query parameters, the answer's envelope."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response

from qdrant_devserver.cluster.consensus import Known
from qdrant_devserver.cluster.peers import Peer
from qdrant_devserver.cluster.state import State
from qdrant_devserver.error_answers import ErrorAnswer, collection_missing, malformed, malformed_parameter
from qdrant_devserver.fields import Document, read_object
from qdrant_devserver.points.filters import TEXT_INDEXED
from qdrant_devserver.points.value_conditions import CONDITIONS, Conditions
from qdrant_devserver.storage.collection import ServedCollection

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
    """An endpoint that wraps results and problems as the server does; a response is sent as it is."""

    async def endpoint(request: Request) -> Response:
        started = time.perf_counter()
        try:
            result = await answer(request)
        except ErrorAnswer as problem:
            return error_response(problem, started)
        if isinstance(result, Response):
            return result
        return JsonResponse({"result": result, "status": "ok", "time": time.perf_counter() - started})

    return endpoint


def error_response(problem: ErrorAnswer, started: float) -> Response:
    """The server's form of an error."""
    document = {"status": {"error": problem.message}, "time": time.perf_counter() - started}
    return JsonResponse(document, status=problem.status)


def changing(answer: Answer) -> Answer:
    """An endpoint whose changes the other peers may know later."""

    async def changed(request: Request) -> object:
        try:
            return await answer(request)
        finally:
            state_of(request).consensus.note(peer_of(request).number)

    return changed


def state_of(request: Request) -> State:
    """The server's state."""
    state: State = request.app.state.server
    return state


def peer_of(request: Request) -> Peer:
    """The peer that was asked."""
    peer: Peer = state_of(request).cluster.peers[request.app.state.peer - 1]
    return peer


def collection_of(request: Request) -> ServedCollection:
    """The collection that the path names, directly or by an alias, as far as the peer knows; filters are read for it.

    Raises:
        ErrorAnswer: 404, it knows none, or one that is gone.
    """
    collection = known_to(request).resolve(request.path_params["name"])
    if collection.deleted:
        raise collection_missing(request.path_params["name"])
    schemas = collection.record.payload_schema
    CONDITIONS.set(Conditions(state_of(request).features, frozenset(schemas)))
    TEXT_INDEXED.set(frozenset(field for field, schema in schemas.items() if schema["data_type"] == "text"))
    return collection


def known_to(request: Request) -> Known:
    """What the peer that was asked knows."""
    return state_of(request).consensus.known_to(peer_of(request).number)


async def read_body(request: Request) -> Document:
    """The body, which has to be a JSON object.

    Raises:
        ErrorAnswer: 400 for anything else, 413 beyond the size limit.
    """
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise ErrorAnswer(413, f"Payload error: JSON payload ({length} bytes) is larger than allowed: {MAX_BODY_BYTES}")
    try:
        document = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise malformed(str(error)) from error
    return read_object(document, "body")


def read_wait(request: Request) -> bool:
    """Whether the caller wants to wait for the update, after checking the parameters of updates."""
    parameters = request.query_params
    ordering = parameters.get("ordering")
    if ordering is not None and ordering not in _ORDERINGS:
        raise malformed_parameter(f"unknown variant `{ordering}`, expected one of `weak`, `medium`, `strong`")
    wait = parameters.get("wait", "false")
    if wait not in ("true", "false"):
        raise malformed_parameter(f"provided string was not `true` or `false`: `{wait}`")
    return wait == "true"


def update_result(request: Request, number: int) -> Document:
    """The answer to an update; everything is applied before it is sent, whether waited for or not."""
    return {"operation_id": number, "status": "completed" if read_wait(request) else "acknowledged"}
