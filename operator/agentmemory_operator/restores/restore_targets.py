"""Check which collections a restore may use. Every pass checks again, because tenants can write the restore's status.

The new collection of a swap must not be the collection behind the agent's alias. This is checked before each call that
would replace the new collection.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from agentmemory_operator.collections.replaced_collection import alias_points_to, find_live
from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    Collection,
    Marker,
    Observation,
    marker_from_json,
)
from agentmemory_operator.collections.rules.refusals import check_ownership
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.connections.guarded_stores import CheckedStore
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import CollectionUnavailable, NotOwned, StoreRejected
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.restores.job import RestoreJob, alias_in_name
from agentmemory_operator.restores.rules.swap_checks import check_origin
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of, find_slug, number_of

log = logging.getLogger(__name__)


async def read_own_live(
    server: Server, memory: AgentMemory, desired: Collection, *, takeover: TakeoverTerms
) -> Observation | None:
    """Return the collection behind the alias of the AgentMemory to restore into, or None if there is none.

    In a takeover, the collection and the alias are granted to `server`.

    Args:
        takeover: Terms under which the AgentMemory may take over another owner's collection.

    Raises:
        NotOwned: If the collection belongs to another object.
    """
    alias, expected = alias_of(memory.slug), memory.reported_physical
    live = await find_live(server, alias, expected)
    old_owner = check_ownership(live, desired, takeover=takeover)
    if live is not None and old_owner is not None:
        # In a takeover, grant the other owner's collection. The next pass over the object writes its own marker.
        server.grant(live.physical)
        server.grant(alias)
    return live


async def may_use_target(job: RestoreJob, server: Server, own: Marker, *, takeover: TakeoverTerms) -> bool:
    """Return whether a restore may use the collection name in its status. If not, a swap must choose another name.

    The name may be free, or belong to a copy that a killed operator recovered. Until step Claim such a copy has the
    marker of its original owner, so any marker is accepted that this restore accepts in its source. Such a collection
    is granted to `server`.

    Args:
        own: Marker of the AgentMemory to restore into.
        takeover: Terms under which the restore may use another owner's snapshot.

    Raises:
        NotOwned: If the collection belongs to another owner, and the restore is in place or the name is not one that a
            swap could have chosen.
    """
    physical = str(job.physical)
    if await server.may_use(physical):
        return True
    try:
        marker = _marker_in(await server.snapshots.metadata(physical))
        check_origin(marker, own, is_from_snapshot_object=False, takeover=takeover)
    except NotOwned:
        if job.is_in_place or not is_swap_name(physical, takeover.agent):
            raise
        log.warning("%s: %s belongs to another owner and is not touched: using another name", job.key, physical)
        return False
    server.grant(physical)
    return True


def is_swap_name(physical: str, target: str | None) -> bool:
    """Return whether a swap could have chosen a name: the target's alias with a number.

    Args:
        target: Slug of the agent to restore into; None if it was deleted.
    """
    slug = find_slug(physical)
    return slug is not None and target in (None, slug) and number_of(physical, alias_of(slug)) is not None


def _marker_in(metadata: Json | None) -> Marker | None:
    stored = (metadata or {}).get(METADATA_KEY)
    try:
        return marker_from_json(stored) if isinstance(stored, Mapping) else None
    except CollectionUnavailable:
        # A malformed marker counts as that of an unknown owner: no agent may use the collection.
        return marker_from_json({})


class _NewCollections(CheckedStore):
    PASSED = frozenset(
        {
            *(
                "close",
                "server",
                "process",
                "read_owner",
                "target",
                "observe",
                "names",
                "list_agent_collections",
                "apply",
            ),
            *("drop_index", "placement", "peers", "move_replica", "count", "count_memories", "count_unlisted"),
            *("count_sealed_before", "content_lengths"),
        }
    )
    CHECKED = frozenset({"delete"})


class _NewSnapshots(CheckedStore):
    PASSED = frozenset(
        {
            *("close", "create", "files", "download", "delete_file", "own_location", "collections"),
            *("create_placeholder", "metadata", "write_metadata"),
        }
    )
    CHECKED = frozenset({"recover", "upload"})


def guard_live_collections(server: Server) -> Server:
    """Return the server with stores that raise StoreRejected if a call would delete or overwrite a live collection.

    A numbered collection is live if the alias in its name points to it.
    """

    async def check(physical: str) -> None:
        alias = alias_in_name(physical)
        if await alias_points_to(server, alias, physical):
            remedy = "only a MemoryRestore with mode InPlace replaces a live collection"
            raise StoreRejected(409, f"{alias} points to {physical}: {remedy}")

    return replace(
        server,
        collections=cast(CollectionStore, _NewCollections(server.collections, check)),
        snapshots=cast(SnapshotStore, _NewSnapshots(server.snapshots, check)),
    )
