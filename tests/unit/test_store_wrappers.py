"""Wrappers of stores cover their port: each wrapper handles or rejects a method that is added to the port."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import agentmemory_operator
from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
from agentmemory_operator.agents.fenced_store import FencedStore
from agentmemory_operator.connections import guarded_stores
from agentmemory_operator.connections.collection_authorizer import CollectionAuthorizer
from agentmemory_operator.connections.confined_objects import ConfinedObjects
from agentmemory_operator.connections.guarded_stores import WITHHELD_METHODS, CheckedStore
from agentmemory_operator.connections.point_stores import LinkedPoints
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.objects import ObjectStore
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.restores import restore_targets as new_only
from agentmemory_operator.zones.sealed_store import EncryptingPointStore
from tests.support.engine.fakes import FakeClock

PORTS: tuple[type, ...] = (PointStore, CollectionStore, SnapshotStore, ObjectStore)


@dataclass
class Everything:
    """A store with all methods of the ports and one that no port has yet. It records the names of called methods."""

    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            return ([], None) if name == "scroll" else []

        return call


def anything() -> Any:
    return SimpleNamespace()


def reach() -> CollectionAuthorizer:
    return CollectionAuthorizer(namespace="beta", namespace_of={"mine": "beta"}.get, are_claims_complete=lambda: True)


class Steady:
    """A fence without moves."""

    slug = "mine"
    timing = SimpleNamespace(now_s=lambda: 0.0)

    def has_space_lease(self, space: Any) -> bool:
        return True

    async def has_contents(self, contents: Any) -> bool:
        return True


class Linked:
    """A link whose store is always available."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def use(self, document: Any, work: Callable[[Any], Any]) -> Any:
        return await work(self._store)

    async def close(self) -> None:
        await self._store.close()


def fenced(store: Any) -> FencedStore:
    facts: Any = SimpleNamespace(space="space", contents_number=1, allows_exact=True)
    fence: Any = Steady()
    return FencedStore(store, fence, facts, clock=FakeClock(), write_s=1.0)


def sealed(store: Any) -> EncryptingPointStore:
    async def confirm(keys: Any, used: Any) -> None:
        assert not used

    keys: Any = SimpleNamespace(keyring=SimpleNamespace(check_stored=confirm), keys=None)
    return EncryptingPointStore(store, keys)


def linked(store: Any) -> LinkedPoints:
    link: Any = Linked(store)
    return LinkedPoints({}, link)


# Class, port, and function that wraps a store. Wrappers with `__getattr__` list the methods that they forward.
WRAPPERS: list[tuple[type, type, Callable[[Any], Any]]] = [
    (EncryptingPointStore, PointStore, sealed),
    (FencedStore, PointStore, fenced),
    (LinkedPoints, PointStore, linked),
    (guarded_stores._Points, PointStore, lambda store: guarded_stores.guarded_points(store, reach())),
    (guarded_stores._Collections, CollectionStore, lambda store: guarded_stores.guarded_collections(store, reach())),
    (guarded_stores._Snapshots, SnapshotStore, lambda store: guarded_stores.guarded_snapshots(store, reach())),
    (new_only._NewCollections, CollectionStore, lambda store: new_only._NewCollections(store, anything())),
    (new_only._NewSnapshots, SnapshotStore, lambda store: new_only._NewSnapshots(store, anything())),
    (ConfinedObjects, ObjectStore, lambda store: ConfinedObjects(store, anything(), bucket_name="bucket")),
]
# Classes that only look like wrappers: stores that start calls themselves, and base classes of wrappers.
NO_WRAPPERS = {QdrantShardSnapshots, ForwardingPoints, CheckedStore, guarded_stores._Guarded}
BESIDE_STORES = {"agentmemory_operator.adapters.http.asgi_server", "agentmemory_operator.entrypoints.api.app"}


def methods(port: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(port, inspect.isfunction) if not name.startswith("_")}


def covered(wrapper: type, port: type) -> set[str]:
    """Return the methods that a class or a base other than a Protocol defines, or that the class lists by name."""
    written = {name for base in wrapper.__mro__ if not getattr(base, "_is_protocol", False) for name in vars(base)}
    listed = wrapper.PASSED | wrapper.CHECKED if issubclass(wrapper, CheckedStore) else frozenset()
    return written | listed | (WITHHELD_METHODS if issubclass(wrapper, guarded_stores._Guarded) else frozenset())


