"""Which collections and files of a server the work for one namespace may touch, whoever named them.

A status, an annotation or a collection's metadata may name anything: tenants write to them too. So every name is judged
where it is used, right before the call:

| the name is | and the collection | is used |
|---|---|---|
| of a slug that the namespace has claimed | is not there, or names no owner | yes |
| of such a slug, or of one that nobody has claimed | names this cluster and the namespace as its owner | yes |
| of no slug (adopted behind an alias) | names this cluster and the namespace as its owner | yes |
| of no slug, and an alias of the namespace's leads to it | names no owner | yes |
| any | was given by the operator's own code in this use (`grant`), or recovered by this process | yes |
| any other | | no; of a slug that nobody has claimed: not before the claims are known |

`connections/guarded_stores.py` asks here before each call. An operator's sweep over a whole server asks for nobody, and
goes by what lies on the server alone: `Servers.survey`.
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


@dataclass(frozen=True, slots=True)
class Marks:
    """How a server's collections say whose they are.

    Attributes:
        read: returns a collection's metadata, None where it does not exist.
        cluster_id: asks which cluster this is.
    """

    read: Callable[[str], Awaitable[Json | None]]
    cluster_id: Callable[[], Awaitable[str]]


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
        return name in self._known or self.is_named_so(name)

    async def check(self, name: str) -> None:
        """Pass if the collection of a name may be used; what was judged in this use is not judged again.

        Raises:
            NotOwned: it may not; nothing was done with it.
            StoreUnavailable: whose it is is not known yet.
        """
        if name in self._known:
            return
        if not is_collection_name(name):
            raise self._refused(name)
        if not await self._may_use(name):
            slug = slug_in(name)
            if slug and self.namespace_of(slug) is None and not self.is_settled():
                raise StoreUnavailable(f"the namespace of agent {slug} is not known yet; retrying")
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
        """
        if observed is None or self.is_known(observed.physical):
            return observed
        if not (observed.is_aliased and observed.physical != alias):
            marker = observed.collection.marker
            if slug_in(observed.physical) or marker is None or marker.namespace != self.namespace:
                return None
        self.link(observed.physical)
        return observed

    async def _may_use(self, name: str) -> bool:
        is_ours = self.is_named_so(name)
        if self.marks is None:
            return is_ours or name in self._linked
        if name in self.made:
            return True
        metadata = await self.marks.read(name)
        if metadata is None:
            return is_ours
        if is_unowned(metadata):
            return is_ours or name in self._linked
        slug = slug_in(name)
        is_free = slug is None or self.namespace_of(slug) in (None, self.namespace)
        return is_free and tenant_in(metadata) == await self.tenant()

    def _refused(self, name: str) -> NotOwned:
        return NotOwned(
            Reason.COLLECTION_NOT_OWNED,
            f"{_shown(name)} is not a collection of an agent in namespace {self.namespace}, or belongs to another "
            f"owner; it was not touched: {_WAY}",
        )


_WAY = "a status names it that only the operator may write. Delete the object and create it under another name"


def _shown(name: object) -> str:
    return repr(name)[:SHOWN]
