"""Points of a Qdrant server over pooled HTTP connections: the hot path.

The official client spends 3 to 8 ms per call on parsing models. A compressed response costs 40 ms more, because the
server writes it in small pieces. So this module uses aiohttp and orjson with `Accept-Encoding: identity`.

Retries: a read that failed by a connection error is repeated once. A read that timed out is repeated once, within the
budget of `ReadRetries`. A write is never repeated: without a response its outcome is usually unknown.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

from agentmemory_operator.adapters.http.capped_body import AnswerTooLarge, read_capped, read_error_body, retry_after_s
from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress, find_tls_failure
from agentmemory_operator.adapters.qdrant.call_hooks import RETRY_TIMEOUT_SHARE, ReadRetries, build_qdrant_session
from agentmemory_operator.adapters.qdrant.counts import count_exactly, estimate_count, facet_exactly
from agentmemory_operator.adapters.qdrant.response_limits import (
    DISK_FULL,
    error_message,
    is_missing_collection,
    max_response_bytes,
    parse_error_text,
    reports_full_disk,
    unreachable_error,
)
from agentmemory_operator.errors import (
    CollectionDeleted,
    NotFound,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.memories.rules.exact_numbers import MARK, decode_numbers, encode_numbers, keys_with_texts
from agentmemory_operator.memories.rules.ids import parts_within
from agentmemory_operator.ports.base import Json, WriteContext
from agentmemory_operator.ports.tracing import EngineCall, EngineMeter
from agentmemory_operator.search.rules.score import JsonText
from agentmemory_operator.spec.printable import printable_start

MAX_CONNECTIONS = 64
# Maximum size of an upsert request. Qdrant accepts 32 MiB, and a thousand vectors of 1,536 numbers are 33 MiB as text.
MAX_UPSERT_BYTES = 24 << 20
MAX_INLINE_POINTS = 100
# Statuses after which nothing was written, and the call may be retried.
_REFUSED_FOR_NOW = frozenset({429, 503})
# Statuses of a failure in Qdrant or a proxy during the call. A write may have taken effect.
_FAILED = frozenset({408, *range(500, 600)}) - _REFUSED_FOR_NOW
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
_NO_RESPONSE = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


class QdrantPoints:
    """Points of one Qdrant server; implements `ports.PointStore`.

    Args:
        url: Base URL, with or without a trailing slash.
        api_key: Sent with each call; None for a server without authentication.
        timeout_s: Timeout of one call, connecting included. The retry of a read that timed out gets half as much.
        ca_pem: Trusted CA certificates in PEM. None trusts the system's.
        meter: Measures each call.
        before_write: Called right before each call that changes something. An exception stops the call.
        writing: Context to enter around each call that changes something.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.
        retries: Retry budget for reads from this server. None creates one for this instance.

    Raises:
        SpecInvalid: If `url` is https, and `ca_pem` contains no certificate.
    """

    def __init__(  # noqa: PLR0913 # connection options and hooks
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10,
        ca_pem: str | None = None,
        meter: EngineMeter | None = None,
        before_write: Callable[[], None] = lambda: None,
        writing: WriteContext = nullcontext,
        egress: Egress = DEFAULT_EGRESS,
        retries: ReadRetries | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._retries = retries or ReadRetries()
        self._meter = meter
        self._before_write = before_write
        self._writing = writing
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=timeout_s / 2)
        self._timeout_again = aiohttp.ClientTimeout(total=timeout_s * RETRY_TIMEOUT_SHARE)
        self._host = build_qdrant_session(url, api_key=api_key, ca_pem=ca_pem, egress=egress, limit=MAX_CONNECTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the pooled connections; a later call opens new ones."""
        await self._host.close()

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`.

        Raises:
            NotFound: If there is no such collection.
        """
        try:
            description: Json = await self._read("GET", f"/collections/{collection}")
        except CollectionDeleted as error:
            raise NotFound(str(error)) from error
        return description

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""
        result = await self._read("POST", f"/collections/{collection}/points/query", body)
        points: list[Json] = result["points"]
        return points

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""
        body = {"searches": list(bodies)}
        result = await self._read("POST", f"/collections/{collection}/points/query/batch", body)
        return [response["points"] for response in result]

    async def retrieve(
        self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None, vectors: bool = False
    ) -> list[Json]:
        """Return the existing points among `ids`, in any order. `keys` None returns the whole payload."""
        body = {"ids": list(ids), "with_payload": keys is None or keys_with_texts(keys), "with_vector": vectors}
        points: list[Json] = await self._read("POST", f"/collections/{collection}/points", body)
        return points

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return one page of `POST /points/scroll`, and the offset of the next page, or None at the end."""
        if isinstance(keys := body.get("with_payload"), list):
            body = body | {"with_payload": keys_with_texts(keys)}
        result = await self._read("POST", f"/collections/{collection}/points/scroll", body)
        return result["points"], result.get("next_page_offset")

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return the number of points that match a filter (None: all), or an estimate if `exact` is False."""
        count = count_exactly if exact else estimate_count
        return await count(self._read, f"/collections/{collection}", filter_)

    async def facet(self, collection: str, key: str, filter_: Json, *, limit: int) -> dict[str, int]:
        """Count matching points for each of the `limit` most frequent values of an indexed keyword."""
        return await facet_exactly(self._read, f"/collections/{collection}", key, filter_, limit=limit)

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        """Write points durably. `insert_only` and `update_filter` skip points without a report, so read back.

        Raises:
            OutcomeUnknown: If a write may have taken effect, or Qdrant became unavailable after a part was written.
            StoreRejected: If Qdrant rejects a part. `is_partial` is True if an earlier part was written.
        """
        mode: Json = {"update_mode": "insert_only"} if insert_only else {}
        if update_filter is not None:
            # In mode `upsert` Qdrant inserts missing points without applying the filter to them.
            mode = {"update_mode": "upsert" if inserts else "update_only", "update_filter": update_filter}
        requests = await _serialise(points)
        for number, part in enumerate(requests):
            try:
                await self._write("PUT", f"/collections/{collection}/points", mode | {"points": part}, strong=strong)
            except StoreRejected as error:
                error.is_partial = number > 0
                raise
            except StoreUnavailable as error:
                if number == 0:
                    raise
                message = f"{number} of {len(requests)} parts were written before the error: {error}"
                raise OutcomeUnknown(message, is_disk_full=error.is_disk_full) from error

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every matching point, durably. The change of each point is atomic."""
        # Do not add `points`: with them, Qdrant ignores the filter.
        body = {"payload": encode_numbers(payload, is_part=True), "filter": filter_}
        await self._write("POST", f"/collections/{collection}/points/payload", body, strong=strong)

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run the operations of `POST /points/batch` in order, not atomically. `wait` False does not await them."""
        body = {"operations": [_encoded_operation(operation) for operation in operations]}
        await self._write("POST", f"/collections/{collection}/points/batch", body, wait=wait, strong=strong)

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every matching point, durably and with `ordering=strong`."""
        await self._write("POST", f"/collections/{collection}/points/delete", {"filter": filter_}, strong=True)

    async def _read(self, method: str, path: str, body: Json | None = None) -> Any:
        self._retries.record_read()
        try:
            return await self._call(method, path, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # Repeat the read with its whole timeout: usually the server had closed the pooled connection.
            timeout = self._timeout
        except _NO_RESPONSE as error:
            if not (isinstance(error, TimeoutError) and self._retries.try_take()):
                self._retries.record_failure()
                raise _unavailable(error) from error
            if self._meter is not None:
                self._meter.count_retry(_operation_of(method, path))
            timeout = self._timeout_again
        try:
            return await self._call(method, path, body, timeout=timeout)
        except _NO_RESPONSE as error:
            self._retries.record_failure()
            raise _unavailable(error) from error

    async def _write(self, method: str, path: str, body: Json, *, wait: bool = True, strong: bool = False) -> None:
        query = f"?wait={'true' if wait else 'false'}" + ("&ordering=strong" if strong else "")
        self._before_write()
        try:
            async with self._writing():
                result = await self._call(method, path + query, body, is_write=True)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _unavailable(error) from error
        except _NO_RESPONSE as error:
            raise OutcomeUnknown(f"no answer to a write to Qdrant ({_name(error)}): read before retrying") from error
        if any(part.get("status") == "wait_timeout" for part in (result if isinstance(result, list) else [result])):
            raise OutcomeUnknown("Qdrant accepted the write but did not finish it in time: read before retrying")

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | None,
        *,
        is_write: bool = False,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        data = None if body is None else orjson.dumps(body, default=_serialise_fragment, option=_OPTIONS)
        with _measured(self._meter, method, path) as call:
            response = await self._host.request(
                method, URL(self._url + path), data=data, headers=call.headers, timeout=timeout or self._timeout
            )
            async with response:
                is_success = response.status == 200
                max_bytes = max_response_bytes(method, path, body)
                raw = await (read_capped(response, max_bytes) if is_success else read_error_body(response))
            error_text = "" if is_success else parse_error_text(raw, self._api_key)
            call.record_status(response.status, is_disk_full=reports_full_disk(response.status, error_text))
            self._retries.record_response()
            if is_success:
                return _result_of(raw, is_write=is_write)
            raise _error_of(response.status, error_text, response.headers, path=path, is_write=is_write)


def _serialise_fragment(value: object) -> orjson.Fragment:
    """Insert a JsonText unchanged, as the `default` hook of orjson. Raise TypeError for a value of another type."""
    if isinstance(value, JsonText):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _encoded_operation(operation: Json) -> Json:
    if upsert := operation.get("upsert"):
        return {"upsert": upsert | {"points": [_encoded_point(point) for point in upsert["points"]]}}
    if change := operation.get("set_payload"):
        return {"set_payload": change | {"payload": encode_numbers(change["payload"], is_part=True)}}
    return operation


def _encoded_point(point: Json) -> Json:
    return point | {"payload": encode_numbers(point["payload"])} if point.get("payload") else point


def _decoded_points(result: Any) -> None:
    """Restore the exact numbers in the payloads of a response, in place."""
    if isinstance(result, list):
        for part in result:
            _decoded_points(part)
    elif isinstance(result, dict):
        _decoded_points(result.get("points"))
        if payload := result.get("payload"):
            result["payload"] = decode_numbers(payload)


class _Unmeasured:
    """Implements ports.EngineCall for a store without a meter."""

    headers: Mapping[str, str] = {}

    def record_status(self, status: int, *, is_disk_full: bool = False) -> None:
        """Do nothing."""


def _measured(meter: EngineMeter | None, method: str, path: str) -> AbstractContextManager[EngineCall]:
    if meter is None:
        return nullcontext(_Unmeasured())
    return meter.engine(_operation_of(method, path))


def _operation_of(method: str, path: str) -> str:
    # Leave out the collection's name, so that the metric label has few values.
    operation = path.partition("?")[0].split("/", 3)[3:]
    return f"{method} {operation[0] if operation else 'collection'}"


async def _serialise(points: Sequence[Json]) -> list[list[orjson.Fragment]]:
    """Serialise an upsert into requests. With many points, this runs in a thread to keep the event loop free."""
    if len(points) <= MAX_INLINE_POINTS:
        return _requests_of(points)
    return await asyncio.to_thread(_requests_of, points)


def _requests_of(points: Sequence[Json]) -> list[list[orjson.Fragment]]:
    """Return the points as JSON, in groups of at most 24 MiB; one empty group without points."""
    texts = (orjson.dumps(_encoded_point(point), option=orjson.OPT_SERIALIZE_NUMPY) for point in points)
    # Count the comma after each point, which the last one lacks.
    sized = ((orjson.Fragment(text), len(text) + 1) for text in texts)
    return list(parts_within(sized, MAX_UPSERT_BYTES + 1)) or [[]]


def _error_of(
    status: int, error_text: str, headers: Mapping[str, str], *, path: str, is_write: bool
) -> TransientError | StoreRejected:
    """Build the error of a response. Its message omits Qdrant's text about points, which may quote a memory."""
    if is_missing_collection(status, error_text):
        return _collection_gone(path)
    is_points_call, is_disk_full = "/points" in path, reports_full_disk(status, error_text)
    text = DISK_FULL if is_disk_full else "" if is_points_call else printable_start(error_text)
    error = _refusal(status, text, headers, is_write=is_write)
    if isinstance(error, TransientError):
        error.is_disk_full = is_disk_full
    # Keep the server's text only for reads. A write may combine points of several callers, and none may see the text.
    error.server_message = printable_start(error_text) if is_points_call and not is_write else ""
    return error


def _refusal(status: int, text: str, headers: Mapping[str, str], *, is_write: bool) -> TransientError | StoreRejected:
    details = f" ({status}): {text}" if text else f" ({status})"
    if status in _REFUSED_FOR_NOW:
        return StoreUnavailable(
            f"Qdrant is temporarily refusing requests{details}", retry_after_s=retry_after_s(headers)
        )
    if status in _FAILED:
        kind = OutcomeUnknown if is_write else StoreUnavailable
        return kind(f"Qdrant failed{details}")
    if status == 404:
        # Treat a 404 that is not Qdrant's own as transient: usually a proxy responded, or the URL is wrong.
        return StoreUnavailable(error_message(status, text), retry_after_s=2)
    return StoreRejected(status, error_message(status, text))


def _collection_gone(path: str) -> CollectionDeleted:
    name = path.split("/")[2]
    return CollectionDeleted(
        f"Qdrant has no collection or alias {name!r}: it was deleted, or not created yet. Nothing was"
        " written. See the object's Ready condition",
        retry_after_s=2,
    )


def _result_of(raw: bytes, *, is_write: bool) -> Any:
    try:
        result = orjson.loads(raw)["result"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        kind = OutcomeUnknown if is_write else StoreUnavailable
        message = "the answer with status 200 is not from Qdrant: check for a proxy or another server at this URL"
        raise kind(message) from error
    if MARK in raw:
        _decoded_points(result)
    return result


def _unavailable(error: BaseException) -> StoreUnavailable:
    if isinstance(error, AnswerTooLarge):
        return unreachable_error(error)
    return find_tls_failure(error) or StoreUnavailable(f"Qdrant cannot be reached ({_name(error)})")


def _name(error: BaseException) -> str:
    return type(error).__name__
