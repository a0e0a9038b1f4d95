"""Copies of snapshots in an S3 server: complete and verified, never a partial one."""

import asyncio
import contextlib
import hashlib
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.adapters.s3.uploads import PART_BYTES
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.object_keys import copy_location, is_path_style, parse_location
from agentmemory_operator.connections.streams import with_progress
from agentmemory_operator.errors import (
    ChecksumMismatch,
    SecretMissing,
    SpecInvalid,
    StorageRejected,
    StorageUnavailable,
    StoreUnavailable,
)
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.stored_files import FileServer, MemoryObjects
from tests.support.web.s3_server import BUCKET, KEY, S3Server
from tests.support.web.storage_proxy import Step, StorageFault, StorageProxy

CONTENT = hashlib.shake_256(b"a snapshot").digest(PART_BYTES + (3 << 20))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAMESPACE = "agents"
PHYSICAL, FILE = "agent_memory_support-bot__1", "agent_memory_support-bot__1-17-2026-11-22-03-00-00.snapshot"


NIGHTLY = Metadata(name="nightly", namespace=NAMESPACE, uid="12345678-90ab")
SECRETS = FakeSecrets({(NAMESPACE, "s3", "access-key-id"): KEY.id, (NAMESPACE, "s3", "secret-access-key"): KEY.secret})


def file_of(source: FileServer, *, sha256: str | None = SHA256) -> ServerFile:
    """Return the server's file as a status records it."""
    return ServerFile(store=source, physical=PHYSICAL, name=FILE, size=len(CONTENT), sha256=sha256)  # type: ignore[arg-type]


@dataclass(slots=True)
class Place:
    """The storage location of one snapshot, and the use case that copies to it."""

    server: S3Server
    proxy: StorageProxy
    storage: S3Storage
    location: dict[str, Any]
    copies: Copies = field(default_factory=lambda: Copies(Storages(SECRETS, S3Objects)))

    async def send(self, file: ServerFile, **more: Any) -> str:
        return await self.copies.send(
            file, self.location, storage=self.storage, slug="support-bot", namespace=NAMESPACE, **more
        )

    def object(self, sha256: str | None = None) -> S3Object:
        return parse_location(self.location, sha256=sha256)

    def bytes(self) -> bytes | None:
        """Return the bytes of the copy, None if it does not exist."""
        path = self.server.file(self.location["key"])
        return path.read_bytes() if path.exists() else None

    async def unfinished(self) -> int:
        """Abort the unfinished uploads below the prefix; return their number."""
        objects = S3Objects(self.server.bucket())
        try:
            return await objects.abort_uploads(f"{self.storage.prefix}/", older_than_ms=0)
        finally:
            await objects.close()


@pytest.fixture
def place(storage: S3Server, storage_proxy: StorageProxy) -> Place:
    place = S3Storage.model_validate(
        {"endpoint": storage_proxy.url, "bucket": BUCKET, "prefix": uuid.uuid4().hex, "secretRef": {"name": "s3"}}
    )
    location = copy_location(place, NIGHTLY, slug="support-bot", file=FILE)
    return Place(storage, storage_proxy, place, location)


async def test_copy_matches_bytes_and_sha256(place: Place) -> None:
    assert await place.send(file_of(FileServer(CONTENT))) == SHA256
    assert place.bytes() == CONTENT
    assert place.location["key"] == f"{place.storage.prefix}/agents/support-bot/nightly_12345678/{FILE}"


async def test_missing_sha256_is_computed_from_bytes(place: Place) -> None:
    assert await place.send(file_of(FileServer(CONTENT), sha256=None)) == SHA256
    assert (await place.copies.check(place.object(), namespace=NAMESPACE)).sha256 == SHA256


