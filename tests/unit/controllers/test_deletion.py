"""Deletion of an object: deleted and kept data, and no blocked namespaces."""

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


def store_with(*, points: int = 0) -> FakeCollectionStore:
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
    other: Json | None = None,
) -> FakeCluster:
    """Release the object; return the cluster with the writes."""
    cluster, table = FakeCluster(), ObjectTable()
    if has_connection:
        table.put(connection_document())
    table.put(document)
    if other:
        table.put(other)
    connections = Connections(table, FakeSecrets(), lambda endpoint: store)
    metadata = Metadata.model_validate(document["metadata"])
    release = Deletion(table, connections, cluster, ignore_request, servers_over(table, cluster, store), shards)
    await release.run(document, metadata, is_overdue=is_overdue)
    return cluster


def ignore_request(key: Key) -> None:
    """Ignore a request: nothing else runs here."""


def single_event(cluster: FakeCluster) -> Event:
    (event,) = cluster.events
    return event


async def test_empty_collection_is_deleted_with_alias() -> None:
    store = store_with()

    cluster = await run(deleted(), store)

    assert (store.collections, store.aliases) == ({}, {})
    assert cluster.finalizers == [("probe", [])]
    assert (single_event(cluster).type, single_event(cluster).reason) == ("Normal", "CollectionDeleted")


async def test_unconfirmed_memories_are_kept() -> None:
    store = store_with(points=3)

    cluster = await run(deleted(), store)

    assert PHYSICAL in store.collections
    assert cluster.finalizers == [("probe", [])]
    assert (single_event(cluster).type, single_event(cluster).reason) == ("Warning", "CollectionKept")
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in single_event(cluster).message


async def test_confirmed_collection_is_deleted() -> None:
    store = store_with(points=3)

    cluster = await run(deleted(confirm=ALIAS), store)

    assert store.collections == {}
    assert single_event(cluster).message == f"{PHYSICAL} with 3 memories deleted"


async def test_points_are_counted_exactly() -> None:
    store = store_with(points=3)
    document = deleted() | {"status": {"collection": {"physical": PHYSICAL, "points": 0}}}

    await run(document, store)

    assert PHYSICAL in store.collections
    assert ("count", PHYSICAL) in store.calls


async def test_foreign_finalizers_stay() -> None:
    cluster = await run(deleted(finalizers=("a/b", FINALIZER, "c/d")), store_with())

    assert cluster.finalizers == [("probe", ["a/b", "c/d"])]


async def test_missing_finalizer_means_no_calls() -> None:
    store = store_with()

    cluster = await run(deleted(finalizers=("a/b",)), store, has_connection=False)

    assert (store.calls, cluster.writes) == ([], 0)


async def test_retain_policy_keeps_collection_silently() -> None:
    store = store_with()

    cluster = await run(deleted(deletionPolicy="Retain"), store)

    assert (store.calls, cluster.events, cluster.finalizers) == ([], [], [("probe", [])])


async def test_missing_collection_releases_object_silently() -> None:
    cluster = await run(deleted(), FakeCollectionStore())

    assert (cluster.events, cluster.finalizers) == ([], [("probe", [])])


async def test_collection_without_alias_is_deleted() -> None:
    store = FakeCollectionStore(collections={PHYSICAL: desired_of()})

    await run(deleted(), store)

    assert store.collections == {}


@pytest.mark.parametrize(
    ("document", "has_connection", "words"),
    [
        (deleted(index={"hnsw": {"m": 1}}), True, "spec.index.hnsw.m"),
        (deleted(), False, "there is no QdrantConnection agents/main"),
    ],
    ids=["invalid spec", "missing connection"],
)
async def test_unreadable_collection_is_kept(document: Json, has_connection: bool, words: str) -> None:
    store = store_with()

    cluster = await run(document, store, has_connection=has_connection)

    assert PHYSICAL in store.collections
    assert cluster.finalizers == [("probe", [])]
    assert words in single_event(cluster).message


async def test_foreign_collection_is_kept() -> None:
    store = store_with()
    document = deleted()
    document["metadata"]["namespace"] = "default"
    table_free = connection_document()
    table_free["metadata"]["namespace"] = "default"
    cluster, table = FakeCluster(), ObjectTable()
    table.put(table_free)
    table.put(document)

    connections = Connections(table, FakeSecrets(), lambda endpoint: store)
    metadata = Metadata.model_validate(document["metadata"])
    release = Deletion(table, connections, cluster, ignore_request, servers_over(table, cluster, store), None)
    await release.run(document, metadata, is_overdue=False)

    assert PHYSICAL in store.collections
    assert "belongs to another namespace" in single_event(cluster).message


