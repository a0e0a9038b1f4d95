"""Qdrant's official client for control calls to one server, over `HostSession` and with responses as plain JSON.

`AsyncApiClient` and the routes of `qdrant_client.http.api` build the requests: paths, parameters, bodies. The client's
response models are not used, because they reject fields that a later server adds (docs/adr/0004).
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

from agentmemory_operator.adapters.http.capped_body import read_capped, read_error_body
from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress, find_tls_failure
from agentmemory_operator.adapters.http.httpx_transport import (
    BASE_URL,
    HEADERS_EXTENSION,
    MAX_BYTES_HEADER,
    HostTransport,
    NoResponse,
)
from agentmemory_operator.adapters.qdrant.call_hooks import URL_FIELD, CallHooks, CallResponse, build_qdrant_session
from agentmemory_operator.adapters.qdrant.response_limits import (
    MAX_OBJECT_BYTES,
    error_from_response,
    map_parse_errors,
    max_response_bytes,
    unreachable_error,
)
from agentmemory_operator.errors import AgentMemoryError, NotFound, ResponseTimeout, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json

# Maximum time between two chunks of a stream.
MAX_STREAM_PAUSE_S = 60.0
CHUNK_BYTES = 256 * 1024
# Time limit of long calls. It suffices for 300 GB, because a server reads and writes about 100 MB/s.
DEADLINE_S = 3600.0


class ControlOptions(TypedDict, total=False):
    """Options of `QdrantControl`, which documents them."""

    api_key: str | None
    timeout_s: float
    ca_pem: str | None
    egress: Egress
    field: str
    deadline_s: float


@contextmanager
def _reachable() -> Iterator[None]:
    """Convert the exceptions of the HTTP clients into StoreUnavailable. An AgentMemoryError passes through."""
    try:
        yield
    except NoResponse as exc:
        if isinstance(exc.reason, AgentMemoryError):
            raise exc.reason from None
        raise find_tls_failure(exc.reason) or unreachable_error(exc.reason) from exc.reason
    except (aiohttp.ClientError, OSError) as exc:
        raise find_tls_failure(exc) or unreachable_error(exc) from exc


async def result_of(call: Awaitable[Any]) -> Any:
    """Await a call of `QdrantControl`; return `result` of its response as plain JSON.

    The client's signatures name model types, which `QdrantControl.send` never builds.
    """
    document = await call
    with map_parse_errors():
        return document["result"]


def serialise_raw(body: Json) -> Any:
    """Serialise a body from a server unchanged, without the client's models, which reject fields of later servers."""
    return orjson.dumps(body)


