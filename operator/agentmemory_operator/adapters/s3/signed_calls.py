"""Signed calls to one bucket of an S3-compatible storage, with retries and timeouts.

Amazon's C runtime (awscrt) signs requests, and finds the identity of the process if the bucket has no access key;
aiohttp sends them. Amazon's Python client is not used, because its version of python-dateutil conflicts with that of
the Kubernetes client.
"""

import asyncio
import functools
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
from awscrt import auth
from awscrt.exceptions import AwsCrtError
from awscrt.http import HttpHeaders, HttpRequest
from yarl import URL

from agentmemory_operator.adapters.http.capped_body import MIB, AnswerTooLarge, read_capped, read_error_body
from agentmemory_operator.adapters.http.egress import Egress, HostSession, build_tls_context
from agentmemory_operator.adapters.s3.storage_errors import storage_error
from agentmemory_operator.connections.rules.object_keys import storage_url
from agentmemory_operator.errors import StorageUnavailable
from agentmemory_operator.ports.objects import AccessKey, Bucket

MAX_ATTEMPTS = 4
FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
CONNECT_TIMEOUT_S = 10.0
# Maximum seconds between two chunks of a response. Streams have no total timeout.
READ_TIMEOUT_S = 60.0
# Timeout in seconds for one part or one response. It suffices for a part of 8 MiB at 28 KiB/s.
CALL_TIMEOUT_S = 300.0
# Limit of a response. The largest is a page of a list: 1,000 objects with keys of at most 1,024 bytes.
MAX_RESPONSE_BYTES = 4 * MIB
FIELD = "endpoint"
READS = ("GET", "HEAD")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class S3Request:
    """A call to the S3 API of a bucket, before it is signed.

    Attributes:
        key: Full key including the prefix, not encoded; empty for the bucket itself.
        sha256: SHA-256 of the body, as 32 bytes. If empty, it is computed.
        is_fenced: True if `before_write` is called first, which can stop the call; reads are never stopped. False for
            the abort of an upload that failed in this process.
    """

    method: str
    key: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    sha256: bytes = b""
    is_fenced: bool = True


