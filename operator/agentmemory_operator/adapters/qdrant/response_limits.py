"""Responses of Qdrant: size limit by call, error by status, and the parts of error texts that users may see."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson

from agentmemory_operator.adapters.http.capped_body import MIB, AnswerTooLarge, retry_after_s
from agentmemory_operator.adapters.qdrant.call_hooks import CallResponse
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionNotFound,
    NotFound,
    ResponseTimeout,
    RouteNotFound,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.spec.printable import printable_start

# Statuses of a server or proxy below 500 after which a retry may succeed.
TRANSIENT_STATUSES = (408, 429)
# Part of Qdrant's message for a full disk, whether Qdrant's own check or the operating system reports it. The status,
# 500, is also that of other errors.
NO_SPACE = "No space left on device"
# Text that users see instead of Qdrant's message, which may quote a memory.
DISK_FULL = "its disk is full"
# Status of a server that does not implement the call.
NOT_IMPLEMENTED = 501

# Limit for a single object: a collection with its metadata, a count, facets, the result of a write.
MAX_OBJECT_BYTES = 8 * MIB
# Limit per value of a facet: an id of 256 characters, each of 6 bytes at most, and its count.
MAX_FACET_BYTES = 2 << 10
# Limit for a list of all names on a server. It suffices for about 200,000 names.
MAX_LIST_BYTES = 32 * MIB
# Limits per point: id and score, selected payload keys, whole payload, vectors. A memory has at most 1 MiB, a vector at
# most 65,536 numbers.
MAX_POINT_BYTES, MAX_KEYS_BYTES, MAX_PAYLOAD_BYTES, MAX_VECTOR_BYTES = (
    4 << 10,
    128 << 10,
    MIB + (256 << 10),
    MIB + (512 << 10),
)
# Limit for any number of points. 1,000 vectors of 3,072 numbers with memories of usual size take less than 100 MiB.
MAX_POINTS_BYTES = 192 * MIB
# The server's default for `limit`.
DEFAULT_LIMIT = 10

# Starts of Qdrant's messages for any missing resource, which a download sends without the JSON envelope, and for a
# missing collection.
_MISSING = b"Not found: "
_NO_COLLECTION = "Not found: Collection `"

_LISTS = ("/collections", "/aliases", "/telemetry")


def max_response_bytes(method: str, path: str, body: Any = None) -> int:
    """Return the maximum size in bytes of the response to a call."""
    route = path.partition("?")[0]
    if method == "POST" and isinstance(body, Mapping):
        if route.endswith(("/points/scroll", "/points/query", "/points")):
            return _max_points_bytes((body,))
        if route.endswith("/points/query/batch"):
            return _max_points_bytes(body["searches"])
        if route.endswith("/facet"):
            return max(MAX_OBJECT_BYTES, int(body.get("limit", DEFAULT_LIMIT)) * MAX_FACET_BYTES)
    return MAX_LIST_BYTES if route in _LISTS or route.endswith("/snapshots") else MAX_OBJECT_BYTES


def parse_error_text(raw: bytes, secret: str | None = None) -> str:
    """Return the message in Qdrant's error envelope, at full length; '' if the body is something else.

    Args:
        secret: API key of the call; replaced by '...' in the message. None if the call had none.
    """
    try:
        error_text = orjson.loads(raw)["status"]["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    if not isinstance(error_text, str):
        return ""
    return error_text.replace(secret, "...") if secret else error_text


def is_missing_collection(status: int, words: str) -> bool:
    """Return whether an error response is Qdrant's own "no such collection or alias", not a 404 of a proxy."""
    return status == 404 and words.startswith(_NO_COLLECTION)


def reports_full_disk(status: int, words: str) -> bool:
    """Return whether an error response reports that Qdrant's disk is full."""
    return status == 500 and NO_SPACE in words


def error_message(status: int, words: str) -> str:
    """Build the message that users see for an error response.

    Args:
        words: Qdrant's error text; '' leaves it out.
    """
    if 300 <= status < 400:
        return f"Qdrant answered {status}, a redirect, which is not followed: use the URL of the server itself"
    return f"Qdrant answered {status}: {printable_start(words)}" if words else f"Qdrant answered {status}"


def error_from_response(answer: CallResponse, secret: str | None) -> AgentMemoryError:
    """Build the exception for an error response to a control call.

    NotFound or CollectionNotFound for a 404 of Qdrant, RouteNotFound for another; StoreUnavailable for 408, 429 and
    from 500, except 501; else StoreRejected.

    Args:
        secret: API key of the call; not repeated in the message. None if the call had none.
    """
    error_text = parse_error_text(answer.body, secret)
    message = error_message(answer.status, error_text)
    if is_missing_collection(answer.status, error_text):
        return CollectionNotFound(message)
    if answer.status == 404:
        is_known = bool(error_text) or answer.body.startswith(_MISSING)
        return NotFound(message) if is_known else RouteNotFound(f"{message} without a reason: check for a proxy")
    if answer.status == NOT_IMPLEMENTED or (answer.status < 500 and answer.status not in TRANSIENT_STATUSES):
        return StoreRejected(answer.status, message)
    return StoreUnavailable(
        message, retry_after_s=retry_after_s(answer.headers), is_disk_full=reports_full_disk(answer.status, error_text)
    )


@contextmanager
def map_parse_errors() -> Iterator[None]:
    """Convert errors of parsing a response, such as a proxy's page, into StoreUnavailable.

    These errors are ValueError, KeyError, TypeError and AttributeError.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreUnavailable("the server is not Qdrant: its answer cannot be read") from exc


def unreachable_error(exc: BaseException) -> StoreUnavailable:
    """Build the exception for a call without a readable response. The message contains nothing from the server."""
    if isinstance(exc, AnswerTooLarge):
        return StoreUnavailable(f"the server is not Qdrant: {exc}")
    kind = ResponseTimeout if isinstance(exc, TimeoutError) else StoreUnavailable
    return kind(f"Qdrant cannot be reached: {_fault_of(exc)}")


def _fault_of(exc: BaseException) -> str:
    match exc:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return "its host name does not resolve"
        case aiohttp.ClientConnectorError() if exc.os_error.errno:
            return os.strerror(exc.os_error.errno)
        case aiohttp.ServerDisconnectedError():
            return "Server disconnected"
        case _:
            return type(exc).__name__


def _max_points_bytes(bodies: Any) -> int:
    total = MAX_OBJECT_BYTES
    for body in bodies:
        count = len(body["ids"]) if "ids" in body else body.get("limit") or DEFAULT_LIMIT
        point_bytes = MAX_VECTOR_BYTES if body.get("with_vector") else 0
        # Without `with_payload`, a search returns no payload, and a list the whole payload.
        match body.get("with_payload", "query" not in body):
            case False:
                point_bytes += MAX_POINT_BYTES
            case True:
                point_bytes += MAX_PAYLOAD_BYTES
            case keys:
                point_bytes += MAX_PAYLOAD_BYTES if "content" in keys or isinstance(keys, Mapping) else MAX_KEYS_BYTES
        total += count * point_bytes
    return min(total, MAX_POINTS_BYTES)
