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
| 4 | this process recovered a snapshot into it | not read | allow |
| 5 | slug claimed by this namespace | no collection | allow |
| 6 | slug claimed by this namespace, and an alias of a collection that has another slug | no owner | NotOwned |
| 7 | slug claimed by this namespace | no owner | allow |
| 8 | no slug, and the target of an alias of this namespace | no owner | allow |
| 9 | no slug, or slug not claimed by another namespace | this cluster and namespace | allow |
| 10 | slug without a claim, while claims are incomplete | any other | StoreUnavailable: retry |
| 11 | any other | any other | NotOwned |

Row 1 is checked again after the metadata was read: a claim may be recorded in the meantime. So no namespace uses a
collection whose slug is claimed by another one, whatever the metadata, an alias or an earlier decision allows.

Without `marks` the caller checks the owner and metadata is not read. Rows 1 to 3, 10 and 11 apply as above. In between,
the name is allowed if the namespace has claimed its slug, or if it is the target of an alias of the namespace and its
slug, if any, may not be claimed by another one. A sweep over a whole server uses no `Reach`: `Servers.survey`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.capacity import USUAL, Need
from agentmemory_operator.collections.rules.collection import Observed, Tenant, is_unowned, tenant_in
from agentmemory_operator.errors import NotOwned, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import is_collection_name, is_file_of, slug_in

SHOWN = 120
"""Characters of a name that a message repeats."""


async def itself(name: str) -> str:
    """Return the name: nothing is an alias."""
    return name


@dataclass(frozen=True, slots=True)
class Marks:
    """How a server's collections say whose they are.

    Attributes:
        read: returns a collection's metadata, None where it does not exist.
        cluster_id: asks which cluster this is.
        target: returns the collection that an alias points to; any other name is its own. Default: no aliases.
    """

    read: Callable[[str], Awaitable[Json | None]]
    cluster_id: Callable[[], Awaitable[str]]
    target: Callable[[str], Awaitable[str]] = itself


