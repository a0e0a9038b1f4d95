"""Copies of snapshots in a real S3 server: whole, proven, and none taken for good that is not."""

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
    """Return the server's file as a status tells of it."""
    return ServerFile(store=source, physical=PHYSICAL, name=FILE, size=len(CONTENT), sha256=sha256)  # type: ignore[arg-type]


@dataclass(slots=True)
class Place:
    """One snapshot's place in the storage, and whoever copies there."""

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
        """Return what lies there."""
        path = self.server.file(self.location["key"])
        return path.read_bytes() if path.exists() else None

    async def unfinished(self) -> int:
        """Count the unfinished uploads below the prefix, and drop them."""
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


async def test_a_copy_has_the_bytes_of_the_file_and_its_sha256(place: Place) -> None:
    assert await place.send(file_of(FileServer(CONTENT))) == SHA256
    assert place.bytes() == CONTENT
    assert place.location["key"] == f"{place.storage.prefix}/agents/support-bot/nightly_12345678/{FILE}"


async def test_the_sha256_that_a_server_does_not_tell_is_that_of_its_bytes(place: Place) -> None:
    assert await place.send(file_of(FileServer(CONTENT), sha256=None)) == SHA256
    assert (await place.copies.check(place.object(), namespace=NAMESPACE)).sha256 == SHA256


