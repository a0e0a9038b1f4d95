"""Object storage: an S3 server and the in-memory store of the unit tests behave alike."""

import base64
import hashlib
import pathlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.adapters.s3.signed_calls import S3Calls, S3Request, bucket_url
from agentmemory_operator.adapters.s3.uploads import PART_BYTES
from agentmemory_operator.errors import ChecksumMismatch, LeadershipLost, NotFound, StorageRejected, StorageUnavailable
from agentmemory_operator.ports.objects import AccessKey, Bucket, ObjectStore
from tests.support.engine.stored_files import MemoryObjects
from tests.support.web.http_server import Authority
from tests.support.web.s3_server import KEY, S3Server, serve_s3
from tests.support.web.storage_proxy import StorageFault, StorageProxy

SMALL = b"a snapshot of few points"
# Three parts; the last one is small.
LARGE = hashlib.shake_256(b"many points").digest(2 * PART_BYTES + 1000)


@pytest.fixture(params=["s3", "memory"])
async def store(request: pytest.FixtureRequest, storage: S3Server) -> AsyncIterator[ObjectStore]:
    """An object store below an empty prefix."""
    objects: ObjectStore = (
        MemoryObjects() if request.param == "memory" else S3Objects(storage.bucket(prefix=request.node.name))
    )
    yield objects
    await objects.close()


@pytest.fixture
async def s3(
    request: pytest.FixtureRequest, storage: S3Server, storage_proxy: StorageProxy
) -> AsyncIterator[S3Objects]:
    """The S3 server below an empty prefix, behind the proxy."""
    objects = S3Objects(storage.bucket(storage_proxy.url, prefix=request.node.originalname))
    yield objects
    await objects.close()


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 1 << 20):
        yield content[start : start + (1 << 20)]


def metadata_of(content: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": str(len(content))}


async def read(store: ObjectStore, key: str, *, offset: int = 0) -> bytes:
    async with store.get(key, offset=offset) as content:
        return b"".join([chunk async for chunk in content])


@pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
async def test_put_stores_bytes_size_and_sha256(store: ObjectStore, content: bytes) -> None:
    await store.put("a/file", chunks(content), metadata=metadata_of(content))
    stored = await store.head("a/file")
    assert stored is not None
    assert (stored.size, stored.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert await read(store, "a/file") == content


async def test_small_object_gets_computed_sha256(store: ObjectStore) -> None:
    await store.put("small", chunks(SMALL), metadata={})
    stored = await store.head("small")
    assert stored is not None
    assert stored.sha256 == hashlib.sha256(SMALL).hexdigest()


async def test_get_starts_at_offset(store: ObjectStore) -> None:
    await store.put("file", chunks(SMALL), metadata={})
    assert await read(store, "file", offset=10) == SMALL[10:]


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"size": "7"}], ids=["sha256", "size"])
async def test_checksum_or_size_mismatch_stores_nothing(
    store: ObjectStore, content: bytes, wrong: dict[str, str]
) -> None:
    with pytest.raises(ChecksumMismatch):
        await store.put("file", chunks(content), metadata=metadata_of(content) | wrong)
    assert await store.head("file") is None
    assert await store.abort_uploads("", older_than_ms=0) == 0


async def test_list_returns_keys_of_prefix_in_order(store: ObjectStore) -> None:
    for key in ("b/2", "a/1", "b/1", "c"):
        await store.put(key, chunks(SMALL), metadata={})
    assert [(found.key, found.size) async for found in store.list("b/")] == [("b/1", len(SMALL)), ("b/2", len(SMALL))]


async def test_delete_is_idempotent(store: ObjectStore) -> None:
    await store.put("file", chunks(SMALL), metadata={})
    await store.delete("file")
    await store.delete("file")
    assert await store.head("file") is None
    with pytest.raises(NotFound):
        await read(store, "file")


async def test_list_reads_all_pages(s3: S3Objects, storage: S3Server) -> None:
    folder = storage.file("test_list_reads_all_pages")
    folder.mkdir()
    for number in range(1001):
        (folder / f"{number:04}").touch()
    assert len([found async for found in s3.list("")]) == 1001


