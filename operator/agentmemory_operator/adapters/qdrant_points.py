"""Points over plain pooled HTTP: the hot path.

The official client costs 3 to 8 ms a call in model parsing, and a compressed answer 40 ms more, because the server
writes it in small pieces; so this is aiohttp and orjson with `Accept-Encoding: identity`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from agentmemory_operator.adapters.qdrant_transport import NO_SPACE
from agentmemory_operator.adapters.tls import trust_of, untrusted
from agentmemory_operator.domain.json_text import JsonText
from agentmemory_operator.errors import NotFound, OutcomeUnknown, StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.ports import Json
from agentmemory_operator.ports.tracing import EngineCall, EngineMeter

MAX_CONNECTIONS = 64
# Below the 5 s after which the server closes an idle connection: a write sent into a closed one has an unknown outcome.
KEEP_ALIVE_S = 4.0
# The engine takes 32 MiB; a thousand vectors of 1,536 numbers as text come to 33.
MAX_UPSERT_BYTES = 24 << 20
SERIALISED_AT_ONCE = 100
# What the engine answers while it cannot take a call; nothing was done.
_REFUSED_FOR_NOW = frozenset({429, 503})
# The engine, or a proxy, gave up midway: a write may have been done.
_GAVE_UP = frozenset({408, *range(500, 600)}) - _REFUSED_FOR_NOW
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
_LOST_ANSWER = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


class QdrantPoints:
    """Points of one Qdrant server; implements `ports.PointStore`.

    Args:
        url: base URL, without a trailing slash or with one.
        timeout_s: for one call, connecting included.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
        meter: told of each call.
        before_write: called right before each call that changes something; what it raises stops the call.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10,
        ca_pem: str | None = None,
        meter: EngineMeter | None = None,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url.rstrip("/")
        self._meter = meter
        self._before_write = before_write
        self._trust = trust_of(url, ca_pem)
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["api-key"] = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=timeout_s / 2)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the pooled connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`.

        Raises:
            NotFound: there is no such collection.
        """
        try:
            described: Json = await self._read("GET", f"/collections/{collection}")
        except _Missing as error:
            raise NotFound(str(error)) from error
        return described

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""
        result = await self._read("POST", f"/collections/{collection}/points/query", body)
        points: list[Json] = result["points"]
        return points

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""
        body = {"searches": list(bodies)}
        result = await self._read("POST", f"/collections/{collection}/points/query/batch", body)
        return [answer["points"] for answer in result]

    async def retrieve(self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> list[Json]:
        """Return the existing points among `ids` with payload (of it only `keys`), without vector, in any order."""
        body = {"ids": list(ids), "with_payload": True if keys is None else list(keys), "with_vector": False}
        points: list[Json] = await self._read("POST", f"/collections/{collection}/points", body)
        return points

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return points of `POST /points/scroll` and the next page's offset, None at the end."""
        result = await self._read("POST", f"/collections/{collection}/points/scroll", body)
        return result["points"], result.get("next_page_offset")

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return how many points match."""
        body = {"exact": exact} | ({"filter": filter_} if filter_ else {})
        result = await self._read("POST", f"/collections/{collection}/points/count", body)
        return int(result["count"])

    async def facet(self, collection: str, key: str, filter_: Json, *, limit: int) -> dict[str, int]:
        """Return how many matching points have each value of an indexed keyword, of the `limit` most frequent ones."""
        body = {"key": key, "filter": filter_, "limit": limit, "exact": True}
        result = await self._read("POST", f"/collections/{collection}/facet", body)
        return {hit["value"]: hit["count"] for hit in result["hits"]}

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
        """Write points durably; `insert_only` and `update_filter` skip in silence, so read back."""
        mode: Json = {"update_mode": "insert_only"} if insert_only else {}
        if update_filter is not None:
            # Where any point may be written, the engine inserts what is missing whatever the filter says.
            mode = {"update_mode": "upsert" if inserts else "update_only", "update_filter": update_filter}
        requests = await _serialised(points)
        for number, part in enumerate(requests):
            try:
                await self._write("PUT", f"/collections/{collection}/points", mode | {"points": part}, strong=strong)
            except StoreUnavailable as error:
                if number == 0:
                    raise
                told = f"{number} of {len(requests)} parts were written, then: {error}"
                raise OutcomeUnknown(told, is_disk_full=error.is_disk_full) from error

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every point that matches, durably; atomic per point."""
        # Without `points`: beside them the engine ignores the filter.
        body = {"payload": payload, "filter": filter_}
        await self._write("POST", f"/collections/{collection}/points/payload", body, strong=strong)

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run operations of `POST /points/batch` in order; not atomic."""
        body = {"operations": list(operations)}
        await self._write("POST", f"/collections/{collection}/points/batch", body, wait=wait, strong=strong)

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every point that matches, durably."""
        await self._write("POST", f"/collections/{collection}/points/delete", {"filter": filter_}, strong=True)

    async def _read(self, method: str, path: str, body: Json | None = None) -> Any:
        try:
            return await self._call(method, path, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # The pooled connection had been closed by the server; a read may be asked twice.
            return await self._last_read(method, path, body)
        except _LOST_ANSWER as error:
            raise _away(error) from error

    async def _last_read(self, method: str, path: str, body: Json | None) -> Any:
        try:
            return await self._call(method, path, body)
        except _LOST_ANSWER as error:
            raise _away(error) from error

    async def _write(self, method: str, path: str, body: Json, *, wait: bool = True, strong: bool = False) -> None:
        query = f"?wait={'true' if wait else 'false'}" + ("&ordering=strong" if strong else "")
        self._before_write()
        try:
            result = await self._call(method, path + query, body, is_write=True)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _away(error) from error
        except _LOST_ANSWER as error:
            raise OutcomeUnknown(
                f"Qdrant's answer to a write was lost ({_name(error)}): read before repeating"
            ) from error
        if any(part.get("status") == "wait_timeout" for part in (result if isinstance(result, list) else [result])):
            raise OutcomeUnknown("Qdrant took the write but did not finish it in time: read before repeating")

    async def _call(self, method: str, path: str, body: Json | None, *, is_write: bool = False) -> Any:
        data = None if body is None else orjson.dumps(body, default=_as_it_stands, option=_OPTIONS)
        with _measured(self._meter, method, path) as call:
            async with self._open_session().request(
                method, self._url + path, data=data, headers=call.headers
            ) as response:
                raw = await response.read()
            call.answered(response.status)
            if response.status == 200:
                return _result_of(raw, is_write=is_write)
            raise _error_of(response.status, raw, response.headers, is_write=is_write)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S, ssl=self._trust or True
            )
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=self._timeout, auto_decompress=False
            )
        return self._session


def _as_it_stands(value: object) -> orjson.Fragment:
    """Return what orjson makes of a value that it does not know."""
    if isinstance(value, JsonText):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is no JSON")


class _Unmeasured:
    """Implements ports.EngineCall."""

    headers: Mapping[str, str] = {}

    def answered(self, status: int) -> None:
        """Do nothing."""


def _measured(meter: EngineMeter | None, method: str, path: str) -> AbstractContextManager[EngineCall]:
    if meter is None:
        return nullcontext(_Unmeasured())
    # The third part names the collection; what comes after it is one of the few calls above.
    operation = path.partition("?")[0].split("/", 3)[3:]
    return meter.engine(f"{method} {operation[0] if operation else 'collection'}")


async def _serialised(points: Sequence[Json]) -> list[list[orjson.Fragment]]:
    """Return the requests of an upsert; of many points they are made in a thread, while others get their turn."""
    if len(points) <= SERIALISED_AT_ONCE:
        return list(_requests_of(points))
    return await asyncio.to_thread(lambda: list(_requests_of(points)))


def _requests_of(points: Sequence[Json]) -> Iterator[list[orjson.Fragment]]:
    """Yield the points as JSON, as many at a time as fit into one request."""
    part: list[orjson.Fragment] = []
    size = 0
    for point in points:
        text = orjson.dumps(point, option=orjson.OPT_SERIALIZE_NUMPY)
        if part and size + len(text) > MAX_UPSERT_BYTES:
            yield part
            part, size = [], 0
        part.append(orjson.Fragment(text))
        size += len(text) + 1
    yield part


class _Missing(StoreUnavailable):
    """There is no such collection: not yet, or no more. Nothing was written."""


def _error_of(status: int, raw: bytes, headers: Mapping[str, str], *, is_write: bool) -> TransientError | StoreRejected:
    message = _message_of(raw) or f"status {status}"
    if status in _REFUSED_FOR_NOW:
        return StoreUnavailable(f"Qdrant refuses for now ({status}): {message}", retry_after_s=_retry_after(headers))
    if status in _GAVE_UP:
        kind = OutcomeUnknown if is_write else StoreUnavailable
        return kind(f"Qdrant failed ({status}): {message}", is_disk_full=NO_SPACE in message)
    if status == 404:
        return _Missing(message, retry_after_s=2)
    return StoreRejected(status, message)


def _result_of(raw: bytes, *, is_write: bool) -> Any:
    try:
        return orjson.loads(raw)["result"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        kind = OutcomeUnknown if is_write else StoreUnavailable
        message = "the answer with status 200 is none of Qdrant's: see what stands between, a proxy or another server"
        raise kind(message) from error


def _message_of(raw: bytes) -> str:
    try:
        return str(orjson.loads(raw)["status"]["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else 0.0


def _away(error: BaseException) -> StoreUnavailable:
    return untrusted(error) or StoreUnavailable(f"Qdrant cannot be reached ({_name(error)})")


def _name(error: BaseException) -> str:
    return type(error).__name__
