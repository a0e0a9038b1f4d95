"""Decide which collections and files of a Qdrant server the work for one namespace may use.

Threat: tenants can write statuses, annotations and, with snapshots of their own, collection metadata, so a name found
there proves nothing. Aliases prove little: anyone who may write to the server can create one. Therefore
`connections/guarded_stores.py` checks every name right before the call that uses it.

- *slug*: the agent part of a collection name, `agent_memory_<slug>` or `agent_memory_<slug>__<number>`.
- *claim*: the record of the namespace that a slug belongs to. Tenants cannot write claims.
- *owner*: the cluster and namespace in the marker of the collection's metadata.

The first row that matches decides:

| | collection name | owner in the metadata | decision |
|---|---|---|---|
| 1 | slug claimed by another namespace | not read | NotOwned |
| 2 | granted by operator code (`grant`), or allowed earlier in this use | not read | allow |
| 3 | not a valid collection name | not read | NotOwned |
| 4 | missing until this process recovered a snapshot into it | not read | allow |
| 5 | slug claimed by this namespace | no collection | allow |
| 6 | slug claimed by this namespace; alias of a collection with a slug that it has not claimed | no owner | NotOwned |
| 7 | slug claimed by this namespace | no owner | allow |
| 8 | no slug, and the target of an alias of this namespace | no owner | allow |
| 9 | no slug, or slug not claimed by another namespace | this cluster and namespace | allow |
| 10 | slug without a claim, while claims are incomplete | any other | StoreUnavailable: retry |
| 11 | any other | any other | NotOwned |

Row 1 is checked again after the metadata was read: a claim may be recorded in the meantime. So no namespace uses a
collection whose slug another namespace has claimed, whatever the metadata, an alias or an earlier decision allows.

Without `ownership` the caller checks the owner and metadata is not read. Rows 1 to 3, 10 and 11 apply as above. In
between, two more names are allowed: those whose slug the namespace has claimed, and targets of its aliases. The slug of
such a target, if any, must not be one that another namespace may still claim. A sweep over a whole server uses no
`CollectionAuthorizer`: `Servers.survey`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.capacity import DEFAULT_NEED, MapDemand
from agentmemory_operator.collections.rules.collection import Observation, Tenant, is_unowned, read_tenant
from agentmemory_operator.errors import NotOwned, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import find_slug, is_collection_name, is_snapshot_file_of

MAX_QUOTED_CHARS = 120
"""Maximum number of characters of a name that a message quotes."""


async def no_alias(name: str) -> str:
    """Return the name unchanged, as the default of `OwnershipReader.target` without aliases."""
    return name


@dataclass(frozen=True, slots=True)
class OwnershipReader:
    """Access to the owners and aliases of a server's collections.

    Attributes:
        read_metadata: Returns a collection's metadata, or None if it does not exist.
        cluster_id: Returns the ID of this cluster.
        target: Returns the collection that an alias points to, and any other name unchanged. Default: no aliases.
    """

    read_metadata: Callable[[str], Awaitable[Json | None]]
    cluster_id: Callable[[], Awaitable[str]]
    target: Callable[[str], Awaitable[str]] = no_alias


@dataclass(slots=True, kw_only=True)
class CollectionAuthorizer:
    """Allows or refuses each collection that the work for one namespace names. One instance per use of a server.

    Attributes:
        namespace_of: Returns the namespace that has claimed a slug, or None.
        are_claims_complete: Returns whether all claims are known; until then a slug without a claim may have an owner.
        ownership: Reads owners. None if the caller checks the owner of each collection itself, as a reconcile pass
            does.
        recovered: Collections that did not exist until this process recovered snapshots into them. Their metadata comes
            from the snapshot and may name any owner. Shared by all uses of the server for the namespace.
        reserve_capacity: Returns the context in which a collection or an index is created. Entering the context raises
            ServerFullRetryable if the server has no capacity.
        created: Collections that this use has created.
    """

    namespace: str
    namespace_of: Callable[[str], str | None]
    are_claims_complete: Callable[[], bool]
    ownership: OwnershipReader | None = None
    recovered: set[str] = field(default_factory=set)
    reserve_capacity: Callable[[MapDemand], AbstractAsyncContextManager[None]] = lambda need: nullcontext()
    created: set[str] = field(default_factory=set)
    _allowed: set[str] = field(default_factory=set)
    _alias_targets: set[str] = field(default_factory=set)
    _locations: set[str] = field(default_factory=set)

    def grant(self, name: str) -> None:
        """Allow a name that operator code has chosen, or whose owner it has checked."""
        self._allowed.add(name)

    def note_alias_target(self, name: str) -> None:
        """Record that an alias of the namespace points to a collection."""
        self._alias_targets.add(name)

    def has_claimed(self, name: str) -> bool:
        """Return whether the namespace has claimed the slug of a name. False for a name without a slug."""
        slug = find_slug(name) if is_collection_name(name) else None
        return slug is not None and self.namespace_of(slug) == self.namespace

    def is_allowed_by_name(self, name: str) -> bool:
        """Return whether a name is allowed without reading its metadata: claimed, granted or allowed before.

        False if another namespace has claimed its slug in the meantime.
        """
        return self.has_claimed(name) or (name in self._allowed and not self._is_foreign(name))

    async def check(self, name: str) -> None:
        """Allow a collection for the rest of this use, or raise.

        Raises:
            NotOwned: If the table of the module refuses the name. Another namespace's claim of the slug takes
                precedence over any earlier decision. The collection was not changed.
            StoreUnavailable: If no row of the table allows the name, its slug has no claim, and not all claims are
                known yet.
            AgentMemoryError: Errors of `ownership`.
        """
        if name not in self._allowed and not is_collection_name(name):
            raise self._refused(name)
        if self._is_foreign(name):
            raise self._refused(name)
        if name in self._allowed:
            return
        is_allowed = await self._may_use(name)
        if self._is_foreign(name):
            raise self._refused(name)
        if not is_allowed:
            if self._may_be_foreign(name):
                raise StoreUnavailable(f"the namespace of agent {find_slug(name)} is not known yet; retrying")
            raise self._refused(name)
        self._allowed.add(name)

    async def tenant(self) -> Tenant | None:
        """Return the tenant for new placeholders, or None without `ownership`. Errors of `cluster_id` pass through."""
        return Tenant(await self.ownership.cluster_id(), self.namespace) if self.ownership else None

    def check_file(self, physical: str, name: str) -> None:
        """Raise unless a file name is one that snapshots of the collection have.

        Raises:
            NotOwned: If it is not; no file was touched.
        """
        if not is_snapshot_file_of(physical, name):
            raise NotOwned(
                Reason.SNAPSHOT_NOT_OWNED,
                f"{_shown(name)} is not the name of a snapshot of {_shown(physical)}; it was not touched: {_WAY}",
            )

    def allow_location(self, location: str) -> None:
        """Allow the location of a file for the rest of this use. The caller has called `check_file` for its name."""
        self._locations.add(location)

    def check_location(self, location: str) -> None:
        """Raise unless this use has allowed a location. The server fetches locations with its own rights.

        Raises:
            NotOwned: If it was not allowed.
        """
        if location not in self._locations:
            raise NotOwned(Reason.SNAPSHOT_NOT_OWNED, f"{_shown(location)} is not a requested file: {_WAY}")

    @asynccontextmanager
    async def allow_recovery(self, name: str) -> AsyncIterator[None]:
        """Allow the recovery of a snapshot into a collection.

        If the collection does not exist, capacity is reserved for it. Afterwards the namespace may use it, whatever
        owner the snapshot's metadata names. For an existing collection no capacity is needed, because the recovery may
        repair its agent. Without `ownership`, every collection counts as existing.

        Raises:
            NotOwned: If the namespace may not use the collection.
            StoreUnavailable: If the slug has no claim, and not all claims are known yet.
            ServerFullRetryable: If the collection does not exist and the server has no capacity for it.
            AgentMemoryError: Errors of `ownership`, and other errors of `reserve_capacity`.
        """
        await self.check(name)
        if self.ownership is None or await self.ownership.read_metadata(name) is not None:
            yield
            return
        async with self.reserve_capacity(DEFAULT_NEED):
            self.recovered.add(name)
            yield

    def filter_observed(self, alias: str, observed: Observation | None) -> Observation | None:
        """Return a collection that was observed by an alias, or None if it must be treated as missing.

        A collection behind the alias is returned with its marker, for the caller to check. A collection without an
        alias was read because a status names it. It counts only if the namespace has claimed its slug, or if it has no
        slug and its marker names the namespace. A returned collection whose name does not allow it is recorded as an
        alias target.

        Raises:
            NotOwned: If the alias points to a collection without a marker, whose slug the namespace has not claimed.
        """
        if observed is None or self.is_allowed_by_name(observed.physical):
            return observed
        if observed.is_aliased and observed.collection.marker is None and find_slug(observed.physical):
            raise NotOwned(
                Reason.COLLECTION_NOT_OWNED,
                f"the alias {_shown(alias)} points to {_shown(observed.physical)}, which has no owner and the name of "
                f"another agent's collection; it was not touched: delete the alias, or point it to a collection of "
                f"this agent",
            )
        if not (observed.is_aliased and observed.physical != alias):
            marker = observed.collection.marker
            if find_slug(observed.physical) or marker is None or marker.namespace != self.namespace:
                return None
        self.note_alias_target(observed.physical)
        return observed

    def _is_foreign(self, name: str) -> bool:
        """Return whether another namespace has claimed the slug of a name."""
        slug = find_slug(name) if is_collection_name(name) else None
        return slug is not None and self.namespace_of(slug) not in (None, self.namespace)

    def _may_be_foreign(self, name: str) -> bool:
        """Return whether the slug of a name may still turn out to be claimed by another namespace."""
        slug = find_slug(name)
        return slug is not None and self.namespace_of(slug) is None and not self.are_claims_complete()

    async def _may_use(self, name: str) -> bool:
        """Apply rows 4 to 9 of the module's table."""
        is_claimed = self.has_claimed(name)
        if self.ownership is None:
            return is_claimed or (name in self._alias_targets and not self._may_be_foreign(name))
        if name in self.recovered:
            return True
        metadata = await self.ownership.read_metadata(name)
        if metadata is None:
            return is_claimed
        if is_unowned(metadata):
            return (
                await self._has_own_target(name)
                if is_claimed
                else name in self._alias_targets and find_slug(name) is None
            )
        return read_tenant(metadata) == await self.tenant()

    async def _has_own_target(self, name: str) -> bool:
        """Return whether the target of a name has no slug, or one that the namespace has claimed."""
        target = await self.ownership.target(name) if self.ownership else name
        return target == name or find_slug(target) is None or self.has_claimed(target)

    def _refused(self, name: str) -> NotOwned:
        return NotOwned(
            Reason.COLLECTION_NOT_OWNED,
            f"{_shown(name)} is not a collection of an agent in namespace {self.namespace}, or belongs to another "
            f"owner; it was not touched: {_WAY}",
        )


_WAY = "a status names it that only the operator may write. Delete the object and create it under another name"


def _shown(name: object) -> str:
    return repr(name)[:MAX_QUOTED_CHARS]
