"""What a restore made and did not bring to life goes again; what an alias leads to stays."""

import logging
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.collections.announce import release_writers
from agentmemory_operator.collections.previous import live_behind
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import NotOwned
from agentmemory_operator.restores.in_place import InPlace
from agentmemory_operator.restores.job import RestoreJob, alias_behind
from agentmemory_operator.restores.reach import is_made_by_swap
from agentmemory_operator.runtime.cache import ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreRemoval:
    """Removes what restores have made that failed, are not wanted, or were given up.

    Attributes:
        in_place: puts the collection back where one restored into it.
    """

    table: ObjectTable
    servers: Servers
    in_place: InPlace

    async def clean(self, job: RestoreJob) -> None:
        """Remove what a restore made and did not bring to life."""
        physical, connection = job.physical, job.connection
        if physical is None or connection is None:
            return
        work = partial(self.in_place.undo, job) if job.is_in_place else partial(self._remove, job, physical)
        try:
            await self.servers.use(connection, work, namespace=job.key.namespace)
        except NotOwned as exc:
            # Nothing of it is ours to put right.
            await job.post_event("Warning", "CollectionKept", str(exc))

    async def remove_abandoned(self, job: RestoreJob, server: Server) -> None:
        """Remove what recoveries have made of which nobody saw the end, but for what an alias leads to."""
        there = set(await server.snapshots.collections())
        for name in there.intersection(job.abandoned):
            try:
                await self._remove(job, name, server)
            except NotOwned as exc:
                log.warning("not deleting %s: %s", job.key, exc)

    async def _remove(self, job: RestoreJob, physical: str, server: Server) -> None:
        document = self.table.get(job.target_key)
        if not is_made_by_swap(physical, slug_of(document) if document else None):
            raise NotOwned(
                Reason.COLLECTION_NOT_OWNED,
                f"{physical[:120]!r} is not a name that this restore chose: it is not touched",
            )
        live = await live_behind(server, alias_behind(physical), job.previous)
        if live is None or live.physical != physical:
            await server.collections.delete(physical)
        if live is not None and live.physical != physical:
            await release_writers(server, live.physical)