@dataclass(slots=True, kw_only=True)
class Reach:
    """What the work for one namespace may touch on one server; made anew for each use of it.

    Attributes:
        namespace_of: who has claimed a slug, None where nobody has.
        is_settled: tells whether all claims are known, so that a slug without one is nobody's.
        marks: None where whoever uses the store judges the owner of what it observes, as a pass does: then a name is
            judged alone.
        made: names that this process has recovered snapshots into, which may say anything of their owner until that is
            judged; outlives the use.
        making: entered while another collection is made on the server, or one gets more indexes; raises where
            that has no room.
        new: collections that were made in this use.
    """

    namespace: str
    namespace_of: Callable[[str], str | None]
    is_settled: Callable[[], bool]
    marks: Marks | None = None
    made: set[str] = field(default_factory=set)
    making: Callable[[Need], AbstractAsyncContextManager[None]] = lambda need: nullcontext()
    new: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)
    _linked: set[str] = field(default_factory=set)
    _locations: set[str] = field(default_factory=set)

    def grant(self, name: str) -> None:
        """Let a name be used that the operator's own code has chosen, or whose owner it has judged itself."""
        self._known.add(name)

    def link(self, name: str) -> None:
        """Note that an alias of the namespace's leads to a collection."""
        self._linked.add(name)

    def is_named_so(self, name: str) -> bool:
        """Whether a name is of a slug that the namespace has claimed."""
        slug = slug_in(name) if is_collection_name(name) else None
        return slug is not None and self.namespace_of(slug) == self.namespace

    def is_known(self, name: str) -> bool:
        """Whether a name needs no look at the server: it was judged, or is the namespace's own."""
        return self.is_named_so(name) or (name in self._known and not self._is_anothers(name))

    async def check(self, name: str) -> None:
        """Pass if the collection of a name may be used; what was judged in this use is not judged again.

        Raises:
            NotOwned: it may not; nothing was done with it.
            StoreUnavailable: whose it is is not known yet.
        """
        if name not in self._known and not is_collection_name(name):
            raise self._refused(name)
        if self._is_anothers(name):
            raise self._refused(name)
        if name in self._known:
            return
        is_allowed = await self._may_use(name)
        if self._is_anothers(name):
            raise self._refused(name)
        if not is_allowed:
            if self._is_open(name):
                raise StoreUnavailable(f"the namespace of agent {slug_in(name)} is not known yet; retrying")
            raise self._refused(name)
        self._known.add(name)

    async def tenant(self) -> Tenant | None:
        """Who a placeholder is made for; None where nobody asks."""
        return Tenant(await self.marks.cluster_id(), self.namespace) if self.marks else None

    def check_file(self, physical: str, name: str) -> None:
        """Pass if a file's name is one that a collection's snapshots have.

        Raises:
            NotOwned: it is not; nothing was done with it.
        """
        if not is_file_of(physical, name):
            raise NotOwned(
                Reason.SNAPSHOT_NOT_OWNED,
                f"{_shown(name)} is not the name of a snapshot of {_shown(physical)}; it was not touched: {_WAY}",
            )

    def tell_location(self, location: str) -> None:
        """Note the location of a file that may be used."""
        self._locations.add(location)

    def check_location(self, location: str) -> None:
        """Pass if a location was asked for in this use: what a server fetches by itself is named by nobody else.

        Raises:
            NotOwned: it was not.
        """
        if location not in self._locations:
            raise NotOwned(Reason.SNAPSHOT_NOT_OWNED, f"{_shown(location)} is not a requested file: {_WAY}")

    @asynccontextmanager
    async def recovering(self, name: str) -> AsyncIterator[None]:
        """Let a snapshot be recovered into a name; what it makes there is used until its owner is judged.

        What is there is replaced whatever room there is: it may be how an agent comes back.

        Raises:
            NotOwned: it may not.
            ServerFullForNow: nothing is there, and the server has no room for it.
        """
        await self.check(name)
        if self.marks is None or await self.marks.read(name) is not None:
            yield
            return
        async with self.making(USUAL):
            self.made.add(name)
            yield

    def seen(self, alias: str, observed: Observed | None) -> Observed | None:
        """What is to be seen of a collection that was looked for by an alias, None where that is nothing.

        What lies behind the alias is told with its marker, by which others judge it. What has no alias was looked for
        because a status says so: it is nothing unless its name, or for want of a slug in it its marker, says the same.

        Raises:
            NotOwned: the alias points to a collection without a marker, whose name is another agent's.
        """
        if observed is None or self.is_known(observed.physical):
            return observed
        if observed.is_aliased and observed.collection.marker is None and slug_in(observed.physical):
            raise NotOwned(
                Reason.COLLECTION_NOT_OWNED,
                f"the alias {_shown(alias)} points to {_shown(observed.physical)}, which has no owner and the name of "
                f"another agent's collection; it was not touched: delete the alias, or point it to a collection of "
                f"this agent",
            )
        if not (observed.is_aliased and observed.physical != alias):
            marker = observed.collection.marker
            if slug_in(observed.physical) or marker is None or marker.namespace != self.namespace:
                return None
        self.link(observed.physical)
        return observed

    def _is_anothers(self, name: str) -> bool:
        """Return whether another namespace has claimed the slug of a name."""
        slug = slug_in(name) if is_collection_name(name) else None
        return slug is not None and self.namespace_of(slug) not in (None, self.namespace)

    def _is_open(self, name: str) -> bool:
        """Return whether the slug of a name may still turn out to be claimed by another namespace."""
        slug = slug_in(name)
        return slug is not None and self.namespace_of(slug) is None and not self.is_settled()

    async def _may_use(self, name: str) -> bool:
        """Apply rows 4 to 9 of the module's table."""
        is_ours = self.is_named_so(name)
        if self.marks is None:
            return is_ours or (name in self._linked and not self._is_open(name))
        if name in self.made:
            return True
        metadata = await self.marks.read(name)
        if metadata is None:
            return is_ours
        if is_unowned(metadata):
            return await self._has_own_target(name) if is_ours else name in self._linked and slug_in(name) is None
        return tenant_in(metadata) == await self.tenant()

    async def _has_own_target(self, name: str) -> bool:
        """Return whether a name of the namespace's reaches a collection without a slug, or with one of its own."""
        target = await self.marks.target(name) if self.marks else name
        return target == name or slug_in(target) is None or self.is_named_so(target)

    def _refused(self, name: str) -> NotOwned:
        return NotOwned(
            Reason.COLLECTION_NOT_OWNED,
            f"{_shown(name)} is not a collection of an agent in namespace {self.namespace}, or belongs to another "
            f"owner; it was not touched: {_WAY}",
        )


_WAY = "a status names it that only the operator may write. Delete the object and create it under another name"


def _shown(name: object) -> str:
    return repr(name)[:SHOWN]
