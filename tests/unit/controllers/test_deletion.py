"""Deletion of an object: what goes, what is kept, and that nothing wedges a namespace."""

from typing import Any

import pytest

from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.deletion import FINALIZER, Deletion
from agentmemory_operator.errors import (
    DeletionPending,
    LeadershipLost,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.zones.rules.entries import Ring
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeCluster, FakeSecrets
from tests.support.engine.passes import servers_over
from tests.support.key_shards import new_shard
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.plans import ALIAS, desired_of
from tests.support.zones import FakeKeyShards

PHYSICAL = f"{ALIAS}__1"


def a_store(*, points: int = 0) -> FakeCollectionStore:
    return FakeCollectionStore(
        collections={PHYSICAL: desired_of()}, aliases={ALIAS: PHYSICAL}, points={PHYSICAL: points}
    )


def deleted(*, confirm: str | None = None, finalizers: tuple[str, ...] = (FINALIZER,), **spec: Any) -> Json:
    annotations = {} if confirm is None else {"agentmemory.dev/confirm-delete": confirm}
    metadata = {"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": [*finalizers], "annotations": annotations}
    return memory_document(metadata=metadata, **({"deletionPolicy": "Delete"} | spec))


async def run(
    document: Json,
    store: FakeCollectionStore,
    *,
    is_overdue: bool = False,
    has_connection: bool = True,
    shards: FakeKeyShards | None = None,
    beside: Json | None = None,
) -> FakeCluster:
    """Release the object; return what was written."""
    cluster, table = FakeCluster(), ObjectTable()
    if has_connection:
        table.put(connection_document())
    table.put(document)
    if beside:
        table.put(beside)
    connections = Connections(table, FakeSecrets(), lambda endpoint: store)
    metadata = Metadata.model_validate(document["metadata"])
    release = Deletion(table, connections, cluster, nobody, servers_over(table, cluster, store), shards)
    await release.run(document, metadata, is_overdue=is_overdue)
    return cluster


def nobody(key: Key) -> None:
    """Take no request: nothing else runs here."""


def only(cluster: FakeCluster) -> Event:
    (event,) = cluster.events
    return event


async def test_an_empty_collection_goes_with_its_alias() -> None:
    store = a_store()

    cluster = await run(deleted(), store)

    assert (store.collections, store.aliases) == ({}, {})
    assert cluster.finalizers == [("probe", [])]
    assert (only(cluster).type, only(cluster).reason) == ("Normal", "CollectionDeleted")


async def test_a_collection_with_memories_is_kept_and_the_object_goes() -> None:
    store = a_store(points=3)

    cluster = await run(deleted(), store)

    assert PHYSICAL in store.collections
    assert cluster.finalizers == [("probe", [])]
    assert (only(cluster).type, only(cluster).reason) == ("Warning", "CollectionKept")
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in only(cluster).message


async def test_a_confirmed_collection_goes_with_its_memories() -> None:
    store = a_store(points=3)

    cluster = await run(deleted(confirm=ALIAS), store)

    assert store.collections == {}
    assert only(cluster).message == f"{PHYSICAL} with 3 memories deleted"


async def test_the_count_is_exact_and_not_what_the_status_says() -> None:
    store = a_store(points=3)
    document = deleted() | {"status": {"collection": {"physical": PHYSICAL, "points": 0}}}

    await run(document, store)

    assert PHYSICAL in store.collections
    assert ("count", PHYSICAL) in store.calls


async def test_another_s_finalizers_stay() -> None:
    cluster = await run(deleted(finalizers=("a/b", FINALIZER, "c/d")), a_store())

    assert cluster.finalizers == [("probe", ["a/b", "c/d"])]


async def test_without_the_finalizer_nothing_is_looked_up_or_written() -> None:
    store = a_store()

    cluster = await run(deleted(finalizers=("a/b",)), store, has_connection=False)

    assert (store.calls, cluster.writes) == ([], 0)


async def test_a_policy_that_became_retain_keeps_the_collection_in_silence() -> None:
    store = a_store()

    cluster = await run(deleted(deletionPolicy="Retain"), store)

    assert (store.calls, cluster.events, cluster.finalizers) == ([], [], [("probe", [])])


async def test_nothing_left_releases_the_object_in_silence() -> None:
    cluster = await run(deleted(), FakeCollectionStore())

    assert (cluster.events, cluster.finalizers) == ([], [("probe", [])])


async def test_a_creation_that_was_interrupted_before_its_alias_is_cleaned_up() -> None:
    store = FakeCollectionStore(collections={PHYSICAL: desired_of()})

    await run(deleted(), store)

    assert store.collections == {}


@pytest.mark.parametrize(
    ("document", "has_connection", "words"),
    [
        (deleted(index={"hnsw": {"m": 1}}), True, "spec.index.hnsw.m"),
        (deleted(), False, "there is no QdrantConnection agents/main"),
    ],
    ids=["a spec that cannot be parsed", "a connection that is gone"],
)
async def test_what_cannot_be_looked_up_is_kept_and_the_object_goes(
    document: Json, has_connection: bool, words: str
) -> None:
    store = a_store()

    cluster = await run(document, store, has_connection=has_connection)

    assert PHYSICAL in store.collections
    assert cluster.finalizers == [("probe", [])]
    assert words in only(cluster).message


async def test_another_object_s_collection_is_kept() -> None:
    store = a_store()
    document = deleted()
    document["metadata"]["namespace"] = "default"
    table_free = connection_document()
    table_free["metadata"]["namespace"] = "default"
    cluster, table = FakeCluster(), ObjectTable()
    table.put(table_free)
    table.put(document)

    connections = Connections(table, FakeSecrets(), lambda endpoint: store)
    metadata = Metadata.model_validate(document["metadata"])
    release = Deletion(table, connections, cluster, nobody, servers_over(table, cluster, store), None)
    await release.run(document, metadata, is_overdue=False)

    assert PHYSICAL in store.collections
    assert "belongs to another namespace" in only(cluster).message


async def test_a_server_that_refuses_keeps_the_collection_and_the_object_goes() -> None:
    store = a_store()
    store.error = StoreRejected(403, "Forbidden")

    cluster = await run(deleted(), store)

    assert (only(cluster).reason, cluster.finalizers) == ("CollectionKept", [("probe", [])])


async def test_a_server_that_is_away_holds_the_object_for_a_while() -> None:
    store = a_store()
    store.error = StoreUnavailable("away")

    with pytest.raises(TransientError, match="away"):
        await run(deleted(), store)
    cluster = await run(deleted(), store, is_overdue=True)

    assert cluster.finalizers == [("probe", [])]
    assert only(cluster).message == "collection kept, see `agentmemory orphans`: away"


RING = Ring("agents", "probe")


async def with_keys(ring: Ring = RING) -> FakeKeyShards:
    """Return a store with two shards of an agent."""
    shards = FakeKeyShards()
    for name in ("0", "1a"):
        await shards.write(new_shard(ring, name))
    return shards


def told(cluster: FakeCluster) -> list[str]:
    return [event.reason for event in cluster.events]


async def test_the_keys_go_after_a_confirmed_collection() -> None:
    shards = await with_keys()
    await shards.write(new_shard(Ring("agents", "other")))

    cluster = await run(deleted(confirm=ALIAS), a_store(points=3), shards=shards)

    assert told(cluster) == ["CollectionDeleted", "KeysDestroyed"]
    assert cluster.finalizers == [("probe", [])]
    assert {ring for ring, _ in shards.texts} == {Ring("agents", "other")}


async def test_who_was_killed_after_the_collection_went_destroys_the_keys() -> None:
    shards = await with_keys()

    cluster = await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards)

    assert (told(cluster), shards.texts) == (["KeysDestroyed"], {})