async def test_rejected_call_keeps_collection() -> None:
    store = store_with()
    store.error = StoreRejected(403, "Forbidden")

    cluster = await run(deleted(), store)

    assert (single_event(cluster).reason, cluster.finalizers) == ("CollectionKept", [("probe", [])])


async def test_unavailable_server_delays_deletion() -> None:
    store = store_with()
    store.error = StoreUnavailable("away")

    with pytest.raises(TransientError, match="away"):
        await run(deleted(), store)
    cluster = await run(deleted(), store, is_overdue=True)

    assert cluster.finalizers == [("probe", [])]
    assert single_event(cluster).message == "collection kept, see `agentmemory orphans`: away"


RING = Ring("agents", "probe")


async def create_keys(ring: Ring = RING) -> FakeKeyShards:
    """Return a key store with two shards of an agent."""
    shards = FakeKeyShards()
    for name in ("0", "1a"):
        await shards.write(new_shard(ring, name))
    return shards


def reasons(cluster: FakeCluster) -> list[str]:
    return [event.reason for event in cluster.events]


async def test_keys_are_destroyed_after_collection() -> None:
    shards = await create_keys()
    await shards.write(new_shard(Ring("agents", "other")))

    cluster = await run(deleted(confirm=ALIAS), store_with(points=3), shards=shards)

    assert reasons(cluster) == ["CollectionDeleted", "KeysDestroyed"]
    assert cluster.finalizers == [("probe", [])]
    assert {ring for ring, _ in shards.texts} == {Ring("agents", "other")}


async def test_restart_destroys_remaining_keys() -> None:
    """The operator has crashed after the deletion of the collection and before that of the keys."""
    shards = await create_keys()

    cluster = await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards)

    assert (reasons(cluster), shards.texts) == (["KeysDestroyed"], {})


@pytest.mark.parametrize("store", [store_with(), FakeCollectionStore()], ids=["empty collection", "no collection"])
async def test_unconfirmed_deletion_keeps_keys(store: FakeCollectionStore) -> None:
    shards = await create_keys()

    cluster = await run(deleted(), store, shards=shards)

    assert (reasons(cluster)[-1], len(shards.texts)) == ("KeysKept", 2)
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in cluster.events[-1].message
    assert cluster.finalizers == [("probe", [])]


@pytest.mark.parametrize(
    ("document", "store"),
    [
        (deleted(), store_with(points=3)),
        (deleted(confirm=ALIAS, suspend=True), store_with(points=3)),
        (deleted(confirm=ALIAS, deletionPolicy="Retain"), store_with()),
        (deleted(confirm=ALIAS, deletionPolicy="Snapshot"), store_with()),
    ],
    ids=["collection kept", "suspended", "Retain", "Snapshot"],
)
async def test_keys_in_use_are_kept_silently(document: Json, store: FakeCollectionStore) -> None:
    shards = await create_keys()

    cluster = await run(document, store, shards=shards)

    assert len(shards.texts) == 2
    assert {"KeysKept", "KeysDestroyed"}.isdisjoint(reasons(cluster))


async def test_older_object_keeps_its_keys() -> None:
    shards = await create_keys()
    older = memory_document("older", metadata={"creationTimestamp": "2025-01-01T00:00:00Z"}, agent="probe")

    await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, other=older)

    assert len(shards.texts) == 2


async def test_agent_without_keys_is_deleted_silently() -> None:
    cluster = await run(deleted(), FakeCollectionStore(), shards=FakeKeyShards())

    assert (cluster.events, cluster.finalizers) == ([], [("probe", [])])


async def test_unavailable_key_store_delays_deletion() -> None:
    shards = await create_keys()
    shards.error = TransientError("no answer")

    with pytest.raises(DeletionPending, match="the data key store: no answer"):
        await run(deleted(confirm=ALIAS), store_with(), shards=shards)
    cluster = await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, is_overdue=True)

    assert (reasons(cluster), cluster.finalizers) == (["KeysKept"], [("probe", [])])


async def test_lost_leadership_keeps_keys() -> None:
    shards = await create_keys()
    shards.error = LeadershipLost("another leads")

    with pytest.raises(LeadershipLost):
        await run(deleted(confirm=ALIAS), FakeCollectionStore(), shards=shards, is_overdue=True)
