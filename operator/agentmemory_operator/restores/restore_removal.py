"""Remove the collections that restores created but did not make live. A collection behind an alias is kept."""

import logging
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.collections.announce import release_writers
from agentmemory_operator.collections.replaced_collection import find_live
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import NotOwned
from agentmemory_operator.restores.in_place import InPlaceRestore
from agentmemory_operator.restores.job import RestoreJob, alias_in_name
from agentmemory_operator.restores.restore_targets import is_swap_name
from agentmemory_operator.runtime.object_table import ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreRemoval:
    """Removes the collections of restores that failed, were deleted, or abandoned a recovery.

    Attributes:
        in_place: Undoes restores in place.
    """

    table: ObjectTable
    servers: Servers
    in_place: InPlaceRestore

    async def clean(self, job: RestoreJob) -> None:
        """Undo a restore in place, or remove the collection that a swap created but did not make live.

        Does nothing before the start of the restore. If the collection belongs to another owner, only an event is
        posted.

        Raises:
            SpecInvalid: If the connection or the safety snapshot of a restore in place cannot be used.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If the call must be repeated.
        """
        physical, connection = job.physical, job.connection
        if physical is None or connection is None:
            return
        operation = partial(self.in_place.undo, job) if job.is_in_place else partial(self._remove, job, physical)
        try:
            await self.servers.use(connection, operation, namespace=job.key.namespace)
        except NotOwned as exc:
            # The operator recovers nothing into another owner's collection, so there is nothing to undo.
            await job.post_event("Warning", "CollectionKept", str(exc))

    async def remove_abandoned(self, job: RestoreJob, server: Server) -> None:
        """Remove the existing collections of abandoned recoveries, except live ones and those of other owners.

        Raises:
            TransientError: If the call must be repeated.
        """
        existing = set(await server.snapshots.collections())
        for name in existing.intersection(job.abandoned):
            try:
                await self._remove(job, name, server)
            except NotOwned as exc:
                log.warning("%s: not deleting %s: %s", job.key, name, exc)

    async def _remove(self, job: RestoreJob, physical: str, server: Server) -> None:
        document = self.table.get(job.target_key)
        if not is_swap_name(physical, slug_of(document) if document else None):
            raise NotOwned(
                Reason.COLLECTION_NOT_OWNED,
                f"{physical[:120]!r} is not a name that this restore chose: it is not touched",
            )
        live = await find_live(server, alias_in_name(physical), job.previous)
        if live is None or live.physical != physical:
            await server.collections.delete(physical)
        if live is not None and live.physical != physical:
            await release_writers(server, live.physical)
