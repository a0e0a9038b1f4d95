"""HTTP requests and responses: addressed peer and collection, JSON bodies, query parameters, envelope of results."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response

from qdrant_devserver.cluster.consensus import PeerView
from qdrant_devserver.cluster.peers import Peer
from qdrant_devserver.cluster.state import State
from qdrant_devserver.error_answers import ErrorAnswer, collection_missing, malformed, malformed_parameter
from qdrant_devserver.fields import Document, read_object
from qdrant_devserver.points.filters import TEXT_INDEXED
from qdrant_devserver.points.value_conditions import CONDITIONS, Conditions
from qdrant_devserver.storage.collection import ServedCollection

# Limit of Qdrant's default configuration.
MAX_BODY_BYTES = 32 * 1024 * 1024
_JSON = [(b"content-type", b"application/json")]
_ORDERINGS = ("weak", "medium", "strong")

Endpoint: TypeAlias = Callable[[Request], Awaitable[Any]]


class JsonResponse(Response):
    """A response with a serialised JSON body."""

    def __init__(self, document: Document, *, status: int = 200) -> None:
        self.status_code = status
        self.background = None
        self.body = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
        self.raw_headers = [*_JSON, (b"content-length", str(len(self.body)).encode())]


def json_endpoint(answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Build an endpoint that wraps results and errors like the server does. A `Response` is sent unchanged."""

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
    """Build the server's form of an error.

    Args:
        started: Start of the request by `time.perf_counter`, in seconds.
    """
    document = {"status": {"error": problem.message}, "time": time.perf_counter() - started}
    return JsonResponse(document, status=problem.status)


def consensus_endpoint(answer: Endpoint) -> Endpoint:
    """Build an endpoint that records a change, also after an error. The other peers may see it later."""

    async def endpoint(request: Request) -> object:
        try:
            return await answer(request)
        finally:
            state_of(request).consensus.record_change(peer_of(request).number)

    return endpoint


def state_of(request: Request) -> State:
    """Return the server's state."""
    state: State = request.app.state.server
    return state


def peer_of(request: Request) -> Peer:
    """Return the peer that received the request."""
    peer: Peer = state_of(request).cluster.peers[request.app.state.peer - 1]
    return peer


def collection_of(request: Request) -> ServedCollection:
    """Return the collection in the path, by name or alias, as the peer sees it.

    Filters of this request are then read by the payload indexes of the collection.

    Raises:
        ErrorAnswer: 404 if the peer sees none, or it is deleted.
    """
    collection = peer_view(request).resolve(request.path_params["name"])
    if collection.deleted:
        raise collection_missing(request.path_params["name"])
    schemas = collection.record.payload_schema
    CONDITIONS.set(Conditions(state_of(request).features, frozenset(schemas)))
    TEXT_INDEXED.set(frozenset(field for field, schema in schemas.items() if schema["data_type"] == "text"))
    return collection


def peer_view(request: Request) -> PeerView:
    """Return the cluster state as the peer of the request sees it."""
    return state_of(request).consensus.view_of(peer_of(request).number)


async def read_body(request: Request) -> Document:
    """Return the body, which must be a JSON object.

    Raises:
        ErrorAnswer: 400 for anything else; 413 if it exceeds the size limit.
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
    """Validate the query parameters of an update; return whether the client waits for it.

    Raises:
        ErrorAnswer: 400 for an unknown `ordering`, or a `wait` other than `true` or `false`.
    """
    parameters = request.query_params
    ordering = parameters.get("ordering")
    if ordering is not None and ordering not in _ORDERINGS:
        raise malformed_parameter(f"unknown variant `{ordering}`, expected one of `weak`, `medium`, `strong`")
    wait = parameters.get("wait", "false")
    if wait not in ("true", "false"):
        raise malformed_parameter(f"provided string was not `true` or `false`: `{wait}`")
    return wait == "true"


def update_result(request: Request, number: int) -> Document:
    """Build the response to an update, which is already applied with or without `wait`. Raises: As `read_wait`."""
    return {"operation_id": number, "status": "completed" if read_wait(request) else "acknowledged"}
