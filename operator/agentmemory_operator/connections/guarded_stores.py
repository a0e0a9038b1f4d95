"""Stores of a server. Before each call that names a collection, they check it with `CollectionAuthorizer`.

Every method of a port is listed here or overridden. A call of a method in `WITHHELD_METHODS`, or of a method that is
missing here, raises AttributeError. The first argument of a listed method is the name of a collection, except in
`NAMELESS_METHODS`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from agentmemory_operator.collections.rules.capacity import DEFAULT_NEED, need_of_indexes
from agentmemory_operator.collections.rules.changes import Change, CreateCollection, CreateIndexes, SetAlias
from agentmemory_operator.collections.rules.collection import Observation, Tenant
from agentmemory_operator.connections.collection_authorizer import CollectionAuthorizer
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.spec.naming import is_collection_name

T = TypeVar("T")

NAMELESS_METHODS = frozenset({"close", "server", "process", "peers", "names", "collections"})
"""Methods whose arguments name no collection. Their results reveal at most names of collections."""

WITHHELD_METHODS = frozenset({"list_agent_collections"})
"""Methods that read the collections of all namespaces, which work for one namespace must not call."""


class CheckedStore:
    """Wraps a store. Only methods that a subclass lists or overrides can be called; others raise AttributeError.

    Attributes:
        PASSED: Methods that are passed on unchanged.
        CHECKED: Methods that are passed on after `check` has accepted their first argument, the name of a collection.
    """

    PASSED: ClassVar[frozenset[str]]
    CHECKED: ClassVar[frozenset[str]]

    def __init__(self, store: object, check: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._check = check

    def __getattr__(self, name: str) -> Any:
        if name in self.PASSED:
            return getattr(self._store, name)
        if name in self.CHECKED:
            return partial(self._checked, getattr(self._store, name))
        raise AttributeError(f"{type(self).__name__} does not cover {name!r}: list it, or write it out")

    async def _checked(self, method: Callable[..., Awaitable[Any]], collection: str, *args: Any, **kwargs: Any) -> Any:
        await self._check(collection)
        return await method(collection, *args, **kwargs)


class _Guarded(CheckedStore):
    PASSED = NAMELESS_METHODS

    def __init__(self, store: object, authorizer: CollectionAuthorizer) -> None:
        super().__init__(store, authorizer.check)
        self._reach = authorizer


class _Collections(_Guarded):
    """Implements ports.CollectionStore."""

    CHECKED = frozenset(
        {
            "read_owner",
            "target",
            "count_memories",
            "drop_index",
            "placement",
            "move_replica",
            "count",
            "count_unlisted",
            "count_sealed_before",
            "content_lengths",
        }
    )
    _store: CollectionStore

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observation | None:
        """Observe the collection behind an alias; None if it does not exist or counts as missing (`filter_observed`).

        `likely` comes from a status, so it is only a hint: it is replaced if it is no valid collection name.
        """
        if not self._reach.has_claimed(alias):
            await self._reach.check(alias)
        if is_linked:
            await self._reach.check(likely)
        guess = likely if is_collection_name(likely) else f"{alias}__1"
        return self._reach.filter_observed(alias, await self._store.observe(alias, guess, is_linked=is_linked))

    async def apply(self, physical: str, change: Change) -> None:
        """Apply one change after checking the collection. For a move of an alias, the alias is checked too.

        The metadata read for the alias is its current target's.
        """
        await self._reach.check(physical)
        if isinstance(change, SetAlias):
            await self._reach.check(change.alias)
        async with self._reserve_for(physical, change):
            await self._store.apply(physical, change)
        if isinstance(change, CreateCollection):
            self._reach.created.add(physical)

    def _reserve_for(self, physical: str, change: Change) -> AbstractAsyncContextManager[None]:
        match change:
            case CreateCollection():
                return self._reach.reserve_capacity(DEFAULT_NEED)
            # Reserve nothing for a collection that this use has created: its capacity includes the indexes.
            case CreateIndexes() if physical not in self._reach.created:
                return self._reach.reserve_capacity(need_of_indexes(len(change.indexes)))
        return nullcontext()

    async def delete(self, physical: str) -> None:
        """Delete the collection. A later collection of the same name does not count as recovered by this process."""
        await self._reach.check(physical)
        await self._store.delete(physical)
        self._reach.recovered.discard(physical)


class _Snapshots(_Guarded):
    """Implements ports.SnapshotStore."""

    CHECKED = frozenset({"create", "files", "write_metadata"})
    _store: SnapshotStore

    @asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content of a snapshot file, after checking its name and its collection."""
        await self._check_file(physical, name)
        async with self._store.download(physical, name) as content:
            yield content

    async def delete_file(self, physical: str, name: str) -> None:
        await self._check_file(physical, name)
        await self._store.delete_file(physical, name)

    async def own_location(self, physical: str, name: str) -> str:
        """Return the location of a snapshot after checking its name and its collection, and allow it for `recover`."""
        await self._check_file(physical, name)
        location = await self._store.own_location(physical, name)
        self._reach.allow_location(location)
        return location

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        self._reach.check_location(location)
        async with self._reach.allow_recovery(physical):
            await self._store.recover(physical, location, sha256=sha256)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        async with self._reach.allow_recovery(physical):
            await self._store.upload(physical, content, sha256=sha256)

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Create a placeholder with its owner. None is the tenant of this use."""
        await self._reach.check(physical)
        await self._store.create_placeholder(physical, owner or await self._reach.tenant())

    async def metadata(self, physical: str) -> Json | None:
        """Read a collection's metadata; None if it does not exist.

        If only its name allows the collection, the caller must check the owner.
        """
        if not self._reach.is_allowed_by_name(physical):
            await self._reach.check(physical)
        return await self._store.metadata(physical)

    async def _check_file(self, physical: str, name: str) -> None:
        self._reach.check_file(physical, name)
        await self._reach.check(physical)


class _Points(ForwardingPoints):
    """Implements ports.PointStore."""

    def __init__(self, store: PointStore, authorizer: CollectionAuthorizer) -> None:
        self._store = store
        self._reach = authorizer

    async def close(self) -> None:
        await self._store.close()

    async def read(self, call: PointCall[T]) -> T:
        """Make a call after checking its collection."""
        await self._reach.check(call.collection)
        return await call.make(self._store)

    write = read


def guarded_collections(store: CollectionStore, authorizer: CollectionAuthorizer) -> CollectionStore:
    """Wrap a store: every call that names a collection first checks it, with the errors of `authorizer.check`."""
    return cast("CollectionStore", _Collections(store, authorizer))


def guarded_snapshots(store: SnapshotStore, authorizer: CollectionAuthorizer) -> SnapshotStore:
    """Wrap a store: every call that names a collection or file first checks it, with the errors of `authorizer`."""
    return cast("SnapshotStore", _Snapshots(store, authorizer))


def guarded_points(store: PointStore, authorizer: CollectionAuthorizer) -> PointStore:
    """Wrap a store: every call except `close` first checks its collection, with the errors of `authorizer.check`."""
    return _Points(store, authorizer)
