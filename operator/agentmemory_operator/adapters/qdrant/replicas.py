"""Replicas of collections in a cluster: their placement, and the calls that copy and drop them."""

from collections.abc import Mapping
from typing import Any

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.collections.rules.replicas import CopyReplica, DropReplica, Move, Placement
from agentmemory_operator.errors import NotFound, RouteNotFound, StoreRejected
from agentmemory_operator.spec.printable import printable_start

# Statuses of a server that lacks the call, or is no cluster (405).
NOT_SUPPORTED_STATUSES = (405, 501)


class QdrantReplicas:
    """Calls that read and move replicas. In a cluster, any node executes them.

    Args:
        qdrant: Client of the server.
    """

    def __init__(self, qdrant: QdrantControl) -> None:
        self._qdrant = qdrant
        self._peers: tuple[int, ...] | None = None
        self._can_move = True

    async def peers(self) -> tuple[int, ...] | None:
        """Return the peer ids of the cluster, sorted; empty for a single server. None if the call is rejected."""
        try:
            status = await result_of(self._qdrant.cluster.cluster_status())
        except (RouteNotFound, StoreRejected):
            self._peers = ()
            return None
        with map_parse_errors():
            self._peers = tuple(sorted(map(int, status["peers"]))) if status["status"] == "enabled" else ()
        return self._peers

    async def placement(self, physical: str) -> Placement | None:
        """Return the replicas of a collection. None if the server is no cluster, or does not report them.

        If the last call of `peers` found no cluster or was rejected, this method returns None without a call. The probe
        of the connection calls `peers` again.

        Raises:
            NotFound: If there is no such collection.
        """
        if self._peers == () or not (peers := await self.peers()):
            return None
        try:
            info = await result_of(self._qdrant.cluster.collection_cluster_info(physical))
        except StoreRejected:
            return None
        with map_parse_errors():
            return _placement(info, peers, can_move=self._can_move)

    async def move(self, physical: str, move: Move) -> bool:
        """Start to copy a replica, by the server's configured transfer method, or drop one.

        Returns:
            False if the server lacks the API call now, or lacked it at an earlier call.

        Raises:
            NotFound: If there is no such collection.
            StoreRejected: If the server has the API call, but rejects this move.
        """
        try:
            await self._qdrant.cluster.update_collection_cluster(physical, cluster_operations=_operation_of(move))
        except (NotFound, RouteNotFound, StoreRejected) as exc:
            if isinstance(exc, StoreRejected) and exc.status not in NOT_SUPPORTED_STATUSES:
                raise
            # Read the collection: this raises NotFound if the collection is missing, and not the API call.
            await self._qdrant.cluster.collection_cluster_info(physical)
            self._can_move = False
        return self._can_move


def _operation_of(move: Move) -> models.ClusterOperations:
    match move:
        case CopyReplica(shard, source, target):
            request = models.ReplicateShard(shard_id=shard, from_peer_id=source, to_peer_id=target)
            return models.ReplicateShardOperation(replicate_shard=request)
        case DropReplica(shard, peer):
            return models.DropReplicaOperation(drop_replica=models.Replica(shard_id=shard, peer_id=peer))


def states_of(info: Mapping[str, Any]) -> dict[int, dict[int, str]]:
    """Return the state of each replica by shard and peer. The replica of the responding node, if any, is first."""
    own_peer, shards = int(info["peer_id"]), dict[int, dict[int, str]]()
    for replica in (*info["local_shards"], *info["remote_shards"]):
        peer = int(replica.get("peer_id", own_peer))
        shards.setdefault(int(replica["shard_id"]), {})[peer] = printable_start(str(replica["state"]))
    return shards


def _placement(info: Mapping[str, Any], peers: tuple[int, ...], *, can_move: bool) -> Placement:
    copying = tuple(
        CopyReplica(int(transfer["shard_id"]), int(transfer["from"]), int(transfer["to"]))
        for transfer in info.get("shard_transfers") or ()
    )
    return Placement(peers=peers, shards=states_of(info), copying=copying, can_move=can_move)
