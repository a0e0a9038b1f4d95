"""A bucket that namespaces share, on a real S3 server: a key of another's is refused before any call, by every way."""

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
HOLDERS = {"bot": "alpha", "thief": "beta"}

Way = Callable[["Shared", str], Awaitable[Any]]


@dataclass(slots=True)
class Shared:
    """The bucket as a namespace sees it through the operator.

    Attributes:
        prefix: of this test.
    """

    server: S3Server
    proxy: StorageProxy
    prefix: str

    @property
    def storages(self) -> Storages:
        shared = frozenset({f"{self.proxy.url}/{BUCKET}"})
        return Storages(FakeSecrets({}), S3Objects, shared=shared, namespace_of=HOLDERS.get)

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

    def there(self, key: str) -> bool:
        return self.server.file(key).exists()


@pytest.fixture
def shared(storage: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY.id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY.secret)
    with serve_storage_proxy(storage.url) as proxy:
        yield Shared(storage, proxy, uuid.uuid4().hex)


@pytest.fixture
async def victim(shared: Shared) -> str:
    """The key of alpha's copy."""
    place = shared.location("alpha", "bot")
    await shared.send(place, namespace="alpha", slug="bot")
    shared.proxy.steps.clear()
    return str(place["key"])


async def recovered(shared: Shared, key: str) -> None:
    store: Any = FileServer(b"")
    await shared.copies.recover(place(shared, key), store, "restored", namespace="beta")


def place(shared: Shared, key: str) -> S3Object:
    return parse_location(shared.at(key), sha256=SHA256)


async def read_copy(shared: Shared, key: str) -> None:
    async with shared.copies.open_copy(shared.at(key), "beta"):
        pass


async def sent(shared: Shared, key: str) -> None:
    await shared.send(shared.at(key), namespace="beta", slug="thief")


def with_store(work: Callable[[ObjectStore, str], Awaitable[Any]]) -> Way:
    async def run(shared: Shared, key: str) -> None:
        async with shared.storages.open_bucket(shared.storage(), "beta") as objects:
            await work(objects, key)

    return run


