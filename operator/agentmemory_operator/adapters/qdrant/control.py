"""Qdrant's own client for control calls to one server, with our connections under it and its answers as plain JSON.

`AsyncApiClient` and the routes of `qdrant_client.http.api` make the requests: paths, parameters, bodies. The client's
models of answers are not used: they refuse what a later server adds (docs/adr/0004).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypedDict

import aiohttp
import httpx
import orjson
from qdrant_client import models
from qdrant_client.http.api.aliases_api import AsyncAliasesApi
from qdrant_client.http.api.collections_api import AsyncCollectionsApi
from qdrant_client.http.api.distributed_api import AsyncDistributedApi
from qdrant_client.http.api.indexes_api import AsyncIndexesApi
from qdrant_client.http.api.service_api import AsyncServiceApi
from qdrant_client.http.api.snapshots_api import AsyncSnapshotsApi
from qdrant_client.http.api_client import AsyncApiClient
from yarl import URL

from agentmemory_operator.adapters.http.answers import read_capped, read_words
from agentmemory_operator.adapters.http.egress import USUAL, Egress, untrusted
from agentmemory_operator.adapters.http.httpx_transport import (
    BASE_URL,
    HEADERS,
    MOST_HEADER,
    HostTransport,
    NotAnswered,
)
from agentmemory_operator.adapters.qdrant.answers import (
    OBJECT_BYTES,
    most_bytes,
    refusal_of,
    understood,
    unreachable,
)
from agentmemory_operator.adapters.qdrant.calls import URL_FIELD, CallAnswer, CallWatch, session_to
from agentmemory_operator.errors import AgentMemoryError, NoAnswer, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json

# How long a stream may stand still.
STREAM_READ_S = 60.0
CHUNK_BYTES = 256 * 1024
# A real server reads and writes some 100 MB/s: this is time for 300 GB.
DEADLINE_S = 3600.0


class ControlOptions(TypedDict, total=False):
    """How a server is reached, as `QdrantControl` has it."""

    api_key: str | None
    timeout_s: float
    ca_pem: str | None
    egress: Egress
    field: str
    deadline_s: float


@contextmanager
def _reachable() -> Iterator[None]:
    """Turn the failures of the clients into ours."""
    try:
        yield
    except NotAnswered as exc:
        if isinstance(exc.reason, AgentMemoryError):
            raise exc.reason from None
        raise untrusted(exc.reason) or unreachable(exc.reason) from exc.reason
    except (aiohttp.ClientError, OSError) as exc:
        raise untrusted(exc) or unreachable(exc) from exc


async def result_of(call: Awaitable[Any]) -> Any:
    """`result` of the answer to a call of `QdrantControl`, as JSON whatever type the client's signature names."""
    document = await call
    with understood():
        return document["result"]


def as_it_is(body: Json) -> Any:
    """A body that a server has told, to send as it is: the client's models refuse what a later server adds."""
    return orjson.dumps(body)


