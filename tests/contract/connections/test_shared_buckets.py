"""A bucket shared by namespaces on an S3 server: access to a foreign key is rejected before any call."""

import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.object_keys import copy_location, erasure_folder, parse_location
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.objects import ObjectStore
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage
from tests.contract.adapters.test_object_storage import begin_upload
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.stored_files import FileServer, MemoryObjects
from tests.support.web.s3_server import BUCKET, KEY, S3Server
from tests.support.web.storage_proxy import StorageProxy, serve_storage_proxy

CONTENT, FILE = b"memories of alpha's", "a.snapshot"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAMESPACES = {"bot": "alpha", "thief": "beta"}

Access = Callable[["SharedBucket", str], Awaitable[Any]]


@dataclass(slots=True)
class SharedBucket:
    """The bucket as the operator opens it for a namespace.

    Attributes:
        prefix: Prefix of this test.
    """

    server: S3Server
    proxy: StorageProxy
    prefix: str

    @property
    def storages(self) -> Storages:
        shared = frozenset({f"{self.proxy.url}/{BUCKET}"})
        return Storages(FakeSecrets({}), S3Objects, shared=shared, namespace_of=NAMESPACES.get)

    @property
    def copies(self) -> Copies:
        return Copies(self.storages)

    def storage(self, prefix: str | None = None) -> S3Storage:
        fields = {"endpoint": self.proxy.url, "bucket": BUCKET, "prefix": prefix or self.prefix}
        return S3Storage.model_validate(fields)

    def location(self, namespace: str, slug: str, *, prefix: str | None = None) -> dict[str, Any]:
        snapshot = Metadata(name="nightly", namespace=namespace, uid="12345678")
        return copy_location(self.storage(prefix), snapshot, slug=slug, file=FILE)

    def at(self, key: str) -> dict[str, Any]:
        return self.location("alpha", "bot") | {"key": key}

    async def send(self, location: dict[str, Any], *, namespace: str, slug: str, prefix: str | None = None) -> str:
        source: Any = FileServer(CONTENT)
        file = ServerFile(store=source, physical="a", name=FILE, size=len(CONTENT), sha256=SHA256)
        storage = self.storage(prefix)
        return await self.copies.send(file, location, storage=storage, slug=slug, namespace=namespace)

    def exists(self, key: str) -> bool:
        return self.server.file(key).exists()


@pytest.fixture
def shared(storage: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
    with serve_storage_proxy(storage.url) as proxy:
        yield SharedBucket(storage, proxy, uuid.uuid4().hex)


@pytest.fixture
async def victim(shared: SharedBucket) -> str:
    """The key of a copy of namespace alpha."""
    place = shared.location("alpha", "bot")
    await shared.send(place, namespace="alpha", slug="bot")
    shared.proxy.steps.clear()
    return str(place["key"])


async def recover_copy(shared: SharedBucket, key: str) -> None:
    store: Any = FileServer(b"")
    await shared.copies.recover(place(shared, key), store, "restored", namespace="beta")


def place(shared: SharedBucket, key: str) -> S3Object:
    return parse_location(shared.at(key), sha256=SHA256)


async def read_copy(shared: SharedBucket, key: str) -> None:
    async with shared.copies.open_copy(shared.at(key), "beta"):
        pass


async def send_copy(shared: SharedBucket, key: str) -> None:
    await shared.send(shared.at(key), namespace="beta", slug="thief")


def with_store(operation: Callable[[ObjectStore, str], Awaitable[Any]]) -> Access:
    async def run(shared: SharedBucket, key: str) -> None:
        async with shared.storages.open_bucket(shared.storage(), "beta") as objects:
            await operation(objects, key)

    return run


async def put(objects: ObjectStore, key: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"other memories"

    await objects.put(key, content(), metadata={})


async def get(objects: ObjectStore, key: str) -> None:
    async with objects.get(key):
        pass


async def list_objects(objects: ObjectStore, key: str) -> None:
    _ = [stored async for stored in objects.list(key)]


async def list_folder(objects: ObjectStore, key: str) -> None:
    await list_objects(objects, f"{key.rpartition('/')[0]}/")


ACCESSES: dict[str, Access] = {
    "restored or taken in": recover_copy,
    "read whole": lambda shared, key: shared.copies.check(place(shared, key), namespace="beta"),
    "verified": read_copy,
    "removed": lambda shared, key: shared.copies.remove(shared.at(key), namespace="beta"),
    "written over": send_copy,
    "asked for": with_store(lambda objects, key: objects.head(key)),
    "got": with_store(get),
    "put": with_store(put),
    "deleted": with_store(lambda objects, key: objects.delete(key)),
    "listed": with_store(list_objects),
    "its folder listed": with_store(list_folder),
    "its uploads dropped": with_store(lambda objects, key: objects.abort_uploads(key, older_than_ms=0)),
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=list(ACCESSES))
async def test_foreign_object_is_rejected(shared: SharedBucket, victim: str, access: Access) -> None:
    """The storage receives no call about the foreign object."""
    with pytest.raises(SpecInvalid, match=r"beta/AGENT/NAME_UID8/FILE, .* name a Secret") as caught:
        await access(shared, victim)
    assert caught.value.reason == Reason.SOURCE_NOT_ALLOWED
    # Before a copy is sent, unfinished uploads in the sender's own folder are listed.
    assert set(shared.proxy.steps) <= {"uploads"}
    assert shared.server.file(victim).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key.replace("alpha/bot", "alpha/./bot"),
        lambda key: key.replace("alpha/bot", "beta/../alpha/bot"),
        lambda key: f"{key}/../../../beta/thief/../../alpha/bot/nightly_12345678/{FILE}",
        lambda key: f"{key}/../../../../beta/thief/n_12345678/../../../alpha/bot/nightly_12345678/{FILE}",
        lambda key: key.rpartition("/")[0] + "/x/../../../../beta/thief/n_12345678/a",
        lambda key: key.replace("alpha/bot", "alpha//bot"),
        lambda key: f"{key}/",
        lambda key: key.replace("alpha/bot", "alpha%2Fbot"),
        lambda key: key.replace("alpha/bot", "alpha/bot\n"),
        lambda key: key.replace("alpha", "ALPHA"),
        lambda key: key.replace("/alpha", ""),
    ],
)
async def test_respelled_foreign_key_is_rejected(
    shared: SharedBucket, victim: str, change: Callable[[str], str]
) -> None:
    for access in (ACCESSES["got"], ACCESSES["deleted"], ACCESSES["put"]):
        with pytest.raises(SpecInvalid):
            await access(shared, change(victim))
    assert shared.proxy.steps == []