@pytest.mark.parametrize("step", ["begin", "part", "complete"])
@pytest.mark.parametrize("fault", [{"status": 500}, {"loses_answer": True}], ids=str)
async def test_call_is_retried_twice(
    s3: S3Objects, storage_proxy: StorageProxy, step: str, fault: dict[str, object]
) -> None:
    storage_proxy.fail_with(StorageFault(of=step, times=2, **fault))  # type: ignore[arg-type]
    await s3.put("file", chunks(LARGE), metadata=metadata_of(LARGE))
    storage_proxy.fail_with(None)
    assert await read(s3, "file") == LARGE
    await s3.abort_uploads("", older_than_ms=0)


@pytest.mark.parametrize("step", ["part", "complete"])
@pytest.mark.parametrize(
    ("status", "error"), [(500, StorageUnavailable), (403, StorageRejected)], ids=["away", "refused"]
)
async def test_failed_upload_leaves_nothing(
    s3: S3Objects, storage_proxy: StorageProxy, step: str, status: int, error: type[Exception]
) -> None:
    storage_proxy.fail_with(StorageFault(of=step, status=status))  # type: ignore[arg-type]
    with pytest.raises(error):
        await s3.put("file", chunks(LARGE), metadata=metadata_of(LARGE))
    assert storage_proxy.steps[-1] == "abort"
    assert await s3.head("file") is None
    assert await s3.abort_uploads("", older_than_ms=0) == 0


async def test_stale_uploads_are_aborted_by_age_and_prefix(s3: S3Objects, storage: S3Server) -> None:
    for key in ("old/file", "other/file"):
        await begin_upload(storage, f"test_stale_uploads_are_aborted_by_age_and_prefix/{key}")
    assert await s3.abort_uploads("old/", older_than_ms=3_600_000) == 0
    assert await s3.abort_uploads("old/", older_than_ms=0) == 1
    assert await s3.abort_uploads("", older_than_ms=0) == 1


async def test_missing_upload_listing_aborts_nothing(s3: S3Objects, storage_proxy: StorageProxy) -> None:
    """A storage without `ListMultipartUploads` has to remove unfinished uploads itself."""
    storage_proxy.fail_with(StorageFault(of="uploads", status=501, code="NotImplemented"))
    assert await s3.abort_uploads("", older_than_ms=0) == 0


async def begin_upload(storage: S3Server, key: str) -> None:
    """Begin an upload without completing it, as a killed process does."""
    calls = S3Calls(storage.bucket(), before_write=lambda: None, egress=DEFAULT_EGRESS)
    await calls.call(S3Request("POST", key, query={"uploads": ""}))
    await calls.close()


@pytest.mark.parametrize("fault", [{"half": True}, {"loses_answer": True}], ids=str)
async def test_interrupted_download_raises(s3: S3Objects, storage_proxy: StorageProxy, fault: dict[str, bool]) -> None:
    await s3.put("file", chunks(LARGE), metadata=metadata_of(LARGE))
    storage_proxy.fail_with(StorageFault(of="get", **fault))  # type: ignore[arg-type]
    with pytest.raises(StorageUnavailable):
        await read(s3, "file")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "missing"}, "create the bucket, or correct bucket"),
        ({"access_key": AccessKey(KEY.id, "another")}, "correct access-key-id and secret-access-key in its Secret"),
        ({"access_key": AccessKey("nobody", "another")}, "correct access-key-id and secret-access-key in its Secret"),
        ({"region": "eu-north-1"}, "correct region"),
    ],
    ids=["bucket", "secret", "key", "region"],
)
async def test_rejection_names_remedy_and_no_secret(
    storage: S3Server, changes: dict[str, object], message: str
) -> None:
    objects = S3Objects(storage.bucket(**changes))
    with pytest.raises(StorageRejected, match=message) as caught:
        await objects.put("file", chunks(SMALL), metadata={})
    await objects.close()
    assert not any(secret in str(caught.value) for secret in (KEY.id, KEY.secret, "nobody", "another"))