async def test_a_copy_that_is_there_is_not_sent_again(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    await place.send(file_of(source))
    assert source.downloads == 1


async def test_bytes_other_than_the_server_recorded_are_no_copy(place: Place) -> None:
    with pytest.raises(ChecksumMismatch, match="SHA-256"):
        await place.send(file_of(FileServer(CONTENT[:-1] + b"?")))
    assert place.bytes() is None
    assert await place.unfinished() == 0


async def test_a_server_that_breaks_off_leaves_nothing_and_the_next_call_goes_on(place: Place) -> None:
    source = FileServer(CONTENT, breaks_at=PART_BYTES + 1, breaks=1)
    with pytest.raises(StoreUnavailable):
        await place.send(file_of(source))
    assert (place.bytes(), await place.unfinished()) == (None, 0)
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_what_a_killed_copy_left_is_dropped_by_the_next(place: Place) -> None:
    stalled = FileServer(CONTENT, stalls_at=PART_BYTES + (2 << 20))
    # Killed: nobody takes back what was begun.
    place.proxy.fail_with(StorageFault(of="abort", status=403))
    await stopped_midway(place.send(file_of(stalled)), stalled)
    place.proxy.fail_with(None)
    await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() == CONTENT
    assert place.proxy.steps.count("abort") == 1
    assert await place.unfinished() == 0


async def stopped_midway(sending: Coroutine[Any, Any, object], source: FileServer) -> None:
    """Stop a copy when its source has nothing more to give."""
    task = asyncio.ensure_future(sending)
    async with asyncio.timeout(20):
        await source.stalled.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_copy_that_is_removed_midway_leaves_nothing(place: Place) -> None:
    stalled = FileServer(CONTENT, stalls_at=PART_BYTES + (2 << 20))
    place.proxy.fail_with(StorageFault(of="abort", status=403))
    await stopped_midway(place.send(file_of(stalled)), stalled)
    place.proxy.fail_with(None)
    await place.copies.remove(place.location, namespace=NAMESPACE)
    assert (place.bytes(), await place.unfinished()) == (None, 0)


async def test_a_copy_is_removed_twice_without_an_error(place: Place) -> None:
    await place.send(file_of(FileServer(CONTENT)))
    await place.copies.remove(place.location, namespace=NAMESPACE)
    await place.copies.remove(place.location, namespace=NAMESPACE)
    assert place.bytes() is None


@pytest.mark.parametrize(
    "spoil",
    [lambda whole: whole[:-1], lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), lambda whole: whole + b"?"],
    ids=["truncated", "altered", "longer"],
)
async def test_a_copy_that_was_spoilt_at_rest_is_told_never_used_and_made_anew(
    place: Place, spoil: Callable[[bytes], bytes]
) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    path = place.server.file(place.location["key"])
    # In the place: the storage keeps what it knows of the object beside its bytes.
    path.write_bytes(spoil(CONTENT))
    with pytest.raises(ChecksumMismatch):
        await place.copies.check(place.object(SHA256), namespace=NAMESPACE)
    with pytest.raises(ChecksumMismatch):
        await place.copies.recover(place.object(SHA256), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {}
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_a_storage_that_alters_what_it_reads_back_never_has_a_copy(place: Place) -> None:
    place.proxy.fail_with(StorageFault(of="get", flips=True))
    with pytest.raises(ChecksumMismatch):
        await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() is None


async def test_bytes_that_break_off_on_their_way_back_are_gone_on_with(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    place.proxy.fail_with(StorageFault(of="get", half=True, times=2))
    await place.copies.recover(place.object(), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {"restored": CONTENT}
    assert place.proxy.steps.count("get") == 3


async def test_an_object_of_another_sha256_than_asked_for_is_not_recovered(place: Place) -> None:
    source = FileServer(CONTENT)
    await place.send(file_of(source))
    with pytest.raises(ChecksumMismatch, match=r"s3://copies/.*expected 0000"):
        await place.copies.recover(place.object("0" * 64), source, "restored", namespace=NAMESPACE)  # type: ignore[arg-type]
    assert source.recovered == {}


async def test_an_object_that_is_not_there_is_named(place: Place) -> None:
    with pytest.raises(SpecInvalid, match=r"s3://copies/.* does not exist"):
        await place.copies.check(place.object(), namespace=NAMESPACE)


async def test_an_object_without_sha256_needs_one_in_the_spec(place: Place) -> None:
    path = place.server.file(place.location["key"])
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    with pytest.raises(SpecInvalid, match="set sha256"):
        await place.copies.check(place.object(), namespace=NAMESPACE)
    await place.copies.check(place.object(SHA256), namespace=NAMESPACE)


@pytest.mark.parametrize("step", ["head", "begin", "part", "complete", "get"])
@pytest.mark.parametrize("status", [403, 500])
async def test_whatever_the_storage_refuses_nothing_is_left_and_the_next_call_goes_on(
    place: Place, step: Step, status: int
) -> None:
    place.proxy.fail_with(StorageFault(of=step, status=status))
    with pytest.raises(StorageRejected if status == 403 else StorageUnavailable) as caught:
        await place.send(file_of(FileServer(CONTENT)))
    assert KEY.secret not in str(caught.value)
    assert await place.unfinished() == 0
    place.proxy.fail_with(None)
    await place.send(file_of(FileServer(CONTENT)))
    assert place.bytes() == CONTENT


async def test_a_slow_storage_is_waited_for(place: Place) -> None:
    source = FileServer(CONTENT)
    place.proxy.fail_with(StorageFault(of="get", delay_s=0.002))
    await place.send(file_of(source))
    assert place.bytes() == CONTENT


async def test_a_secret_that_is_missing_is_named(place: Place) -> None:
    copies = Copies(Storages(FakeSecrets({}), S3Objects))
    with pytest.raises(SecretMissing, match="agents/s3 with key 'access-key-id'"):
        await copies.check(place.object(), namespace=NAMESPACE)


@pytest.mark.parametrize(
    ("fields", "shared"), [({}, "backups"), ({"endpoint": "https://minio:9000/"}, "https://minio:9000/backups")]
)
async def test_the_operators_own_identity_opens_what_its_settings_list_and_nothing_else(
    fields: dict[str, str], shared: str
) -> None:
    bucket = S3Object.model_validate({"bucket": "backups", "key": "a"} | fields)
    refusing = Storages(FakeSecrets({}), lambda bucket: MemoryObjects(), shared=frozenset({"others"}))
    with pytest.raises(SpecInvalid, match=f"ask for '{shared}' to be listed"):
        async with refusing.open_bucket(bucket, NAMESPACE):
            pass
    allowing = Storages(FakeSecrets({}), lambda bucket: MemoryObjects(), shared=frozenset({shared}))
    async with allowing.open_bucket(bucket, NAMESPACE) as objects:
        assert await objects.head(f"{NAMESPACE}/support-bot/nightly_12345678/{FILE}") is None


async def test_uploads_that_others_left_a_day_ago_are_dropped_with_the_next_copy() -> None:
    objects = MemoryObjects(now_ms=25 * 3_600_000)
    storage = S3Storage.model_validate({"bucket": BUCKET, "prefix": "backups"})
    location = copy_location(storage, NIGHTLY, slug="support-bot", file=FILE)
    gone = {"backups/agents/support-bot/old_12345678/a": 0}
    kept = {
        "backups/agents/support-bot/new_12345678/a": 2 * 3_600_000,
        "backups/agents/other/old_12345678/a": 0,
        "backups/support-bot/other/old_12345678/a": 0,
        "backups/support-bot/ours": 0,
    }
    objects.unfinished = gone | kept
    copies = Copies(Storages(FakeSecrets({}), lambda bucket: objects))
    file = file_of(FileServer(CONTENT))
    await copies.send(file, location, storage=storage, slug="support-bot", namespace=NAMESPACE)
    assert objects.unfinished == kept


async def test_a_copy_of_any_size_takes_the_memory_of_few_parts(storage: S3Server) -> None:
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


async def test_progress_is_told_in_bytes() -> None:
    seen: list[tuple[int, int]] = []

    async def note(done: int, total: int) -> None:
        seen.append((done, total))

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"1234"
            await asyncio.sleep(0.02)

    whole = [chunk async for chunk in with_progress(slowly(), 12, note, every_s=0.01)]
    assert (b"".join(whole), seen) == (b"1234" * 3, [(8, 12), (12, 12)])


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
def test_a_bucket_stands_in_the_path_where_the_host_may_not_know_it(fields: dict[str, str], expected: bool) -> None:
    assert is_path_style(S3Object.model_validate(fields | {"key": "a"})) is expected