async def put(objects: ObjectStore, key: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"other memories"

    await objects.put(key, content(), metadata={})


async def get(objects: ObjectStore, key: str) -> None:
    async with objects.get(key):
        pass


async def listed(objects: ObjectStore, key: str) -> None:
    _ = [stored async for stored in objects.list(key)]


async def listed_folder(objects: ObjectStore, key: str) -> None:
    await listed(objects, f"{key.rpartition('/')[0]}/")


WAYS: dict[str, Way] = {
    "restored or taken in": recovered,
    "read whole": lambda shared, key: shared.copies.check(place(shared, key), namespace="beta"),
    "verified": read_copy,
    "removed": lambda shared, key: shared.copies.remove(shared.at(key), namespace="beta"),
    "written over": sent,
    "asked for": with_store(lambda objects, key: objects.head(key)),
    "got": with_store(get),
    "put": with_store(put),
    "deleted": with_store(lambda objects, key: objects.delete(key)),
    "listed": with_store(listed),
    "its folder listed": with_store(listed_folder),
    "its uploads dropped": with_store(lambda objects, key: objects.abort_uploads(key, older_than_ms=0)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
async def test_anothers_object_is_out_of_reach_and_nothing_is_asked_of_the_storage(
    shared: Shared, victim: str, way: Way
) -> None:
    with pytest.raises(SpecInvalid, match="name a Secret") as caught:
        await way(shared, victim)
    assert caught.value.reason == Reason.SOURCE_NOT_ALLOWED
    # Of a copy that is sent, what is left in the sender's own folder is looked at before.
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
async def test_no_other_spelling_of_a_key_leads_there(
    shared: Shared, victim: str, change: Callable[[str], str]
) -> None:
    for way in (WAYS["got"], WAYS["deleted"], WAYS["put"]):
        with pytest.raises(SpecInvalid):
            await way(shared, change(victim))
    assert shared.proxy.steps == []


@pytest.mark.parametrize("names_prefix", [True, False], ids=["as its prefix", "as its agent"])
async def test_whoever_writes_below_anothers_folder_changes_and_drops_nothing_there(
    shared: Shared, victim: str, names_prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`storage.prefix` is a tenant's to choose, and so may be the other's prefix an agent's name."""
    upload = victim.replace("nightly", "hourly")
    await begin_upload(shared.server, upload)
    if names_prefix:
        prefix, slug = victim.removesuffix(f"/nightly_12345678/{FILE}"), "thief"
    else:
        prefix, slug = "p", shared.prefix
        monkeypatch.setitem(HOLDERS, slug, "beta")
    below = shared.location("beta", slug, prefix=prefix)

    await shared.send(below, namespace="beta", slug=slug, prefix=prefix)
    async with shared.storages.open_bucket(shared.storage(), "beta") as objects:
        for folder in (f"{prefix}/beta/{slug}/", f"{shared.prefix}/"):
            try:
                assert await objects.abort_uploads(folder, older_than_ms=0) == 0
                assert {stored.key async for stored in objects.list(folder)} <= {below["key"]}
            except SpecInvalid:
                assert folder == f"{shared.prefix}/"

    assert shared.there(below["key"])
    assert shared.server.file(victim).read_bytes() == CONTENT
    mine = S3Objects(shared.server.bucket())
    assert await mine.abort_uploads(upload, older_than_ms=0) == 1
    await mine.close()


async def test_an_upload_whose_key_begins_as_ones_own_is_not_dropped_with_it() -> None:
    """With a Secret too: the storage lists by the beginning of a key."""
    objects = MemoryObjects()
    storage = S3Storage.model_validate({"bucket": BUCKET})
    snapshot = Metadata(name="nightly", namespace="alpha", uid="12345678")
    location = copy_location(storage, snapshot, slug="bot", file=FILE)
    objects.unfinished = {location["key"]: 0, f"{location['key']}.of-another": 0}
    await Copies(Storages(FakeSecrets({}), lambda bucket: objects)).remove(location, namespace="alpha")
    assert set(objects.unfinished) == {f"{location['key']}.of-another"}


async def test_ones_own_is_sent_read_and_removed(shared: Shared) -> None:
    location = shared.location("beta", "thief")
    assert await shared.send(location, namespace="beta", slug="thief") == SHA256
    store: Any = FileServer(b"")
    await shared.copies.recover(parse_location(location), store, "restored", namespace="beta")
    assert store.recovered == {"restored": CONTENT}
    await shared.copies.remove(location, namespace="beta")
    assert not shared.there(location["key"])


async def test_with_a_secret_of_its_own_a_namespace_gets_where_the_secret_lets_it(shared: Shared, victim: str) -> None:
    keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
    secrets = FakeSecrets({("beta", "s3", name): value for name, value in keys.items()})
    storages = Storages(secrets, S3Objects, shared=frozenset(), namespace_of=HOLDERS.get)
    known = await Copies(storages).check(parse_location(shared.at(victim) | {"secret": "s3"}), namespace="beta")
    assert known.sha256 == SHA256


async def test_without_a_list_of_buckets_the_process_works_for_one_person_alone(shared: Shared, victim: str) -> None:
    known = await Copies(Storages(FakeSecrets({}), S3Objects)).check(place(shared, victim), namespace="beta")
    assert known.sha256 == SHA256


async def test_what_is_not_told_whose_names_they_are_opens_keys_of_the_own_namespace_alone(shared: Shared) -> None:
    shared_alone = frozenset({f"{shared.proxy.url}/{BUCKET}"})
    storages = Storages(FakeSecrets({}), S3Objects, shared=shared_alone)
    async with storages.open_bucket(shared.storage(), "alpha") as objects:
        assert await objects.head(f"{shared.prefix}/alpha/bot/nightly_12345678/{FILE}") is None
        with pytest.raises(SpecInvalid):
            await objects.head(f"{shared.prefix}/beta/bot/nightly_12345678/{FILE}")


def test_the_erasures_of_two_namespaces_lie_apart(shared: Shared) -> None:
    folders = {erasure_folder(shared.storage(), namespace=namespace, slug="bot") for namespace in ("alpha", "beta")}
    assert len(folders) == 2
