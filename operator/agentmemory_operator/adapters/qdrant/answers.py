"""Responses of Qdrant: size limit by call, error by status, and the parts of error texts that users may see."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson

from agentmemory_operator.adapters.http.answers import MIB, AnswerTooLarge, retry_after_s
from agentmemory_operator.adapters.qdrant.calls import CallAnswer
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionNotFound,
    NoAnswer,
    NotFound,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.spec.printable import printable_start

# Statuses of a server or proxy below 500 after which a retry may succeed.
FOR_NOW = (408, 429)
# Part of the engine's message on a full disk, from its own check or from the system. The status is a generic 500.
NO_SPACE = "No space left on device"
# Status of a server that does not implement the call.
NOT_BUILT = 501

# Limit for a single object: a collection with its metadata, a count, facets, the result of a write.
OBJECT_BYTES = 8 * MIB
# Limit for a list of everything on a server: about 200,000 names.
LIST_BYTES = 32 * MIB
# Limits per point: id and score, selected payload keys, whole payload, vectors. A memory has at most 1 MiB, a vector at
# most 65,536 numbers.
POINT_BYTES, KEYS_BYTES, PAYLOAD_BYTES, VECTOR_BYTES = 4 << 10, 128 << 10, MIB + (256 << 10), MIB + (512 << 10)
# Limit for any number of points: 1,000 vectors of 3,072 numbers with their memories take less than 100 MiB.
POINTS_BYTES = 192 * MIB
# The server's default for `limit`.
USUAL_POINTS = 10

# Start of Qdrant's message for a missing collection.
_NO_COLLECTION = "Not found: Collection `"

_LISTS = ("/collections", "/aliases", "/telemetry")


def most_bytes(method: str, path: str, body: Any = None) -> int:
    """Return the maximum size in bytes of the response to a call."""
    place = path.partition("?")[0]
    if method == "POST" and isinstance(body, Mapping):
        if place.endswith(("/points/scroll", "/points/query", "/points")):
            return _max_points_bytes((body,))
        if place.endswith("/points/query/batch"):
            return _max_points_bytes(body["searches"])
    return LIST_BYTES if place in _LISTS or place.endswith("/snapshots") else OBJECT_BYTES


def words_of(raw: bytes, secret: str | None = None) -> str:
    """Return the message in Qdrant's error envelope, at full length; '' if the body is something else.

    Args:
        secret: API key of the call; replaced by '...' in the message.
    """
    try:
        words = orjson.loads(raw)["status"]["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    if not isinstance(words, str):
        return ""
    return words.replace(secret, "...") if secret else words


def is_without_collection(status: int, words: str) -> bool:
    """Return whether an error response is Qdrant's own "no such collection or alias", not a 404 of a proxy."""
    return status == 404 and words.startswith(_NO_COLLECTION)


def said(status: int, words: str) -> str:
    """Build the message for users of an error response."""
    if 300 <= status < 400:
        return f"Qdrant answered {status}, a redirect, which is not followed: use the URL of the server itself"
    return f"Qdrant answered {status}: {printable_start(words)}" if words else f"Qdrant answered {status}"


def refusal_of(answer: CallAnswer, secret: str | None) -> AgentMemoryError:
    """Build the exception for an error response to a control call.

    Args:
        secret: API key of the call; not repeated in the message.
    """
    words = words_of(answer.body, secret)
    message = said(answer.status, words)
    if answer.status == 404:
        return CollectionNotFound(message) if is_without_collection(404, words) else NotFound(message)
    if answer.status == NOT_BUILT or (answer.status < 500 and answer.status not in FOR_NOW):
        return StoreRejected(answer.status, message)
    return StoreUnavailable(message, retry_after_s=retry_after_s(answer.headers), is_disk_full=NO_SPACE in words)


@contextmanager
def understood() -> Iterator[None]:
    """Convert errors of parsing a response into StoreUnavailable: a proxy's page, or a truncated response."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreUnavailable("the server is not Qdrant: its answer cannot be read") from exc


def unreachable(exc: BaseException) -> StoreUnavailable:
    """Build the exception for a call without a readable response; its message contains nothing from the server."""
    if isinstance(exc, AnswerTooLarge):
        return StoreUnavailable(f"the server is not Qdrant: {exc}")
    kind = NoAnswer if isinstance(exc, TimeoutError) else StoreUnavailable
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
    total = OBJECT_BYTES
    for body in bodies:
        count = len(body["ids"]) if "ids" in body else body.get("limit") or USUAL_POINTS
        point_bytes = VECTOR_BYTES if body.get("with_vector") else 0
        # Default of `with_payload`: a search returns no payload, a list the whole payload.
        match body.get("with_payload", "query" not in body):
            case False:
                point_bytes += POINT_BYTES
            case True:
                point_bytes += PAYLOAD_BYTES
            case keys:
                point_bytes += PAYLOAD_BYTES if "content" in keys or isinstance(keys, Mapping) else KEYS_BYTES
        total += count * point_bytes
    return min(total, POINTS_BYTES)
