"""The nodes of a Qdrant cluster: what each has of a collection's shards, and the snapshots of those."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.replicas import states_of
from agentmemory_operator.adapters.qdrant.snapshots import PRIORITY, read_file, recovery_errors, upload_file
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import ShardFile, SnapshotFile

ACTIVE, INITIALIZING = "Active", "Initializing"
# Between two looks at replicas, between the first looks at what nodes know, and until when those are waited for that
# have not heard of a change (docs/adr/0021).
LOOK_S, FIRST_LOOK_S, AGREE_S = 0.25, 0.02, 10.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one node says of a collection's shards.

    Attributes:
        local: shard -> state of the node's own replica.
        states: of every replica, by shard.
        transfers: how many shards are being moved or copied.
    """

    local: Mapping[int, str]
    states: Mapping[int, tuple[str, ...]]
    transfers: int


class QdrantNode:
    """One node of a cluster.

    Args:
        qdrant: the client of this node, of no other.
    """

    def __init__(self, qdrant: QdrantControl) -> None:
        self.qdrant = qdrant
        self.metadata = qdrant.metadata

    async def peer(self) -> int | None:
        """Its number in the cluster; None of a server that is alone."""
        told = await result_of(self.qdrant.cluster.cluster_status())
        with understood():
            number = told.get("peer_id")
            return None if number is None else int(number)

    async def view(self, physical: str) -> NodeView:
        """What it says of a collection's shards.

        Raises:
            NotFound: it knows no such collection.
        """
        told = await result_of(self.qdrant.cluster.collection_cluster_info(physical))
        with understood():
            return _view(told)

    async def create(self, physical: str, shard: int) -> SnapshotFile:
        """Make a snapshot of its replica of a shard."""
        told = await result_of(self.qdrant.snapshots.create_shard_snapshot(physical, shard, wait=True))
        with understood():
            return read_file(told)

    async def files(self, physical: str, shard: int) -> list[SnapshotFile]:
        """The snapshots that it has of a shard; none where it has no replica any more."""
        try:
            told = await result_of(self.qdrant.snapshots.list_shard_snapshots(physical, shard))
        except (NotFound, StoreRejected) as exc:
            if _is_elsewhere(exc):
                return []
            raise
        with understood():
            return [read_file(each) for each in told]

    async def delete(self, physical: str, shard: int, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        try:
            await self.qdrant.snapshots.delete_shard_snapshot(physical, shard, name, wait=True)
        except (NotFound, StoreRejected) as exc:
            if not _is_elsewhere(exc):
                raise

    def download(self, physical: str, file: ShardFile) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes."""
        return self.qdrant.download(_file(physical, file))

    def location(self, physical: str, file: ShardFile) -> str:
        """The URL under which the other nodes reach a snapshot of this one."""
        return self.qdrant.url + _file(physical, file)

    async def recover(self, physical: str, shard: int, location: str, *, sha256: str | None) -> None:
        """Have it fetch a shard's snapshot and put it in the place of its replica."""
        source = models.ShardSnapshotRecover(
            location=location, priority=PRIORITY, checksum=sha256, api_key=self.qdrant.api_key
        )
        recover = self.qdrant.snapshots.recover_shard_from_snapshot
        with recovery_errors():
            await recover(physical, shard, wait=True, shard_snapshot_recover=source)

    async def upload(self, physical: str, shard: int, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send it a shard's snapshot, which it puts in the place of its replica."""
        await upload_file(self.qdrant, _shard(physical, shard), content, sha256=sha256)


async def views_of(nodes: Iterable[QdrantNode], physical: str) -> list[tuple[QdrantNode, NodeView]]:
    """What each node that can be reached says of a collection.

    Raises:
        NotFound: none of them knows such a collection.
        StoreUnavailable: some do and others do not, or none can be reached.
    """
    asked = list(nodes)
    told = await asyncio.gather(*(node.view(physical) for node in asked), return_exceptions=True)
    found = [(node, view) for node, view in zip(asked, told, strict=True) if isinstance(view, NodeView)]
    failures = [each for each in told if isinstance(each, BaseException)]
    for failure in failures:
        if not isinstance(failure, StoreUnavailable | NotFound):
            raise failure
    missing = [each for each in failures if isinstance(each, NotFound)]
    if missing and not found:
        raise missing[0]
    if missing:
        raise StoreUnavailable(f"{len(missing)} nodes of the cluster do not have {physical} yet")
    if not found:
        raise failures[0] if failures else StoreUnavailable("no node of the cluster is reachable")
    return found


async def settled_views(
    nodes: Iterable[QdrantNode], physical: str, *, within_s: float = AGREE_S
) -> list[tuple[QdrantNode, NodeView]]:
    """What each node that can be reached says of a collection once all of them know it, or none does.

    Raises:
        NotFound: none of them knows such a collection.
        StoreUnavailable: they do not agree in time, or none can be reached.
    """
    asked = list(nodes)
    async for _ in looks(within_s):
        with suppress(StoreUnavailable):
            return await views_of(asked, physical)
    return await views_of(asked, physical)


async def looks(within_s: float) -> AsyncIterator[None]:
    """Yield when it is time to look at what nodes know: soon at first, then less and less often, at least once."""
    loop, pause_s = asyncio.get_running_loop(), FIRST_LOOK_S
    ends_s = loop.time() + within_s
    yield
    while loop.time() < ends_s:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
        yield


async def metadata_of_most(nodes: Iterable[QdrantNode], physical: str) -> list[Json | None]:
    """What each node that can be reached knows of a collection's metadata, None of one that knows none.

    Raises:
        StoreUnavailable: fewer than most of the nodes can be reached: what they lack, others may have.
    """
    asked = list(nodes)
    told = await asyncio.gather(*(node.metadata(physical) for node in asked), return_exceptions=True)
    for each in told:
        if isinstance(each, BaseException) and not isinstance(each, StoreUnavailable):
            raise each
    found = [each for each in told if not isinstance(each, BaseException)]
    if not is_most(len(found), len(asked)):
        raise StoreUnavailable(
            f"{len(found)} of {len(asked)} nodes of the cluster are reachable: a majority is required"
        )
    return found


async def await_known(
    nodes: Iterable[QdrantNode], physical: str, wanted: Mapping[str, Any], *, within_s: float = AGREE_S
) -> None:
    """Wait until every node that can be reached knows something of a collection's metadata; late, most are enough.

    Args:
        wanted: key -> value; a key that is None is not there.

    Raises:
        StoreUnavailable: most nodes do not know it in time.
    """
    asked, knowing = list(nodes), 0
    async for _ in looks(within_s):
        found = await metadata_of_most(asked, physical)
        knowing = sum(all((each or {}).get(key) == value for key, value in wanted.items()) for each in found)
        if knowing == len(found):
            return
    if is_most(knowing, len(asked)):
        return
    told = f"{knowing} of {len(asked)} nodes of the cluster have the write to {physical}"
    raise StoreUnavailable(f"{told}: a majority is required")


def is_most(some: int, of: int) -> bool:
    """Whether so many are most of the nodes."""
    return some * 2 > of


def _is_elsewhere(exc: NotFound | StoreRejected) -> bool:
    """Whether the node has no such file or, which it answers with 400, no replica of the shard any more."""
    return isinstance(exc, NotFound) or exc.status == 400


def _view(told: Mapping[str, Any]) -> NodeView:
    own, shards = int(told["peer_id"]), states_of(told)
    local = {shard: states[own] for shard, states in shards.items() if own in states}
    states = {shard: tuple(states.values()) for shard, states in shards.items()}
    return NodeView(local, states, len(told.get("shard_transfers") or ()))


def _shard(physical: str, shard: int) -> str:
    return f"/collections/{quote(physical, safe='')}/shards/{shard}/snapshots"


def _file(physical: str, file: ShardFile) -> str:
    return f"{_shard(physical, file.shard)}/{quote(file.name, safe='')}"