@pytest.mark.parametrize("is_prefix", [True, False], ids=["as its prefix", "as its agent"])
async def test_nested_folder_leaves_the_owner_untouched(
    shared: SharedBucket, victim: str, is_prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant chooses `storage.prefix` and the agent's name, so either may equal another tenant's folder."""
    upload = victim.replace("nightly", "hourly")
    await begin_upload(shared.server, upload)
    if is_prefix:
        prefix, slug = victim.removesuffix(f"/nightly_12345678/{FILE}"), "thief"
    else:
        prefix, slug = "p", shared.prefix
        monkeypatch.setitem(NAMESPACES, slug, "beta")
    nested = shared.location("beta", slug, prefix=prefix)

    await shared.send(nested, namespace="beta", slug=slug, prefix=prefix)
    async with shared.storages.open_bucket(shared.storage(), "beta") as objects:
        for folder in (f"{prefix}/beta/{slug}/", f"{shared.prefix}/"):
            try:
                assert await objects.abort_uploads(folder, older_than_ms=0) == 0
                assert {stored.key async for stored in objects.list(folder)} <= {nested["key"]}
            except SpecInvalid:
                assert folder == f"{shared.prefix}/"

    assert shared.exists(nested["key"])
    assert shared.server.file(victim).read_bytes() == CONTENT
    own_objects = S3Objects(shared.server.bucket())
    assert await own_objects.abort_uploads(upload, older_than_ms=0) == 1
    await own_objects.close()


async def test_upload_of_a_longer_key_is_kept() -> None:
    """The storage lists uploads by key prefix, so its list contains the upload of a longer key too."""
    objects = MemoryObjects()
    storage = S3Storage.model_validate({"bucket": BUCKET})
    snapshot = Metadata(name="nightly", namespace="alpha", uid="12345678")
    location = copy_location(storage, snapshot, slug="bot", file=FILE)
    objects.unfinished = {location["key"]: 0, f"{location['key']}.of-another": 0}
    await Copies(Storages(FakeSecrets({}), lambda bucket: objects)).remove(location, namespace="alpha")
    assert set(objects.unfinished) == {f"{location['key']}.of-another"}


async def test_own_copy_is_sent_read_and_removed(shared: SharedBucket) -> None:
    location = shared.location("beta", "thief")
    assert await shared.send(location, namespace="beta", slug="thief") == SHA256
    store: Any = FileServer(b"")
    await shared.copies.recover(parse_location(location), store, "restored", namespace="beta")
    assert store.recovered == {"restored": CONTENT}
    await shared.copies.remove(location, namespace="beta")
    assert not shared.exists(location["key"])


async def test_own_secret_opens_any_key(shared: SharedBucket, victim: str) -> None:
    keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
    secrets = FakeSecrets({("beta", "s3", name): value for name, value in keys.items()})
    storages = Storages(secrets, S3Objects, shared=frozenset(), namespace_of=NAMESPACES.get)
    checked = await Copies(storages).check(parse_location(shared.at(victim) | {"secret": "s3"}), namespace="beta")
    assert checked.sha256 == SHA256


async def test_without_shared_buckets_any_key_opens(shared: SharedBucket, victim: str) -> None:
    """A process without shared buckets works for a single user."""
    checked = await Copies(Storages(FakeSecrets({}), S3Objects)).check(place(shared, victim), namespace="beta")
    assert checked.sha256 == SHA256


async def test_without_namespace_lookup_only_own_keys_open(shared: SharedBucket) -> None:
    shared_buckets = frozenset({f"{shared.proxy.url}/{BUCKET}"})
    storages = Storages(FakeSecrets({}), S3Objects, shared=shared_buckets)
    async with storages.open_bucket(shared.storage(), "alpha") as objects:
        assert await objects.head(f"{shared.prefix}/alpha/bot/nightly_12345678/{FILE}") is None
        with pytest.raises(SpecInvalid):
            await objects.head(f"{shared.prefix}/beta/bot/nightly_12345678/{FILE}")


def test_erasures_of_namespaces_are_separate(shared: SharedBucket) -> None:
    folders = {erasure_folder(shared.storage(), namespace=namespace, slug="bot") for namespace in ("alpha", "beta")}
    assert len(folders) == 2