class QdrantControl(AsyncApiClient):
    """Qdrant's client with its routes as attributes. All calls share one session.

    Every call raises:
        NotFound: On a 404 of Qdrant; CollectionNotFound if it reports that the collection does not exist.
        SpecInvalid: If the egress policy forbids the host, or the URL has none.
        StoreRejected: If the server rejects the call; a retry would be rejected too.
        StoreUnavailable: If the server is unavailable, or the response is too large or not from Qdrant. After a lost
            response, a change may have been made; ResponseTimeout if it timed out.

    Args:
        url: http(s) URL of the server.
        api_key: Key that may manage collections, or None.
        timeout_s: Timeout of each call, connecting included, except those that `deadline_s` covers, and downloads.
        ca_pem: Trusted CA certificates in PEM. None trusts the system's.
        egress: Policy for outgoing connections.
        field: Field of the QdrantConnection with the URL, for error messages.
        deadline_s: Timeout for creating, recovering and uploading a snapshot.

    Raises:
        SpecInvalid: If `url` is https, and `ca_pem` contains no certificate.
    """

    def __init__(  # noqa: PLR0913 # connection options
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 10,
        ca_pem: str | None = None,
        egress: Egress = DEFAULT_EGRESS,
        field: str = URL_FIELD,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.url, self.api_key, self.deadline_s = url.rstrip("/"), api_key, deadline_s
        self.watch: CallHooks | None = None
        self._session = build_qdrant_session(url, api_key=api_key, ca_pem=ca_pem, egress=egress, field=field)
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
        """Return the names of all collections, placeholders included, sorted."""
        result = await result_of(self.collections.get_collections())
        with map_parse_errors():
            return sorted(str(entry["name"]) for entry in result["collections"])

    async def describe(self, name: str) -> Mapping[str, Any] | None:
        """Return the server's description of a collection, or None if it does not exist."""
        try:
            info: Mapping[str, Any] = await result_of(self.collections.get_collection(name))
        except NotFound:
            return None
        return info

    async def metadata(self, name: str) -> Json | None:
        """Return the metadata of a collection, {} if it has none; None if the collection does not exist."""
        info = await self.describe(name)
        with map_parse_errors():
            return None if info is None else dict(info["config"].get("metadata") or {})

    async def write_metadata(self, name: str, changes: Json) -> None:
        """Merge changes into the metadata of a collection; a null value deletes its key."""
        await self.collections.update_collection(name, update_collection=models.UpdateCollection(metadata=changes))

    async def create_empty(self, name: str, metadata: Json, *, shards: int = 1, replicas: int | None = None) -> bool:
        """Create a collection that contains only metadata; return False if the name is in use.

        Args:
            shards: Number of shards.
            replicas: Replication factor; None uses the server's default.
        """
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
        """Send a request that the client has built; return the response's JSON, or its text if `type_` is str."""
        method, path = request.method, request.url.raw_path.decode()
        request.headers.setdefault(MAX_BYTES_HEADER, str(max_response_bytes(method, path)))
        if method in ("POST", "PUT") and "/snapshots" in path:
            request.extensions["timeout"] = httpx.Timeout(self.deadline_s, connect=self._connect_s).as_dict()
        response = await self._send_watched(method, path, partial(self._send_request, request))
        return response.body.decode(errors="replace") if type_ is str else _document(response)

    async def read(self, method: str, path: str, body: Any) -> Any:
        """Make a reading call of `counts.py` or `QdrantCollections`; return `result` of its response."""
        size_limit = {MAX_BYTES_HEADER: str(max_response_bytes(method, path, body))}
        content = None if body is None else orjson.dumps(body)
        return await result_of(self.request(type_=None, method=method, url=path, content=content, headers=size_limit))

    async def send_file(self, path: str, content: AsyncIterator[bytes], *, name: str) -> Any:
        """Post a stream as the form field `snapshot`, in constant memory. AgentMemoryErrors of the stream pass through.

        Args:
            path: URL path with its query, encoded.
            name: File name in the form.
        """
        source = _Source(content)
        form = aiohttp.MultipartWriter("form-data")
        form.append(source.read()).set_content_disposition("form-data", name="snapshot", filename=name)
        try:
            return _document(await self._send_watched("POST", path, partial(self._send_form, path, form)))
        except StoreUnavailable:
            # Raise the error of the content, because the HTTP client reports only that sending failed.
            if source.fault is not None:
                raise source.fault from None
            raise

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content of the response to `GET path`. Opening and reading raise the errors of a call."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=MAX_STREAM_PAUSE_S)
        with _reachable():
            response = await self._session.request("GET", URL(self.url + path, encoded=True), timeout=timeout)
        try:
            if response.status >= 300:
                with _reachable():
                    body = await read_error_body(response)
                raise error_from_response(CallResponse(response.status, response.headers, body), self.api_key)
            yield _chunks(response)
        finally:
            # Do not reuse the connection: the next call would read the rest of this response.
            response.close()

    async def _send_watched(
        self, method: str, path: str, send: Callable[[Mapping[str, str]], Awaitable[CallResponse]]
    ) -> CallResponse:
        response = await (self.watch.around(method, path, send) if self.watch else send({}))
        if response.status >= 300:
            raise error_from_response(response, self.api_key)
        return response

    async def _send_request(self, request: httpx.Request, headers: Mapping[str, str]) -> CallResponse:
        request.extensions[HEADERS_EXTENSION] = headers
        # Bypass httpx's handling of redirects, cookies and authentication, which takes as long as the call itself.
        with _reachable():
            response = await self._transport.handle_async_request(request)
        return CallResponse(response.status_code, response.headers, response.content)

    async def _send_form(self, path: str, form: aiohttp.MultipartWriter, headers: Mapping[str, str]) -> CallResponse:
        timeout = aiohttp.ClientTimeout(total=self.deadline_s, sock_connect=self._connect_s)
        url, headers = URL(self.url + path, encoded=True), {**headers, "Content-Type": form.content_type}
        with _reachable():
            async with await self._session.request("POST", url, data=form, headers=headers, timeout=timeout) as answer:
                body = await (
                    read_error_body(answer) if answer.status >= 300 else read_capped(answer, MAX_OBJECT_BYTES)
                )
                return CallResponse(answer.status, answer.headers, body)


def _document(response: CallResponse) -> Any:
    if response.status == 202:
        raise ResponseTimeout("Qdrant accepted the call but has not finished it (202)")
    with map_parse_errors():
        return orjson.loads(response.body)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _reachable():
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk


class _Source:
    """Stream to send, with the exception that reading it raised.

    Attributes:
        fault: AgentMemoryError of the stream, which the HTTP client would wrap; None if there was none.
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