async def test_missing_bucket_is_no_missing_object(storage: S3Server) -> None:
    objects = S3Objects(storage.bucket(name="missing"))
    with pytest.raises(StorageRejected, match=r"'missing'.*: create the bucket, or correct bucket"):
        await objects.head("file")
    await objects.close()


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
async def test_unreachable_storage_is_named(storage: S3Server, endpoint: str) -> None:
    objects = S3Objects(storage.bucket(endpoint))
    with pytest.raises(StorageUnavailable, match=endpoint):
        await objects.head("file")
    await objects.close()


async def test_only_the_given_ca_is_trusted(tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path)
    with serve_s3(tmp_path_factory.mktemp("s3"), tls=authority.issue()) as storage:
        trusting = S3Objects(storage.bucket(ca_pem=authority.pem))
        await trusting.put("file", chunks(SMALL), metadata={})
        assert await read(trusting, "file") == SMALL
        await trusting.close()
        refusing = S3Objects(storage.bucket(ca_pem=other.pem))
        with pytest.raises(StorageUnavailable, match=r"ca\.crt of the Secret"):
            await refusing.head("file")
        await refusing.close()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (None, None)),
        ({"encryption": "AES256"}, ("AES256", None)),
        ({"encryption": "KMS"}, ("aws:kms", None)),
        ({"encryption": "KMS", "kms_key_id": "alias/ours"}, ("aws:kms", "alias/ours")),
    ],
    ids=["the bucket's own", "AES256", "KMS", "KMS with a key"],
)
@pytest.mark.parametrize(("content", "step"), [(SMALL, "put"), (LARGE, "begin")], ids=["small", "large"])
async def test_encryption_headers_are_sent(
    storage: S3Server,
    storage_proxy: StorageProxy,
    changes: dict[str, object],
    expected: tuple[str | None, str | None],
    content: bytes,
    step: str,
) -> None:
    objects = S3Objects(storage.bucket(storage_proxy.url, **changes))
    await objects.put("encrypted", chunks(content), metadata=metadata_of(content))
    await objects.close()
    headers = storage_proxy.headers[storage_proxy.steps.index(step)]  # type: ignore[arg-type]
    name = "x-amz-server-side-encryption"
    assert (headers.get(name), headers.get(f"{name}-aws-kms-key-id")) == expected


async def test_each_part_has_a_checksum(s3: S3Objects, storage_proxy: StorageProxy) -> None:
    await s3.put("file", chunks(LARGE), metadata=metadata_of(LARGE))
    sent = [headers for step, headers in zip(storage_proxy.steps, storage_proxy.headers, strict=True) if step == "part"]
    parts = [LARGE[start : start + PART_BYTES] for start in range(0, len(LARGE), PART_BYTES)]
    digests = [hashlib.sha256(part).digest() for part in parts]
    assert [headers["x-amz-content-sha256"] for headers in sent] == [digest.hex() for digest in digests]
    assert [headers["x-amz-checksum-sha256"] for headers in sent] == [
        base64.b64encode(digest).decode() for digest in digests
    ]


async def test_environment_credentials_are_used(storage: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
    objects = S3Objects(storage.bucket(access_key=None))
    assert await objects.head("nothing") is None
    await objects.close()


async def test_lost_leadership_aborts_the_upload(storage: S3Server, storage_proxy: StorageProxy) -> None:
    written = 0

    def fence() -> None:
        nonlocal written
        written += 1
        if written > 2:
            raise LeadershipLost("another leads")

    objects = S3Objects(storage.bucket(storage_proxy.url), before_write=fence)
    with pytest.raises(LeadershipLost):
        await objects.put("fenced", chunks(LARGE), metadata=metadata_of(LARGE))
    await objects.close()
    assert storage_proxy.steps == ["begin", "part", "abort"]


def test_bucket_is_in_path_or_host() -> None:
    bucket = Bucket(name="ours", region="eu-north-1")
    assert bucket_url(bucket) == ("https://s3.eu-north-1.amazonaws.com", "/ours")
    assert bucket_url(replace(bucket, is_path_style=False)) == ("https://ours.s3.eu-north-1.amazonaws.com", "")
    assert bucket_url(replace(bucket, endpoint="http://minio:9000/base/")) == ("http://minio:9000", "/base/ours")