def wrapping_classes() -> Iterator[type]:
    """Yield every class of the operator that wraps a store: it has most methods of a port, or forwards by name."""
    for module in pkgutil.walk_packages(agentmemory_operator.__path__, "agentmemory_operator."):
        if module.name.endswith("__main__") or module.name in BESIDE_STORES:
            continue
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ != module.name or getattr(found, "_is_protocol", False) or found in NO_WRAPPERS:
                continue
            is_like_port = any(len(methods(port) & set(dir(found))) > len(methods(port)) / 2 for port in PORTS)
            is_root = module.name.startswith("agentmemory_operator.adapters.")
            forwards = any(
                "__getattr__" in vars(base) for base in found.__mro__ if base.__module__.startswith("agentmemory")
            )
            if forwards or (is_like_port and not is_root):
                yield found


def test_every_wrapper_of_a_store_is_known_here() -> None:
    assert set(wrapping_classes()) == {wrapper for wrapper, _, _ in WRAPPERS}


IDS = [f"{wrapper.__name__}-{port.__name__}" for wrapper, port, _ in WRAPPERS]


@pytest.mark.parametrize(("wrapper", "port", "around"), WRAPPERS, ids=IDS)
async def test_a_wrapper_covers_its_port(wrapper: type, port: type, around: Callable[[Any], Any]) -> None:
    assert methods(port) - covered(wrapper, port) == set()

    store = Everything()
    with pytest.raises(AttributeError):
        await around(store).take_everything("agent_memory_mine__1")
    for name in methods(port) & WITHHELD_METHODS if issubclass(wrapper, guarded_stores._Guarded) else ():
        with pytest.raises(AttributeError):
            getattr(around(store), name)
    assert store.calls == []


POINT_METHODS: dict[str, tuple[Any, ...]] = {
    "describe": (),
    "query": ({"limit": 1},),
    "query_batch": ([{"limit": 1}],),
    "retrieve": (["id"],),
    "scroll": ({"limit": 1},),
    "count": ({},),
    "facet": ("type", {}),
    "upsert": ([{"id": "a", "payload": {"rev": 1}}],),
    "set_payload": ({"rev": 1}, {}),
    "batch": ([{"set_payload": {"payload": {}, "filter": {}}}],),
    "delete": ({},),
}
INTERPRETING = (FencedStore, EncryptingPointStore)


async def take_everything(store: Any, collection: str, body: Any, /) -> Any:
    """Do nothing: stands for a method that a later version of the port may have."""


@pytest.mark.parametrize("around", [around for _, port, around in WRAPPERS if port is PointStore])
async def test_every_call_of_points_passes_and_a_new_one_is_refused(around: Callable[[Any], Any]) -> None:
    assert set(POINT_METHODS) == methods(PointStore) - {"close"}
    for name, args in POINT_METHODS.items():
        store = Everything()
        options = {"limit": 1} if name == "facet" else {}
        await getattr(around(store), name)("agent_memory_mine__1", *args, **options)
        assert store.calls == [name]

    store = Everything()
    wrapper = around(store)
    if isinstance(wrapper, INTERPRETING):
        call = PointCall(take_everything, ("agent_memory_mine__1", {}), {})
        for way in (wrapper.read, wrapper.write):
            with pytest.raises(NotImplementedError, match=r"does not cover PointStore\.take_everything"):
                await way(call)
        assert store.calls == []


@pytest.mark.parametrize(
    "operation",
    [
        {"overwrite_payload": {"payload": {"content": "secret"}, "filter": {}}},
        {"upsert": {"points": []}, "overwrite_payload": {"payload": {}}},
        {"set_payload": {"payload": {}, "filter": {}}, "upsert": {"points": []}},
        {},
    ],
)
async def test_an_operation_that_may_hold_plain_text_is_not_written(operation: Any) -> None:
    store = Everything()
    with pytest.raises(NotImplementedError, match=r"does not cover .* in a batch"):
        await sealed(store).batch("agent_memory_mine__1", [operation])
    assert store.calls == []