class QdrantControl(AsyncApiClient):
    """Qdrant's client: its routes as attributes, each call through one session.

    Every call raises:
        NotFound: 404; CollectionNotFound where it says so of a collection.
        SpecInvalid: the server may not be connected to.
        StoreRejected: another attempt would be refused too.
        StoreUnavailable: it may not be, or the answer is larger than any of Qdrant's.

    Args:
        url: http(s) address of the server.
        api_key: a key that may manage collections, or None.
        timeout_s: of each call, connecting included.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
        egress: says whether the server may be connected to.
        field: of the connection, that has the URL.
        deadline_s: of making, recovering and uploading a snapshot.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(  # noqa: PLR0913 # how a server is reached
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10,
        ca_pem: str | None = None,
        egress: Egress = USUAL,
        field: str = URL_FIELD,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.url, self.api_key, self.deadline_s = url.rstrip("/"), api_key, deadline_s
        self.watch: CallWatch | None = None
        self._session = session_to(url, api_key=api_key, ca_pem=ca_pem, egress=egress, field=field)
        self._connect_s = timeout_s
        self._transport = HostTransport(self._session, self.url)
        super().__init__(BASE_URL, transport=self._transport, timeout=timeout_s)
        self.aliases = AsyncAliasesApi(self)
        self.collections = AsyncCollectionsApi(self)
        self.cluster = AsyncDistributedApi(self)
        self.indexes = AsyncIndexesApi(self)
        self.service = AsyncServiceApi(self)
        self.snapshots = AsyncSnapshotsApi(self)

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._session.close()

    async def names(self) -> list[str]:
        """The names of all collections, sorted."""
        listed = await result_of(self.collections.get_collections())
        with understood():
            return sorted(str(entry["name"]) for entry in listed["collections"])

    async def describe(self, name: str) -> Mapping[str, Any] | None:
        """A collection as the server describes it, None where it does not exist."""
        try:
            info: Mapping[str, Any] = await result_of(self.collections.get_collection(name))
        except NotFound:
            return None
        return info

    async def metadata(self, name: str) -> Json | None:
        """A collection's metadata, None where it does not exist."""
        info = await self.describe(name)
        with understood():
            return None if info is None else dict(info["config"].get("metadata") or {})

    async def write_metadata(self, name: str, changes: Json) -> None:
        """Merge into a collection's metadata; a key that is null is deleted."""
        await self.collections.update_collection(name, update_collection=models.UpdateCollection(metadata=changes))

    async def create_empty(self, name: str, metadata: Json, *, shards: int = 1, replicas: int | None = None) -> bool:
        """Create a collection for its metadata alone; return False where it exists."""
        body = models.CreateCollection(
            vectors=models.VectorParams(size=1, distance=models.Distance.DOT),
            shard_number=shards,
            replication_factor=replicas,
            metadata=metadata,
        )
        try:
            await self.collections.create_collection(name, create_collection=body)
        except StoreRejected as exc:
            if exc.status != 409:
                raise
            return False
        return True

    async def send(self, request: httpx.Request, type_: Any) -> Any:
        """Send what the client has made of a call; return the JSON of its answer, or its text where that is none."""
        method, path = request.method, request.url.raw_path.decode()
        request.headers.setdefault(MOST_HEADER, str(most_bytes(method, path)))
        if method in ("POST", "PUT") and "/snapshots" in path:
            request.extensions["timeout"] = httpx.Timeout(self.deadline_s, connect=self._connect_s).as_dict()
        answer = await self._answered(method, path, partial(self._sent, request))
        return answer.body.decode(errors="replace") if type_ is str else _document(answer)

    async def read(self, method: str, path: str, body: Any) -> Any:
        """`result` of a call that reads points, which `counts.py` makes for both kinds of stores."""
        most = {MOST_HEADER: str(most_bytes(method, path, body))}
        content = None if body is None else orjson.dumps(body)
        return await result_of(self.request(type_=None, method=method, url=path, content=content, headers=most))

    async def send_file(self, path: str, content: AsyncIterator[bytes], *, name: str) -> Any:
        """Post a stream as the file `snapshot` of a form, in constant memory; raises as a call, and as `content`.

        Args:
            path: encoded, with its query.
            name: the file's.
        """
        source = _Source(content)
        form = aiohttp.MultipartWriter("form-data")
        form.append(source.read()).set_content_disposition("form-data", name="snapshot", filename=name)
        try:
            return _document(await self._answered("POST", path, partial(self._sent_form, path, form)))
        except StoreUnavailable:
            # The client tells only that it could not send.
            if source.fault is not None:
                raise source.fault from None
            raise

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the bytes of an answer; opening and reading raise as a call."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=STREAM_READ_S)
        with _reachable():
            answer = await self._session.request("GET", URL(self.url + path, encoded=True), timeout=timeout)
        try:
            if answer.status >= 300:
                with _reachable():
                    words = await read_words(answer)
                raise refusal_of(CallAnswer(answer.status, answer.headers, words), self.api_key)
            yield _chunks(answer)
        finally:
            # What was not read to its end must not be read by the next call.
            answer.close()

    async def _answered(
        self, method: str, path: str, send: Callable[[Mapping[str, str]], Awaitable[CallAnswer]]
    ) -> CallAnswer:
        answer = await (self.watch.around(method, path, send) if self.watch else send({}))
        if answer.status >= 300:
            raise refusal_of(answer, self.api_key)
        return answer

    async def _sent(self, request: httpx.Request, headers: Mapping[str, str]) -> CallAnswer:
        request.extensions[HEADERS] = headers
        # At once: redirects, cookies and passwords are no matter of ours, and httpx takes as long for them as the call.
        with _reachable():
            response = await self._transport.handle_async_request(request)
        return CallAnswer(response.status_code, response.headers, response.content)

    async def _sent_form(self, path: str, form: aiohttp.MultipartWriter, headers: Mapping[str, str]) -> CallAnswer:
        timeout = aiohttp.ClientTimeout(total=self.deadline_s, sock_connect=self._connect_s)
        url, headers = URL(self.url + path, encoded=True), {**headers, "Content-Type": form.content_type}
        with _reachable():
            async with await self._session.request("POST", url, data=form, headers=headers, timeout=timeout) as answer:
                body = await (read_words(answer) if answer.status >= 300 else read_capped(answer, OBJECT_BYTES))
                return CallAnswer(answer.status, answer.headers, body)


def _document(answer: CallAnswer) -> Any:
    if answer.status == 202:
        raise NoAnswer("Qdrant accepted the call but has not finished it (202)")
    with understood():
        return orjson.loads(answer.body)


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _reachable():
        async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
            yield chunk


class _Source:
    """A stream to send, and what reading it raised.

    Attributes:
        fault: of ours; the client wraps it.
    """

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self.fault: AgentMemoryError | None = None

    async def read(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._content:
                yield chunk
        except AgentMemoryError as exc:
            self.fault = exc
            raise