@dataclass(frozen=True, slots=True)
class S3Response:
    """Response to a successful call, with its whole body."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class S3Calls:
    """Sends calls to one bucket.

    Args:
        bucket: Address and credentials.
        before_write: Called right before each attempt of a call that changes something, if the request `is_fenced`. An
            exception stops the call.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.

    Raises:
        SpecInvalid: If the endpoint is https, and `bucket.ca_pem` contains no certificate.
    """

    def __init__(self, bucket: Bucket, *, before_write: Callable[[], None], egress: Egress) -> None:
        self._bucket = bucket
        self._before_write = before_write
        self._host, self._path = bucket_url(bucket)
        tls_context = build_tls_context(self._host, bucket.ca_pem)
        self._session = HostSession(egress, self._host, field=FIELD, proxies=(), limit=8, ssl=tls_context or True)

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._session.close()

    async def call(self, request: S3Request) -> S3Response:
        """Send a call, with up to 3 retries after transient failures; return its response.

        Raises:
            StorageUnavailable: If all attempts failed. A change may have been made: a response may be lost.
            StorageRejected: If the storage rejects the call.
            NotFound: If the object does not exist, or on a 404 without an error code.
            SpecInvalid: If the egress policy forbids the host, or the endpoint has no host.
        """
        return await _retry(lambda: self._call_once(request))

    @asynccontextmanager
    async def stream(self, request: S3Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the response to a call with an unread body. Opening raises the same errors as `call`."""
        response = await _retry(lambda: self._send(request, total_s=None))
        try:
            yield response
        finally:
            # Close the connection instead of reading the rest of the body.
            response.close()

    async def _call_once(self, request: S3Request) -> S3Response:
        response = await self._send(request, total_s=CALL_TIMEOUT_S)
        try:
            body = await read_capped(response, MAX_RESPONSE_BYTES)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise self._unavailable(exc) from exc
        finally:
            response.release()
        # Look for an error in the body: completing an upload can fail after the storage has sent status 200.
        if b"<Error>" in body[:200]:
            raise storage_error(500, body, self._bucket)
        return S3Response(response.headers, body)

    async def _send(self, request: S3Request, *, total_s: float | None) -> aiohttp.ClientResponse:
        if request.is_fenced and request.method not in READS:
            self._before_write()
        path = self._path + quote(f"/{request.key}" if request.key else "/", safe="/-_.~")
        if request.query:
            path += "?" + "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in request.query.items())
        headers = await self._signed(request, path)
        if request.method not in READS:
            headers["content-length"] = str(len(request.body))
        timeout = aiohttp.ClientTimeout(total=total_s, connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        try:
            response = await self._session.request(
                request.method,
                URL(f"{self._host}{path}", encoded=True),
                headers=headers,
                # aiohttp would write a body of type bytes in one piece, and keep a second copy.
                data=BytesIO(request.body) if request.body else None,
                timeout=timeout,
            )
            if response.status >= 300:
                body = await read_error_body(response)
                response.release()
                raise storage_error(response.status, body, self._bucket, headers=response.headers)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise self._unavailable(exc) from exc
        return response

    async def _signed(self, request: S3Request, path: str) -> dict[str, str]:
        digest = request.sha256 or await sha256_of(request.body)
        headers = {"host": urlsplit(self._host).netloc, "accept-encoding": "identity", **request.headers}
        call = HttpRequest(request.method, path, HttpHeaders(list(headers.items())))
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=_identity(self._bucket.access_key),
            region=self._bucket.region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            # Sign the digest, so that the storage rejects another body.
            signed_body_value=digest.hex(),
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        try:
            signed = await asyncio.wrap_future(auth.aws_sign_request(call, config))
        except AwsCrtError as exc:
            raise StorageUnavailable(
                f"bucket {self._bucket.name!r}: no credentials ({exc.name}): set secretRef, or give the"
                " operator an identity through its environment"
            ) from exc
        return dict(signed.headers)

    def _unavailable(self, exc: Exception) -> StorageUnavailable:
        service = f"object storage {self._host}"
        if isinstance(exc, AnswerTooLarge):
            return StorageUnavailable(f"{service}: {exc}: correct endpoint")
        if isinstance(exc, aiohttp.ClientSSLError):
            remedy = "put the CA into ca.crt of the Secret, or correct endpoint"
            return StorageUnavailable(f"{service}: TLS verification failed ({type(exc).__name__}): {remedy}")
        return StorageUnavailable(f"{service} cannot be reached, or the connection broke: {type(exc).__name__}")


async def _retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an attempt; retry with backoff, up to 3 times, after StorageUnavailable."""
    for failures in range(MAX_ATTEMPTS - 1):
        try:
            return await attempt()
        except StorageUnavailable as exc:
            delay_s = min(FIRST_DELAY_S * 2.0**failures, MAX_DELAY_S) * (0.5 + random.random() / 2)
            await asyncio.sleep(max(delay_s, min(exc.retry_after_s, MAX_DELAY_S)))
    return await attempt()


async def sha256_of(content: bytes) -> bytes:
    """Return the SHA-256 digest of bytes, computed in a thread to keep the event loop free."""
    return await asyncio.to_thread(lambda: hashlib.sha256(content).digest())


def bucket_url(bucket: Bucket) -> tuple[str, str]:
    """Return the base URL of a bucket (scheme and host), and the path prefix of its keys."""
    url = urlsplit(storage_url(bucket.endpoint, bucket.region))
    path = url.path.rstrip("/")
    if bucket.is_path_style:
        return f"{url.scheme}://{url.netloc}", f"{path}/{bucket.name}"
    return f"{url.scheme}://{bucket.name}.{url.netloc}", path


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _identity(access_key: AccessKey | None) -> Any:
    if access_key is None:
        return _own_identity()
    return auth.AwsCredentialsProvider.new_static(access_key.id, access_key.secret, access_key.session_token)


@functools.cache
def _own_identity() -> Any:
    """Build the provider of the process's credentials: from environment, profile, web identity, or machine.

    The provider renews them itself.
    """
    return auth.AwsCredentialsProvider.new_default_chain()
