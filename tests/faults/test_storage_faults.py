"""Snapshot copies while the S3 server or the copying process is killed at any step, or the storage's disk is full."""

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.adapters.s3.uploads import PART_BYTES
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.object_keys import copy_location, parse_location
from agentmemory_operator.errors import SpecInvalid, StorageUnavailable
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.interleaved_store import Moment
from tests.support.engine.stored_files import FileServer
from tests.support.web.s3_server import BUCKET, KEY, S3Server, serve_s3
from tests.support.web.storage_proxy import StorageProxy, serve_storage_proxy

pytestmark = pytest.mark.faults

CONTENT = hashlib.shake_256(b"a snapshot").digest(PART_BYTES + (3 << 20))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAMESPACE, FILE = "agents", "a.snapshot"
SECRETS = FakeSecrets({(NAMESPACE, "s3", "access-key-id"): KEY.id, (NAMESPACE, "s3", "secret-access-key"): KEY.secret})
# Calls of a copy: old uploads, object, bucket, the object's uploads, start, two parts, completion, verification.
CALLS = ["uploads", "head", "get", "uploads", "begin", "part", "part", "complete", "get"]
EVERY_CALL = [(number, moment) for number in range(len(CALLS)) for moment in ("before", "after")]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[StorageProxy]:
    with serve_storage_proxy(server.url) as proxy:
        yield proxy


def storage_at(url: str) -> S3Storage:
    return S3Storage.model_validate(
        {"endpoint": url, "bucket": BUCKET, "prefix": "backups", "secretRef": {"name": "s3"}}
    )


def location_in(storage: S3Storage) -> dict[str, str]:
    snapshot = Metadata(name="nightly", namespace=NAMESPACE, uid="12345678")
    return copy_location(storage, snapshot, slug="support-bot", file=FILE)


async def send(url: str) -> None:
    """Copy the file like a pass."""
    storage = storage_at(url)
    source = FileServer(CONTENT)
    file = ServerFile(store=source, physical="a", name=FILE, size=len(CONTENT), sha256=SHA256)  # type: ignore[arg-type]
    copies = Copies(Storages(SECRETS, S3Objects))
    await copies.send(file, location_in(storage), storage=storage, slug="support-bot", namespace=NAMESPACE)


def send_in_a_process(url: str) -> None:
    asyncio.run(send(url))


async def assert_whole_and_nothing_else(server: S3Server) -> None:
    """Check the copy, and that no unfinished upload remains."""
    storage = storage_at(server.url)
    copies = Copies(Storages(SECRETS, S3Objects))
    known = await copies.check(parse_location(location_in(storage)), namespace=NAMESPACE)
    assert (known.size, known.sha256) == (len(CONTENT), SHA256)
    async with copies.storages.open_bucket(storage, NAMESPACE) as objects:
        assert await objects.abort_uploads("backups/", older_than_ms=0) == 0
        assert [found.key async for found in objects.list("backups/")] == [parse_location(location_in(storage)).key]


async def assert_right_or_not_there(server: S3Server) -> None:
    """Check that the copy is correct or missing."""
    copies = Copies(Storages(SECRETS, S3Objects))
    with contextlib.suppress(SpecInvalid):
        await copies.check(parse_location(location_in(storage_at(server.url))), namespace=NAMESPACE)


async def test_copy_makes_the_listed_calls(proxy: StorageProxy) -> None:
    await send(proxy.url)
    assert proxy.steps == CALLS


@pytest.mark.parametrize(("number", "moment"), EVERY_CALL)
async def test_copy_survives_storage_kill_at_any_call(
    server: S3Server, proxy: StorageProxy, number: int, moment: Moment
) -> None:
    def kill_there(call: int, when: Moment) -> None:
        if (call, when) == (number, moment):
            server.kill()

    proxy.at = kill_there
    # The response in progress may still arrive.
    with contextlib.suppress(StorageUnavailable):
        await send(proxy.url)
    proxy.at = lambda call, when: None
    server.start()
    await assert_right_or_not_there(server)
    await send(proxy.url)
    await assert_whole_and_nothing_else(server)


@pytest.mark.parametrize(("number", "moment"), EVERY_CALL)
async def test_next_process_completes_killed_copy(
    server: S3Server, proxy: StorageProxy, number: int, moment: Moment
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=send_in_a_process, args=(proxy.url,), daemon=True)
    is_killed = threading.Event()

    def kill_there(call: int, when: Moment) -> None:
        if (call, when) == (number, moment):
            _kill(process)
            is_killed.set()
            if moment == "before":
                # Else the proxy would carry out the call beside the next process.
                raise ConnectionAbortedError("its caller was killed")

    proxy.at = kill_there
    process.start()
    # If two threads wait for a process, only one gets its exit code.
    await asyncio.to_thread(is_killed.wait, 60)
    assert process.exitcode == -signal.SIGKILL
    proxy.at = lambda call, when: None
    await assert_right_or_not_there(server)
    await send(proxy.url)
    await assert_whole_and_nothing_else(server)


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)


@pytest.mark.parametrize("largest_file", [PART_BYTES // 2, PART_BYTES + 1], ids=["at a part", "at the whole"])
async def test_full_storage_keeps_nothing_until_retried(server: S3Server, largest_file: int) -> None:
    server.kill()
    server.start(largest_file=largest_file)
    with pytest.raises(StorageUnavailable):
        await send(server.url)
    await assert_right_or_not_there(server)
    server.kill()
    server.start()
    async with Storages(SECRETS, S3Objects).open_bucket(storage_at(server.url), NAMESPACE) as objects:
        assert await objects.abort_uploads("backups/", older_than_ms=0) == 0
    await send(server.url)
    await assert_whole_and_nothing_else(server)
