"""The nodes of a Qdrant cluster: what each has of a collection's shards, and the snapshots of those."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from agentmemory_operator.adapters.qdrant_snapshots import DEADLINE_S, PRIORITY, RECEIVED, read_file
from agentmemory_operator.adapters.qdrant_transport import QdrantTransport, understood
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports import Json
from agentmemory_operator.ports.snapshots import ShardFile, SnapshotFile

ACTIVE = "Active"


@dataclass(frozen=True, slots=True)
class View:
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
        url: http(s) address of this node, of no other.
        transport: to that address.
        deadline_s: of making and recovering a shard.
    """

    def __init__(
        self, url: str, transport: QdrantTransport, *, api_key: str | None, deadline_s: float = DEADLINE_S
    ) -> None:
        self.url = url.rstrip("/")
        self.transport = transport
        self._api_key = api_key
        self._deadline_s = deadline_s

    async def peer(self) -> int | None:
        """Return its number in the cluster; None of a server that is alone."""
        told = await self.transport.result("GET", "/cluster")
        with understood():
            number = told.get("peer_id")
            return None if number is None else int(number)

    async def view(self, physical: str) -> View:
        """Return what it says of a collection's shards.

        Raises:
            NotFound: it knows no such collection.
        """
        told = await self.transport.result("GET", f"{_collection(physical)}/cluster")
        with understood():
            return _view(told)

    async def create(self, physical: str, shard: int) -> SnapshotFile:
        """Make a snapshot of its replica of a shard."""
        path = f"{_shard(physical, shard)}?wait=true"
        told = await self.transport.result("POST", path, timeout_s=self._deadline_s)
        with understood():
            return read_file(told)

    async def files(self, physical: str, shard: int) -> list[SnapshotFile]:
        """Return the snapshots that it has of a shard; none where it has no replica any more."""
        try:
            told = await self.transport.result("GET", _shard(physical, shard))
        except (NotFound, StoreRejected) as exc:
            if _is_elsewhere(exc):
                return []
            raise
        with understood():
            return [read_file(each) for each in told]

    async def delete(self, physical: str, shard: int, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        try:
            await self.transport.result("DELETE", f"{_shard(physical, shard)}/{quote(name, safe='')}?wait=true")
        except (NotFound, StoreRejected) as exc:
            if not _is_elsewhere(exc):
                raise

    def download(self, physical: str, file: ShardFile) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes."""
        return self.transport.download(_file(physical, file))

    def location(self, physical: str, file: ShardFile) -> str:
        """Return the URL under which the other nodes reach a snapshot of this one."""
        return self.url + _file(physical, file)

    async def recover(self, physical: str, shard: int, location: str, *, sha256: str | None) -> None:
        """Have it fetch a shard's snapshot and put it in the place of its replica."""
        body: Json = {"location": location, "priority": PRIORITY}
        body |= {"checksum": sha256} if sha256 else {}
        body |= {"api_key": self._api_key} if self._api_key else {}
        path = f"{_shard(physical, shard)}/recover?wait=true"
        await self.transport.result("PUT", path, body, timeout_s=self._deadline_s)

    async def upload(self, physical: str, shard: int, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send it a shard's snapshot, which it puts in the place of its replica."""
        checked = f"&checksum={sha256}" if sha256 else ""
        path = f"{_shard(physical, shard)}/upload?wait=true&priority={PRIORITY}{checked}"
        await self.transport.send_file(path, "snapshot", content, name=RECEIVED, timeout_s=self._deadline_s)


async def views_of(nodes: Iterable[QdrantNode], physical: str) -> list[tuple[QdrantNode, View]]:
    """Return what each node that can be reached says of a collection.

    Raises:
        NotFound: one of them knows no such collection.
        StoreUnavailable: none can be reached.
    """
    asked = list(nodes)
    told = await asyncio.gather(*(node.view(physical) for node in asked), return_exceptions=True)
    found: list[tuple[QdrantNode, View]] = []
    away: StoreUnavailable | None = None
    for node, view in zip(asked, told, strict=True):
        match view:
            case View():
                found.append((node, view))
            case StoreUnavailable():
                away = view
            case BaseException():
                raise view
    if not found:
        raise away or StoreUnavailable("no node of the cluster is known")
    return found


def _is_elsewhere(exc: NotFound | StoreRejected) -> bool:
    """Tell whether the node has no such file or, which it answers with 400, no replica of the shard any more."""
    return isinstance(exc, NotFound) or exc.status == 400


def _view(told: Mapping[str, Any]) -> View:
    local = {int(each["shard_id"]): str(each["state"]) for each in told["local_shards"]}
    states: dict[int, tuple[str, ...]] = {shard: (state,) for shard, state in local.items()}
    for each in told["remote_shards"]:
        shard = int(each["shard_id"])
        states[shard] = (*states.get(shard, ()), str(each["state"]))
    return View(local, states, len(told.get("shard_transfers") or ()))


def _collection(physical: str) -> str:
    return f"/collections/{quote(physical, safe='')}"


def _shard(physical: str, shard: int) -> str:
    return f"{_collection(physical)}/shards/{shard}/snapshots"


def _file(physical: str, file: ShardFile) -> str:
    return f"{_shard(physical, file.shard)}/{quote(file.name, safe='')}"
