"""What Qdrant's answers may be: how large for each kind of call, which errors they are, which words are told."""

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

# What a server, or a proxy before it, answers where a later attempt may succeed.
FOR_NOW = (408, 429)
# What the engine says, its own watch over the disk as the system's error; the status is 500 as of any other trouble.
NO_SPACE = "No space left on device"
# What it answers where it has no such call.
NOT_BUILT = 501

# One object: a collection with its metadata, a count, facets, what a write comes to.
OBJECT_BYTES = 8 * MIB
# Of everything that a server has: some 200,000 names.
LIST_BYTES = 32 * MIB
# Of each point: its id and score, chosen keys of its payload, the whole payload, its vectors. A memory comes in with
# at most 1 MiB, a vector has at most 65,536 numbers.
POINT_BYTES, KEYS_BYTES, PAYLOAD_BYTES, VECTOR_BYTES = 4 << 10, 128 << 10, MIB + (256 << 10), MIB + (512 << 10)
# However many are asked for: 1,000 vectors of 3,072 numbers with their memories take less than 100.
POINTS_BYTES = 192 * MIB
# Points that are told where nobody says how many.
USUAL_POINTS = 10

# How Qdrant begins to say that there is no collection of a name.
_NO_COLLECTION = "Not found: Collection `"

_LISTS = ("/collections", "/aliases", "/telemetry")


def most_bytes(method: str, path: str, body: Any = None) -> int:
    """How large the answer to a call may be at most."""
    place = path.partition("?")[0]
    if method == "POST" and isinstance(body, Mapping):
        if place.endswith(("/points/scroll", "/points/query", "/points")):
            return _most_of_points((body,))
        if place.endswith("/points/query/batch"):
            return _most_of_points(body["searches"])
    return LIST_BYTES if place in _LISTS or place.endswith("/snapshots") else OBJECT_BYTES


def words_of(raw: bytes, secret: str | None = None) -> str:
    """What Qdrant says of an error, empty where the body is not its error envelope; of any length.

    Args:
        secret: the key that was sent, which no words repeat.
    """
    try:
        words = orjson.loads(raw)["status"]["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    if not isinstance(words, str):
        return ""
    return words.replace(secret, "...") if secret else words


def is_without_collection(status: int, words: str) -> bool:
    """Whether Qdrant says that it has no collection, and no alias, of the name; a proxy's 404 is another."""
    return status == 404 and words.startswith(_NO_COLLECTION)


def said(status: int, words: str) -> str:
    """What people are told of an answer that is an error."""
    if 300 <= status < 400:
        return f"Qdrant answered {status}, a redirect, which is not followed: use the URL of the server itself"
    return f"Qdrant answered {status}: {printable_start(words)}" if words else f"Qdrant answered {status}"


def refusal_of(answer: CallAnswer, secret: str | None) -> AgentMemoryError:
    """The error for an answer to a control call that is no success.

    Args:
        secret: the key that was sent.
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
    """Turn the failure to read an answer into ours: a proxy's page in its place, or half of one."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreUnavailable("the server is not Qdrant: its answer cannot be read") from exc


def unreachable(exc: BaseException) -> StoreUnavailable:
    """What to raise where no answer came, or none that can be read: nothing that a server has sent is told."""
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


def _most_of_points(bodies: Any) -> int:
    most = OBJECT_BYTES
    for body in bodies:
        count = len(body["ids"]) if "ids" in body else body.get("limit") or USUAL_POINTS
        each = VECTOR_BYTES if body.get("with_vector") else 0
        # Without a word of it a search tells no payload, a list all of it.
        match body.get("with_payload", "query" not in body):
            case False:
                each += POINT_BYTES
            case True:
                each += PAYLOAD_BYTES
            case keys:
                each += PAYLOAD_BYTES if "content" in keys or isinstance(keys, Mapping) else KEYS_BYTES
        most += count * each
    return min(most, POINTS_BYTES)