@pytest.mark.parametrize("store", [a_store(), FakeCollectionStore()], ids=["an empty collection", "none"])
async def test_without_a_confirmation_keys_stay(store: FakeCollectionStore) -> None:
    shards = await with_keys()

    cluster = await run(deleted(), store, shards=shards)

    assert (told(cluster)[-1], len(shards.texts)) == ("KeysKept", 2)
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in cluster.events[-1].message
    assert cluster.finalizers == [("probe", [])]


@pytest.mark.parametrize(
    ("document", "store"),
    [
        (deleted(), a_store(points=3)),
        (deleted(confirm=ALIAS, suspend=True), a_store(points=3)),
        (deleted(confirm=ALIAS, deletionPolicy="Retain"), a_store()),
        (deleted(confirm=ALIAS, deletionPolicy="Snapshot"), a_store()),
    ],
    ids=["a collection that is kept", "a suspended object", "Retain", "Snapshot"],
)
async def test_keys_that_something_is_left_for_stay_in_silence(document: Json, store: FakeCollectionStore) -> None:
    shards = await with_keys()

    cluster = await run(document, store, shards=shards)

    assert len(shards.texts) == 2
    assert {"KeysKept", "KeysDestroyed"}.isdisjoint(told(cluster))


async def test_the_keys_of_the_older_object_of_a_slug_stay() -> None:
    shards = await with_keys()
    older = memory_document("older", metadata={"creationTimestamp": "2025-01-01T00:00:00Z"}, agent="probe")

    await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, beside=older)

    assert len(shards.texts) == 2


async def test_an_agent_that_never_had_keys_goes_in_silence() -> None:
    cluster = await run(deleted(), FakeCollectionStore(), shards=FakeKeyShards())

    assert (cluster.events, cluster.finalizers) == ([], [("probe", [])])


async def test_a_store_of_keys_that_is_away_holds_the_object_for_a_while() -> None:
    shards = await with_keys()
    shards.error = TransientError("no answer")

    with pytest.raises(DeletionPending, match="the data key store: no answer"):
        await run(deleted(confirm=ALIAS), a_store(), shards=shards)
    cluster = await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, is_overdue=True)

    assert (told(cluster), cluster.finalizers) == (["KeysKept"], [("probe", [])])


async def test_keys_are_left_alone_by_who_no_longer_leads() -> None:
    shards = await with_keys()
    shards.error = LeadershipLost("another leads")

    with pytest.raises(LeadershipLost):
        await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, is_overdue=True)
