"""What a restore may go on with: looked at in every pass, since its status may say anything of how far it has come.

A new collection is never the one that an agent's alias leads to: checked before each call that would replace it.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from agentmemory_operator.collections.previous import leads_to, live_behind
from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    Collection,
    Marker,
    Observed,
    marker_from_json,
)
from agentmemory_operator.collections.rules.refusals import check_ownership
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.connections.guarded_stores import CheckedStore
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import NotOwned, StoreRejected
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.restores.job import RestoreJob, alias_behind
from agentmemory_operator.restores.rules.checks import check_origin
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of, number_of, slug_in

log = logging.getLogger(__name__)


async def own_live(
    server: Server, memory: AgentMemory, desired: Collection, *, takeover: TakeoverTerms
) -> Observed | None:
    """What the alias of a restore's target leads to.

    Args:
        takeover: what allows the target to take over another's.

    Raises:
        NotOwned: it is another object's.
    """
    alias, likely = alias_of(memory.slug), memory.told_physical
    live = await live_behind(server, alias, likely)
    taken_from = check_ownership(live, desired, takeover=takeover)
    if live is not None and taken_from is not None:
        # A pass over the object is about to write its own marker there.
        server.grant(live.physical)
        server.grant(alias)
    return live


async def may_go_on(job: RestoreJob, server: Server, ours: Marker, *, takeover: TakeoverTerms) -> bool:
    """Whether a restore may use what lies under its name, if anything does.

    A recovered copy says whose it was until it is claimed. One that a killed operator left is known by whether this
    restore could have made it. Another one stays as it is: a Swap takes another name.

    Args:
        takeover: what allows the restore to take another's snapshot.

    Raises:
        NotOwned: it is to be restored into, or its name is none of the agent's.
    """
    physical = str(job.physical)
    if await server.may_use(physical):
        return True
    try:
        found = _marker_in(await server.snapshots.metadata(physical))
        check_origin(found, ours, is_named=False, takeover=takeover)
    except NotOwned:
        if job.is_in_place or not is_made_by_swap(physical, takeover.agent):
            raise
        log.warning("%s: %s belongs to another owner and is not touched: using another name", job.key, physical)
        return False
    server.grant(physical)
    return True


def is_made_by_swap(physical: str, target: str | None) -> bool:
    """Whether a name is one that a Swap gives: of its target's alias, and numbered.

    Args:
        target: slug of the agent that it restores into, None where that is gone.
    """
    slug = slug_in(physical)
    return slug is not None and target in (None, slug) and number_of(physical, alias_of(slug)) is not None


def _marker_in(metadata: Json | None) -> Marker | None:
    told = (metadata or {}).get(METADATA_KEY)
    try:
        return marker_from_json(told) if isinstance(told, Mapping) else None
    except (TypeError, ValueError):
        # Whatever it is, it names nobody that may be asked for.
        return marker_from_json({})


class _NewCollections(CheckedStore):
    PASSED = frozenset(
        {
            *("close", "server", "process", "tenant_of", "target", "observe", "names", "holdings", "apply"),
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


def with_new_targets(server: Server) -> Server:
    """The server, of which no collection is deleted or recovered into while its agent's alias leads there."""

    async def check(physical: str) -> None:
        alias = alias_behind(physical)
        if await leads_to(server, alias, physical):
            way_out = "only a MemoryRestore with mode InPlace replaces a live collection"
            raise StoreRejected(409, f"{alias} points to {physical}: {way_out}")

    return replace(
        server,
        collections=cast(CollectionStore, _NewCollections(server.collections, check)),
        snapshots=cast(SnapshotStore, _NewSnapshots(server.snapshots, check)),
    )