async def test_existing_copy_is_not_sent_again(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    await place.send(file_of(source))
    assert source.downloads == 1


async def test_checksum_mismatch_leaves_no_copy(place: Place) -> None:
    with pytest.raises(ChecksumMismatch, match="SHA-256"):
        await place.send(file_of(FileServer(CONTENT[:-1] + b"?")))
    assert place.bytes() is None
    assert await place.unfinished() == 0


async def test_interrupted_download_leaves_nothing(place: Place) -> None:
    """The next call succeeds."""
    source = FileServer(CONTENT, breaks_at=PART_BYTES + 1, breaks=1)
    with pytest.raises(StoreUnavailable):
        await place.send(file_of(source))
    assert (place.bytes(), await place.unfinished()) == (None, 0)
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_next_copy_aborts_upload_of_a_killed_one(place: Place) -> None:
    stalled = FileServer(CONTENT, stalls_at=PART_BYTES + (2 << 20))
    # A killed process does not abort its upload.
    place.proxy.fail_with(StorageFault(of="abort", status=403))
    await cancel_when_stalled(place.send(file_of(stalled)), stalled)
    place.proxy.fail_with(None)
    await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() == CONTENT
    assert place.proxy.steps.count("abort") == 1
    assert await place.unfinished() == 0


async def cancel_when_stalled(copying: Coroutine[Any, Any, object], source: FileServer) -> None:
    """Cancel a copy once its source has stalled."""
    task = asyncio.ensure_future(copying)
    async with asyncio.timeout(20):
        await source.stalled.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_removal_of_a_partial_copy_leaves_nothing(place: Place) -> None:
    stalled = FileServer(CONTENT, stalls_at=PART_BYTES + (2 << 20))
    place.proxy.fail_with(StorageFault(of="abort", status=403))
    await cancel_when_stalled(place.send(file_of(stalled)), stalled)
    place.proxy.fail_with(None)
    await place.copies.remove(place.location, namespace=NAMESPACE)
    assert (place.bytes(), await place.unfinished()) == (None, 0)


async def test_removal_is_idempotent(place: Place) -> None:
    await place.send(file_of(FileServer(CONTENT)))
    await place.copies.remove(place.location, namespace=NAMESPACE)
    await place.copies.remove(place.location, namespace=NAMESPACE)
    assert place.bytes() is None


@pytest.mark.parametrize(
    "spoil",
    [lambda whole: whole[:-1], lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), lambda whole: whole + b"?"],
    ids=["truncated", "altered", "longer"],
)
async def test_corrupt_copy_is_rejected_and_replaced(place: Place, spoil: Callable[[bytes], bytes]) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    path = place.server.file(place.location["key"])
    # Write in place: the storage keeps the object's metadata next to its bytes.
    path.write_bytes(spoil(CONTENT))
    with pytest.raises(ChecksumMismatch):
        await place.copies.check(place.object(SHA256), namespace=NAMESPACE)
    with pytest.raises(ChecksumMismatch):
        await place.copies.recover(place.object(SHA256), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {}
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_corrupt_readback_leaves_no_copy(place: Place) -> None:
    place.proxy.fail_with(StorageFault(of="get", flips=True))
    with pytest.raises(ChecksumMismatch):
        await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() is None


async def test_interrupted_recovery_resumes(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    place.proxy.fail_with(StorageFault(of="get", half=True, times=2))
    await place.copies.recover(place.object(), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {"restored": CONTENT}
    assert place.proxy.steps.count("get") == 3


async def test_recovery_rejects_other_sha256(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    with pytest.raises(ChecksumMismatch, match=r"s3://copies/.*expected 0000"):
        await place.copies.recover(place.object("0" * 64), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {}


async def test_missing_object_is_named(place: Place) -> None:
    with pytest.raises(SpecInvalid, match=r"s3://copies/.* does not exist"):
        await place.copies.check(place.object(), namespace=NAMESPACE)


async def test_object_without_sha256_needs_one_in_the_spec(place: Place) -> None:
    path = place.server.file(place.location["key"])
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    with pytest.raises(SpecInvalid, match="set sha256"):
        await place.copies.check(place.object(), namespace=NAMESPACE)
    await place.copies.check(place.object(SHA256), namespace=NAMESPACE)


@pytest.mark.parametrize("step", ["head", "begin", "part", "complete", "get"])
@pytest.mark.parametrize("status", [403, 500])
async def test_storage_error_leaves_nothing(place: Place, step: Step, status: int) -> None:
    """The next call succeeds."""
    place.proxy.fail_with(StorageFault(of=step, status=status))
    with pytest.raises(StorageRejected if status == 403 else StorageUnavailable) as caught:
        await place.send(file_of(FileServer(CONTENT)))
    assert KEY.secret not in str(caught.value)
    assert await place.unfinished() == 0
    place.proxy.fail_with(None)
    await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() == CONTENT


async def test_slow_storage_is_awaited(place: Place) -> None:
    source = FileServer(CONTENT)
    place.proxy.fail_with(StorageFault(of="get", delay_s=0.002))
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_missing_secret_is_named(place: Place) -> None:
    copies = Copies(Storages(FakeSecrets({}), S3Objects))
    with pytest.raises(SecretMissing, match="agents/s3 with key 'access-key-id'"):
        await copies.check(place.object(), namespace=NAMESPACE)


@pytest.mark.parametrize(
    ("fields", "shared"), [({}, "backups"), ({"endpoint": "https://minio:9000/"}, "https://minio:9000/backups")]
)
async def test_own_identity_opens_listed_buckets_only(fields: dict[str, str], shared: str) -> None:
    bucket = S3Object.model_validate({"bucket": "backups", "key": "a"} | fields)
    refusing = Storages(FakeSecrets({}), lambda bucket: MemoryObjects(), shared=frozenset({"others"}))
    with pytest.raises(SpecInvalid, match=f"ask for '{shared}' to be listed"):
        async with refusing.open_bucket(bucket, NAMESPACE):
            pass
    allowing = Storages(FakeSecrets({}), lambda bucket: MemoryObjects(), shared=frozenset({shared}))
    async with allowing.open_bucket(bucket, NAMESPACE) as objects:
        assert await objects.head(f"{NAMESPACE}/support-bot/nightly_12345678/{FILE}") is None


async def test_stale_uploads_of_the_agent_are_aborted() -> None:
    """Uploads of the agent that are older than a day; other agents' uploads stay."""
    objects = MemoryObjects(now_ms=25 * 3_600_000)
    storage = S3Storage.model_validate({"bucket": BUCKET, "prefix": "backups"})
    location = copy_location(storage, NIGHTLY, slug="support-bot", file=FILE)
    stale = {"backups/agents/support-bot/old_12345678/a": 0}
    kept = {
        "backups/agents/support-bot/new_12345678/a": 2 * 3_600_000,
        "backups/agents/other/old_12345678/a": 0,
        "backups/support-bot/other/old_12345678/a": 0,
        "backups/support-bot/ours": 0,
    }
    objects.unfinished = stale | kept
    copies = Copies(Storages(FakeSecrets({}), lambda bucket: objects))
    file = file_of(FileServer(CONTENT))
    await copies.send(file, location, storage=storage, slug="support-bot", namespace=NAMESPACE)
    assert objects.unfinished == kept


async def test_copy_uses_memory_of_few_parts(storage: S3Server) -> None:
    content = bytes(80 << 20)
    sha256 = hashlib.sha256(content).hexdigest()
    place = S3Storage.model_validate({"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}})
    location = copy_location(place, NIGHTLY, slug="large", file=FILE)
    source, copies = FileServer(content), Copies(Storages(SECRETS, S3Objects))
    file = ServerFile(store=source, physical=PHYSICAL, name=FILE, size=len(content), sha256=sha256)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        await copies.send(file, location, storage=place, slug="large", namespace=NAMESPACE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * PART_BYTES


async def test_progress_is_reported_in_bytes() -> None:
    reports: list[tuple[int, int]] = []

    async def note(done: int, total: int) -> None:
        reports.append((done, total))

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"1234"
            await asyncio.sleep(0.02)

    whole = [chunk async for chunk in with_progress(slowly(), 12, note, every_s=0.01)]
    assert (b"".join(whole), reports) == (b"1234" * 3, [(8, 12), (12, 12)])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"bucket": "ours"}, False),
        ({"bucket": "ours.com"}, True),
        ({"bucket": "ours", "endpoint": "http://minio:9000"}, True),
        ({"bucket": "ours", "addressing": "Path"}, True),
        ({"bucket": "ours", "endpoint": "https://storage", "addressing": "VirtualHost"}, False),
    ],
)
def test_path_style_is_inferred(fields: dict[str, str], expected: bool) -> None:
    assert is_path_style(S3Object.model_validate(fields | {"key": "a"})) is expected
